// Arguments of the fused operators on GPUs. ../src/fused.rs has the formulas.
//
// B samples, L tokens of a sequence, D width. The numbers of `void` pointers have the type of the tokens: bf16 or float.

#pragma once

#include <cstddef>
#include <cstdint>

namespace fused {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

// The widest row: a lane keeps at most 96 of its numbers in registers.
constexpr int kMostWidth = 32 * 96;

// A sequence has two parts: the first `split` tokens, and the others.
struct Rows {
  int samples, length, split, width;
};

// D numbers of a sample, `stride` numbers from those of the next sample; with stride 0, all samples have the same.
struct Vector {
  const void* data;
  int64_t stride;
};

struct Norm {
  const void *x, *gain, *bias;  // [B, L, D], [D], [D]
  Vector shift[2], scale[2];    // of each part
  float eps;
};

// A LayerNorm over each head of F numbers, then a rotation of adjacent pairs, if there are factors.
struct HeadNorm {
  const void *x, *gain, *bias;  // [B, L, heads, F], [F], [F]
  const float* factors;         // complex, [L, F/2], or null
  int width;                    // F: whole pieces of 16 bytes, 1, 2, 4, … or 32 of them
  float eps;
};

// The most blocks of the backward pass of head norms. Each adds the gradients of gain and bias over some heads.
constexpr int kMostHeadBlocks = 512;

// What the forward pass keeps of each row, [B, L].
struct Statistics {
  float *mean, *inverse;
};

// The gradients of the vectors; null: not wanted. Those of a Vector are [B, D], or [D] if its stride is 0.
struct VectorGrads {
  void *gain, *bias, *first[2], *second[2];  // first: shift; second: scale, or gate
};

// The rows of a part whose column sums one block computes. The second stage adds the sums of at most kMost blocks for each part.
struct Chunks {
  static constexpr int kMost = 64, kLeastRows = 16;
  int rows[2], count[2];

  __host__ __device__ explicit Chunks(const Rows& all) {
    for (int part = 0; part < 2; ++part) {
      const int tokens = part == 0 ? all.split : all.length - all.split;
      const int even = (tokens + kMost - 1) / kMost;
      rows[part] = even > kLeastRows ? even : kLeastRows;
      count[part] = (tokens + rows[part] - 1) / rows[part];
    }
  }
  __host__ __device__ int of_sample() const { return count[0] + count[1]; }
};

// Numbers of the memory between both stages.
__host__ __device__ inline int64_t sums_size(const Rows& rows) {
  return int64_t(rows.samples) * Chunks(rows).of_sample() * 2 * rows.width;
}

}  // namespace fused
