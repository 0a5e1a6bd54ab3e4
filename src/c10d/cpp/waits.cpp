// Counts the calls of a thread that wait for a device, by the place that the thread has named. Tests count; training does not.

#include "shim.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>

namespace {

struct Counts {
  // The number of the place, or -1 outside all places.
  int place = -1;
  bool counting = false;
  at::CallbackHandle callback{};
  std::map<std::pair<int, std::string>, uint64_t> calls;
};

Counts& own() {
  thread_local Counts counts;
  return counts;
}

void count(std::string call) {
  Counts& counts = own();
  if (counts.counting) ++counts.calls[{counts.place, std::move(call)}];
}

// A copy between the host and a device, or between devices, for which the host waits.
bool is_blocking_copy(const at::RecordFunction& function) {
  const auto inputs = function.inputs();
  if (inputs.size() < 3 || !inputs[0].isTensor() || !inputs[1].isTensor()) return false;
  const at::Tensor &to = inputs[0].toTensor(), &from = inputs[1].toTensor();
  const bool asynchronous = inputs[2].isBool() && inputs[2].toBool();
  return to.defined() && from.defined() && to.device().type() != from.device().type() && !asynchronous;
}

// A scalar argument of an operator, which is a tensor in the memory of the host.
bool reads_argument(const at::RecordFunction& function) {
  const auto inputs = function.inputs();
  return !inputs.empty() && inputs[0].isTensor() && inputs[0].toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& function) {
  // Operators that read numbers or the size of their result from the device.
  constexpr std::array<std::string_view, 4> kReads{"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select",
                                                   "aten::equal"};
  const std::string_view name = function.name();
  const bool reads = std::find(kReads.begin(), kReads.end(), name) != kReads.end() && !reads_argument(function);
  if (reads || (name == "aten::copy_" && is_blocking_copy(function))) count(std::string(name));
  return nullptr;
}

}  // namespace

extern "C" {

// Starts to count the calls of this thread.
TorchError* vidtui_waits_begin() {
  return guarded([&] {
    Counts& counts = own();
    TORCH_CHECK(!counts.counting, "this thread counts already");
    counts.calls.clear();
    counts.callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    counts.counting = true;
  });
}

// Ends the count. Returns a line for each place and call: the number of the place, how often it was called, and the name of the call.
TorchError* vidtui_waits_end(char** out) {
  return guarded([&] {
    Counts& counts = own();
    TORCH_CHECK(counts.counting, "this thread does not count");
    at::removeCallback(counts.callback);
    counts.counting = false;
    std::ostringstream text;
    for (const auto& [of, times] : counts.calls) text << of.first << ' ' << times << ' ' << of.second << '\n';
    *out = copy_text(text.str().c_str());
  });
}

// Sets the place of this thread, and returns the one before.
int vidtui_waits_place(int place) {
  return std::exchange(own().place, place);
}

// Counts a call that is no operator of libtorch.
void vidtui_waits_count(const char* call) {
  drop_error(guarded([&] { count(call); }));
}

}  // extern "C"
