// Compares the kernels on the emulator with the reference, and the reference's gradients with finite differences.
//
//   check differences
//   check kernels mlp|linear MINI_BATCH BATCHES GROUP GROUPS_IN_CHUNK SEED
//
//   check recorded FILE
//
// FILE has doubles: 1 for the MLP or 0, sequences, length, width, units, mini-batch; then, for each sequence, the ten tensors of
// a problem in the order of kTensors, the gradient of the output, the output, and the gradients of the ten tensors.
//
// Exit status: 0, 1 if numbers differ, 2 if threads race, 3 if the emulator stops a kernel.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "compare.h"
#include "kernels.h"

extern "C" size_t race_count();

namespace {

std::vector<double> tokens(int length, int width, bool unit) {
  std::vector<double> v = normals(size_t(length) * width, 0, 1);
  for (int i = 0; i < length; ++i) {
    double square = 0;
    for (int j = 0; j < width; ++j) square += v[i * width + j] * v[i * width + j];
    for (int j = 0; j < width; ++j) v[i * width + j] = round_to_bf16(unit ? v[i * width + j] / std::sqrt(square) : v[i * width + j]);
  }
  return v;
}

// `head`, unless null, has the weights and the norm.
Problem random_problem(bool mlp, int width, int mini_batch, int batches, const Problem* head) {
  Problem p;
  p.length = mini_batch * batches;
  p.width = width;
  p.units = mlp ? 4 * width : width;
  p.mini_batch = mini_batch;
  p.mlp = mlp;
  p.eps = 1e-6f;
  p.q = tokens(p.length, width, true);
  p.k = tokens(p.length, width, true);
  p.target = tokens(p.length, width, false);
  for (int i = 0; i < p.length; ++i) p.eta.push_back(float(0.4 * double(source() >> 11) * 0x1p-53 / mini_batch));
  if (head != nullptr) {
    p.gamma = head->gamma, p.beta = head->beta;
    p.inner_weight = head->inner_weight, p.inner_bias = head->inner_bias;
    p.outer_weight = head->outer_weight, p.outer_bias = head->outer_bias;
    return p;
  }
  p.gamma = normals(width, 1, 0.1);
  p.beta = normals(width, 0, 0.1);
  p.inner_weight = normals(mlp ? size_t(width) * p.units : 0, 0, 0.3);
  p.inner_bias = normals(mlp ? p.units : 0, 0, 1);
  p.outer_weight = normals(size_t(width) * p.units, 0, 0.3);
  p.outer_bias = normals(width, 0, 0.1);
  return p;
}

const std::vector<std::pair<const char*, std::vector<double> Problem::*>> kTensors = {
    {"q", &Problem::q},       {"k", &Problem::k},
    {"target", &Problem::target}, {"eta", &Problem::eta},
    {"gamma", &Problem::gamma},   {"beta", &Problem::beta},
    {"inner weight", &Problem::inner_weight}, {"inner bias", &Problem::inner_bias},
    {"outer weight", &Problem::outer_weight}, {"outer bias", &Problem::outer_bias}};

bool differences() {
  bool good = true;
  for (bool mlp : {false, true}) {
    source.seed(1);
    Problem p = random_problem(mlp, 5, 3, 4, nullptr);
    const Output pull = normals(p.q.size(), 0, 1);
    const Gradient g = reference_backward(p, pull, Rounding::None);
    for (auto [name, tensor] : kTensors) {
      std::vector<double> numeric;
      for (double& x : p.*tensor) {
        const double kept = x, step = 1e-5;
        double loss[2];
        for (int side = 0; side < 2; ++side) {
          x = kept + (side ? step : -step);
          const Output out = reference_forward(p, Rounding::None);
          loss[side] = 0;
          for (size_t i = 0; i < out.size(); ++i) loss[side] += out[i] * pull[i];
        }
        x = kept;
        numeric.push_back((loss[1] - loss[0]) / (2 * step));
      }
      good &= agrees(name, relative(g.*tensor, numeric), 1e-6);
    }
  }
  return good;
}

bool kernels(bool mlp, int mini_batch, int batches, int group, int groups_in_chunk, unsigned seed) {
  source.seed(seed + 1);
  constexpr int kHeads = 2;
  std::vector<Problem> problems;
  std::vector<Output> pulls;
  for (int s = 0; s < 3; ++s) {  // the last sequence is another sample of the first head
    problems.push_back(random_problem(mlp, kernel_width(), mini_batch, batches, s < kHeads ? nullptr : &problems[s - kHeads]));
    pulls.push_back(tokens(mini_batch * batches, kernel_width(), false));
  }
  const Results results = run_kernels(problems, pulls, {kHeads, 3, group, groups_in_chunk, seed});
  bool good = agrees("gelu", gelu_error(), 1e-5);
  for (size_t s = 0; s < problems.size(); ++s) {
    const Output same = reference_forward(problems[s], Rounding::AsKernels), exact = reference_forward(problems[s], Rounding::None);
    // The results are bf16, which is an error of 1.7e-3. Values that lie between two bf16 numbers may be rounded to the other
    // one by the reference; the differences grow with the number of mini-batches.
    good &= agrees("output", relative(results.out[s], same), 2.5e-3);
    good &= agrees("output, exact", relative(results.out[s], exact), 1e-2);
    const Gradient rounded = reference_backward(problems[s], pulls[s], Rounding::AsKernels);
    const Gradient without = reference_backward(problems[s], pulls[s], Rounding::None);
    for (auto [name, tensor] : kTensors) {
      good &= agrees(name, relative(results.grads[s].*tensor, rounded.*tensor), 5e-3);
      good &= agrees("  exact", relative(results.grads[s].*tensor, without.*tensor), 3e-2);
    }
  }
  return good;
}

// Compares the reference, and the kernels if they have the width, with numbers of another program.
bool recorded(const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == nullptr) return false;
  bool complete = true;
  const auto read = [&](size_t count) {
    std::vector<double> v(count);
    complete &= fread(v.data(), sizeof(double), count, file) == count;
    return v;
  };
  const std::vector<double> sizes = read(6);
  std::vector<Problem> problems;
  std::vector<Output> pulls, outs;
  std::vector<Gradient> grads;
  for (int s = 0; s < int(sizes[1]); ++s) {
    Problem p;
    p.mlp = sizes[0] == 1;
    p.length = int(sizes[2]), p.width = int(sizes[3]), p.units = int(sizes[4]), p.mini_batch = int(sizes[5]);
    p.eps = 1e-6;
    const size_t rows = p.length, f = p.width, u = p.units;
    const size_t counts[] = {rows * f, rows * f, rows * f, rows, f, f, p.mlp ? f * u : 0, p.mlp ? u : 0, u * f, f};
    const auto read_all = [&](Problem& to) {
      for (size_t i = 0; i < kTensors.size(); ++i) to.*kTensors[i].second = read(counts[i]);
    };
    read_all(p);
    pulls.push_back(read(rows * f));
    outs.push_back(read(rows * f));
    Gradient g = p;
    read_all(g);
    problems.push_back(p);
    grads.push_back(g);
  }
  fclose(file);
  if (!complete || problems.empty()) return false;
  bool good = true;
  for (size_t s = 0; s < problems.size(); ++s) {
    good &= agrees("reference", relative(reference_forward(problems[s], Rounding::None), outs[s]), 1e-7);
    const Gradient g = reference_backward(problems[s], pulls[s], Rounding::None);
    for (auto [name, tensor] : kTensors) good &= agrees(name, relative(g.*tensor, grads[s].*tensor), 1e-6);
  }
  const Problem& first = problems[0];
  if (first.width != kernel_width() || first.mini_batch % 16 != 0) return good;
  // The kernels round the tokens to bf16, which the other program did not.
  const Results results = run_kernels(problems, pulls, {int(problems.size()), 1, 2, 1, 0});
  for (size_t s = 0; s < problems.size(); ++s) {
    good &= agrees("kernels", relative(results.out[s], outs[s]), 2e-2);
    for (auto [name, tensor] : kTensors) good &= agrees(name, relative(results.grads[s].*tensor, grads[s].*tensor), 5e-2);
  }
  return good;
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int i) { return atoi(arguments[i]); };
  if (count == 2 && strcmp(arguments[1], "differences") == 0) return differences() ? 0 : 1;
  if (count == 3 && strcmp(arguments[1], "recorded") == 0) {
    const bool good = recorded(arguments[2]);
    return race_count() > 0 ? 2 : good ? 0 : 1;
  }
  if (count != 8 || strcmp(arguments[1], "kernels") != 0) return 4;
  const bool mlp = strcmp(arguments[2], "mlp") == 0;
  const bool good = kernels(mlp, number(3), number(4), number(5), number(6), unsigned(number(7)));
  if (race_count() > 0) return 2;
  return good ? 0 : 1;
}
