// The C interface to Rust.
//
// Inputs are `at::Tensor*`, the type of tch's pointers; outputs are new tensors that Rust owns. No
// exception crosses into Rust: a call returns nullptr, or an error message to free with
// vidtui_kernels_free.

#pragma once

#include <ATen/ATen.h>

#include <cstdlib>
#include <cstring>
#include <optional>

// An optional tensor: autograd reads the device of every tensor argument.
using Maybe = std::optional<at::Tensor>;

inline Maybe given(const at::Tensor* t) { return t == nullptr ? Maybe() : Maybe(*t); }

inline char* copy_text(const char* text) {
  char* copy = strdup(text);
  // Out of memory while reporting an error: no report is possible.
  if (copy == nullptr) std::abort();
  return copy;
}

template <typename F>
char* guarded(F&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return copy_text(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return copy_text(error.what());
  } catch (...) {
    return copy_text("an exception without a description");
  }
}
