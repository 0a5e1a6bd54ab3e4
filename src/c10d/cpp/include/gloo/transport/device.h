// Declarations only. See ../context.h.
#pragma once

namespace gloo {
namespace transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace transport
}  // namespace gloo
