// The TTT scan in plain loops over doubles, forward and backward, by the formulas of ../../src/ttt.rs.
//
// `Rounding::AsKernels` rounds to bf16 wherever the GPU kernels do, so that the kernels can be held to a small tolerance.
// `Rounding::None` is the exact scan, which finite differences and recorded numbers check.

#pragma once

#include <cstdint>
#include <vector>

enum class Rounding { None, AsKernels };

// One sequence. Inner weights are [F, U], outer weights [U, F]; the inner ones are empty for the linear kind.
struct Problem {
  int length, width, units, mini_batch;
  bool mlp;
  double eps;
  std::vector<double> q, k, target, eta, gamma, beta, inner_weight, inner_bias, outer_weight, outer_bias;
};

using Output = std::vector<double>;

// A gradient has the tensors of the problem.
using Gradient = Problem;

Output reference_forward(const Problem& problem, Rounding rounding);
Gradient reference_backward(const Problem& problem, const Output& grad_out, Rounding rounding);
double round_to_bf16(double x);
