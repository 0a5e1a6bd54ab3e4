// Declarations that replace gloo's headers, which PyTorch's packages do not include.
//
// ProcessGroupGloo.hpp names these classes; the shim only constructs the group and calls its virtual functions, so no
// code compiled here creates, lays out or destroys an object of them.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
