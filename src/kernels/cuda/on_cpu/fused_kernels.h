// Runs the fused operators' kernels on the emulator, in bf16 or float.

#pragma once

#include <vector>

enum class Type { Bf16, Float };

using Numbers = std::vector<double>;

// Sizes of a run. `heads` divides the width for the rotation. Vectors are of samples, or one for all samples.
struct Sizes {
  int samples, length, split, width, heads;
  bool shared_vectors;
  unsigned seed;  // of the order of threads; 0 keeps them in order
};

// Tokens x and u [B, L, D], gain and bias [D], two vectors of each part, the gradient dy of an output, and complex factors [L, F/2].
// For the gate, u is the update, and the second vectors are the gates.
struct Tensors {
  Numbers x, u, gain, bias, first[2], second[2], dy, factors;
};

// Output and gradients of an operator; those that it does not have are empty.
struct Outcome {
  Numbers out, x, u, gain, bias, first[2], second[2];
};

Outcome run_norm(Type type, const Sizes& sizes, const Tensors& tensors, double eps);
// Gain and bias are the first numbers of theirs; all samples that share vectors have heads that are not rotated.
Outcome run_heads(Type type, const Sizes& sizes, const Tensors& tensors, double eps);
Outcome run_gate(Type type, const Sizes& sizes, const Tensors& tensors);
// The output, and the gradient of x.
Outcome run_rotation(Type type, const Sizes& sizes, const Tensors& tensors);
