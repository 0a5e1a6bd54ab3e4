// Makes an operator of one rank fail with an exception of the type that libtorch throws. Preloaded into the ranks of a test.
//
// The copies of the optimizer fail after FAULT_AFTER calls in the rank FAULT_RANK, as FAULT_KIND names.

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace at {
class Tensor;
}

namespace {

const std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void fail() {
  static const std::string kind = variable("FAULT_KIND");
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  if (kind == "ecc") throw c10::AcceleratorError(here, 214, "CUDA error: uncorrectable ECC error encountered");
  if (kind == "address") throw c10::AcceleratorError(here, 700, "CUDA error: an illegal memory access was encountered");
  if (kind == "memory") throw c10::OutOfMemoryError(here, "CUDA out of memory. Tried to allocate 2.00 GiB");
  if (kind == "network") throw c10::DistNetworkError(here, "Connection reset by peer");
  if (kind == "text") throw std::runtime_error("CUDA error: uncorrectable ECC error encountered");
  throw c10::Error(here, "The size of tensor a (3) must match the size of tensor b (4)");
}

}  // namespace

namespace at::_ops::_foreach_copy_ {

using Tensors = c10::ArrayRef<at::Tensor>;

// Replaces the operator of libtorch.
void call(Tensors to, Tensors from, bool non_blocking) {
  static const bool is_here = variable("RANK") == variable("FAULT_RANK");
  static const long after = std::atol(variable("FAULT_AFTER").c_str());
  static long calls = 0;
  if (is_here && ++calls > after) fail();
  using Call = void (*)(Tensors, Tensors, bool);
  static const auto real = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "_ZN2at4_ops14_foreach_copy_4callEN3c108ArrayRefINS_6TensorEEES5_b"));
  real(to, from, non_blocking);
}

}  // namespace at::_ops::_foreach_copy_
