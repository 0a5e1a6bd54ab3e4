// Declarations that stand in for gloo's headers, which PyTorch's packages do not carry.
//
// ProcessGroupGloo.hpp names these classes; the shim only constructs the group and calls its virtual functions, so no
// object of them is ever made, laid out or destroyed by code compiled here.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
