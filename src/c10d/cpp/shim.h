// Handles and error conversion for all files of the C interface.

#pragma once

#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>

using Milliseconds = std::chrono::milliseconds;

struct StoreHandle {
  c10::intrusive_ptr<c10d::Store> store;
  uint16_t port;
};

// Bytes that this rank sent, by kind of collective, as a ring algorithm counts them.
struct Tally : torch::CustomClassHolder {
  std::atomic<uint64_t> gathered{0}, scattered{0}, summed{0};
  // Collectives that were started. Those that were started together count as one.
  std::atomic<uint64_t> launches{0};
};

struct GroupHandle {
  c10::intrusive_ptr<c10d::Backend> backend;
  uint32_t next_tag;
  // The device of an NCCL group's tensors.
  std::optional<at::Device> device;
  // Autograd graphs with a collective of the group count here too.
  c10::intrusive_ptr<Tally> sent = c10::make_intrusive<Tally>();
};

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
