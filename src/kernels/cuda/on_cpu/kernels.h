// Runs the scan's kernels on the emulator.

#pragma once

#include "reference.h"

// The head width that the kernels are compiled for.
int kernel_width();

// The largest error of the kernels' gelu and its two derivatives, by finite differences. Terms of the second derivative
// are too small a part of the gradients to be seen there.
double gelu_error();

// How a run is launched.
struct Launch {
  int heads, samples;   // sequence s has head s % heads
  int group;            // mini-batches between saved states
  int groups_in_chunk;  // groups that the backward pass keeps at a time
  unsigned seed;        // of the order of threads; 0 keeps them in order
};

struct Results {
  std::vector<Output> out;       // of every sequence
  std::vector<Gradient> grads;
};

// `problems` has one problem per sequence; those of a head share weights and norm.
Results run_kernels(const std::vector<Problem>& problems, const std::vector<Output>& grad_out, const Launch& launch);
