// Turns C++ exceptions into errors for Rust. The C interfaces of c10d and of the kernels include this file.
//
// A function of these interfaces returns nullptr, or an error that Rust frees with free(3). No exception crosses into Rust.

#pragma once

#include <c10/util/Exception.h>

#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <typeinfo>

// The kinds of src/lib.rs, in the same order.
enum class ErrorKind : int32_t {
  kOther,
  kOutOfMemory,
  // A connection to another rank or to the store broke or timed out.
  kPeer,
  // NCCL failed: because of another rank, or because of this rank's device.
  kNccl,
  // The device reported an error; `code` is CUDA's.
  kDevice,
};

struct TorchError {
  ErrorKind kind;
  int32_t code;
  // Allocated with malloc, as the struct is.
  char* text;
};

inline char* copy_text(const char* text) {
  char* copy = strdup(text);
  // Out of memory while reporting an error: no report is possible.
  if (copy == nullptr) std::abort();
  return copy;
}

inline TorchError* make_error(ErrorKind kind, int32_t code, const char* text) {
  auto* error = static_cast<TorchError*>(std::malloc(sizeof(TorchError)));
  if (error == nullptr) std::abort();
  *error = TorchError{kind, code, copy_text(text)};
  return error;
}

// The error of a feature that this build lacks.
inline TorchError* missing_feature(const char* text) {
  return make_error(ErrorKind::kOther, 0, text);
}

// Returns whether the exception that is being handled was thrown by gloo because a connection failed. libtorch does not install gloo's
// headers, so that its types can only be recognized by their names.
inline bool is_gloo_io_error() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return false;
  for (const char* name : {"N4gloo11IoExceptionE", "N4gloo9transport3tcp11SystemErrorE", "N4gloo9transport3tcp12TimeoutErrorE",
                           "N4gloo9transport3tcp14ShortReadErrorE", "N4gloo9transport3tcp15ShortWriteErrorE"}) {
    if (std::strcmp(type->name(), name) == 0) return true;
  }
  return false;
}

// Converts the exception that is being handled.
inline TorchError* current_error() noexcept {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return make_error(ErrorKind::kOutOfMemory, 0, error.what_without_backtrace());
  } catch (const c10::AcceleratorError& error) {
    // cudaErrorMemoryAllocation
    constexpr int32_t kNoMemory = 2;
    const int32_t code = error.get_error_code();
    const auto kind = code == kNoMemory ? ErrorKind::kOutOfMemory : ErrorKind::kDevice;
    return make_error(kind, code, error.what_without_backtrace());
  } catch (const c10::DistBackendError& error) {
    return make_error(ErrorKind::kNccl, 0, error.what_without_backtrace());
  } catch (const c10::DistError& error) {
    // Errors of the network and of the store.
    return make_error(ErrorKind::kPeer, 0, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return make_error(ErrorKind::kOther, 0, error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    return make_error(ErrorKind::kOutOfMemory, 0, error.what());
  } catch (const std::exception& error) {
    return make_error(is_gloo_io_error() ? ErrorKind::kPeer : ErrorKind::kOther, 0, error.what());
  } catch (...) {
    return make_error(ErrorKind::kOther, 0, "an exception without a description");
  }
}

template <typename F>
TorchError* guarded(F&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return current_error();
  }
}

// Frees an error that is not reported.
inline void drop_error(TorchError* error) {
  if (error == nullptr) return;
  std::free(error->text);
  std::free(error);
}
