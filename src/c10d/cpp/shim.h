// Handles for all files of the C interface.

#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/custom_class.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch_error.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using Milliseconds = std::chrono::milliseconds;

struct StoreHandle {
  c10::intrusive_ptr<c10d::Store> store;
  uint16_t port;
};

// The time that a rank waited for collectives. On the CPU the host waits. On a GPU the stream that computes waits, between two
// events, and the host reads the time later.
class Waited {
 public:
  // Calls `wait`, which waits for a collective whose tensors are on a device.
  template <typename F>
  void during(at::Device device, F&& wait) {
    if (!device.is_cuda()) {
      const auto start = std::chrono::steady_clock::now();
      wait();
      const std::lock_guard<std::mutex> lock(mutex_);
      host_ += std::chrono::steady_clock::now() - start;
      return;
    }
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    c10::Event before{device.type(), c10::EventFlag::BACKEND_DEFAULT}, after{device.type(), c10::EventFlag::BACKEND_DEFAULT};
    before.record(stream);
    wait();
    after.record(stream);
    const std::lock_guard<std::mutex> lock(mutex_);
    marks_.emplace_back(std::move(before), std::move(after));
  }

  // Returns the seconds since the last call. Waits for the events, if there are any.
  double take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    double seconds = std::chrono::duration<double>(host_).count();
    for (auto& [before, after] : marks_) {
      after.synchronize();
      seconds += before.elapsedTime(after) / 1e3;
    }
    clear();
    return seconds;
  }

  // Forgets the time so far.
  void drop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    clear();
  }

 private:
  void clear() {
    host_ = std::chrono::steady_clock::duration::zero();
    marks_.clear();
  }

  std::mutex mutex_;
  std::chrono::steady_clock::duration host_{0};
  std::vector<std::pair<c10::Event, c10::Event>> marks_;
};

// What this rank did in the collectives of a group.
struct Tally : torch::CustomClassHolder {
  // Bytes that it sent, by kind of collective, as a ring algorithm counts them.
  std::atomic<uint64_t> gathered{0}, scattered{0}, summed{0};
  // Collectives that were started. Those that were started together count as one.
  std::atomic<uint64_t> launches{0};
  Waited waited;
};

struct GroupHandle {
  c10::intrusive_ptr<c10d::Backend> backend;
  uint32_t next_tag;
  // The device of an NCCL group's tensors.
  std::optional<at::Device> device;
  // Autograd graphs with a collective of the group count here too.
  c10::intrusive_ptr<Tally> tally = c10::make_intrusive<Tally>();
};
