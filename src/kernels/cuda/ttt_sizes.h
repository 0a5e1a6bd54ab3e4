// Sizes, arguments and memory layouts of the TTT scan on GPUs. ../src/ttt.rs has the formulas.
//
// TTT-Linear is computed as the outer layer of TTT-MLP with the keys in place of the hidden values. So `outer` weights are
// W2 and b2 of the MLP, or W1 and b1 of the linear kind; `inner` weights are W1 and b1 of the MLP.
//
// F head width, U units: inputs of the outer layer (4F for the MLP, F for the linear kind), b tokens of a mini-batch.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ttt {

using bf16 = uint16_t;

// The most tokens of a mini-batch: a warp normalises one tile of 16 tokens, and every block has four warps or more.
constexpr int kMostTokens = 64;
constexpr int kMostTiles = kMostTokens / 16;

template <int kWidth, bool kIsMlp>
struct Sizes {
  static constexpr bool kMlp = kIsMlp;
  static constexpr int F = kWidth, U = kMlp ? 4 * F : F;
  static_assert(F % 16 == 0 && F <= 64, "the state of a sequence must fit in the registers of one block");
  // A warp owns R rows of the outer weights, and of the transposed inner weights, as accumulators of mma.
  static constexpr int R = U >= 128 ? 32 : 16, kOwners = U / R;
  static constexpr int kWarps = kOwners > 4 ? kOwners : 4, kThreads = 32 * kWarps;
  // The warps that share the LayerNorm of a tile of 16 tokens, each with kOwnTiles of the column tiles.
  static constexpr int kSplit = kWarps >= 2 * kMostTiles ? 2 : 1;
  static constexpr int kRowTiles = R / 16, kColumnTiles = F / 8, kUnitTiles = R / 8;
  static constexpr int kOwnTiles = kColumnTiles / kSplit;
  // Rows in shared memory are 16 bytes longer than their data, so that the rows of a matrix are in different banks.
  static constexpr int P = F + 8, PU = U + 8;
  // Accumulators of a warp's outer (or inner) weights per thread, and all numbers of a state.
  static constexpr int kAccumulators = kRowTiles * kColumnTiles * 4;
  static constexpr int kWeights = kAccumulators * 32 * kOwners;
  static constexpr int kState = kMlp ? 2 * kWeights + U + F : kWeights + F;
};

struct Shape {
  int sequences;   // samples × heads, the heads innermost
  int heads;       // sequence s has head s % heads
  int length;      // tokens of a sequence, a multiple of mini_batch
  int mini_batch;  // b, a multiple of 16, at most kMostTokens
  int group;       // mini-batches between saved states
  float eps;       // of the inner LayerNorm
};

// As TttInputs of ../cpp/ttt.h, with the tokens in bf16.
struct Inputs {
  const bf16 *q, *k, *target;                            // [sequences, length, F]
  const float* eta;                                      // [sequences, length]
  const float *gamma, *beta;                             // [heads, F]
  const float *inner_weight, *inner_bias;                // [heads, F, U], [heads, U]; null for the linear kind
  const float *outer_weight, *outer_bias;                // [heads, U, F], [heads, F]
};

// Gradients; weights and norm have one row per sequence.
struct Grads {
  bf16 *q, *k, *target;
  float *eta, *gamma, *beta, *inner_weight, *inner_bias, *outer_weight, *outer_bias;
};

// A chunk of groups that the backward pass keeps in memory at a time.
struct Chunk {
  int first_group, groups;
};

// What the replay of a mini-batch leaves for the chain, in bytes from the start of the mini-batch's part.
//
// "By thread" is the layout [index][thread]: the thread that wrote a number reads it.
template <class S>
struct Kept {
  size_t x, slope, curve, g1, xq, dzq1, outer, inner, dinner, g, dzq, hat, inverse, sum1, sum2, size;

  __host__ __device__ explicit Kept(int tokens) {
    const size_t wide = S::kMlp ? size_t(tokens) * S::U * 2 : 0, image = size_t(S::U) * S::F * 2;
    const size_t narrow = size_t(tokens) * S::F * 2;
    size_t at = 0;
    const auto next = [&](size_t bytes) {
      const size_t here = at;
      at += bytes;
      return here;
    };
    x = next(wide);                         // X [b, U], later dZ1
    slope = next(wide);                     // gelu'(Z1), by thread
    curve = next(wide);                     // U ∘ gelu''(Z1) with U = G W2ᵀ, by thread; later times dG1
    g1 = next(wide);                        // G1 [b, U]
    xq = next(wide);                        // the query's X, transposed, as fragments by thread
    dzq1 = next(wide);                      // gradient of the query's Z1, likewise
    outer = next(image);                    // W2 before the update, as packed accumulators by thread
    inner = next(S::kMlp ? image : 0);      // W1ᵀ before the update [U, F]
    dinner = next(S::kMlp ? image : 0);     // gradient of W1ᵀ after the update [U, F], from the chain
    g = next(narrow);                       // G = -η∘g2 [b, F]
    dzq = next(narrow);                     // gradient of the query's Z2 [b, F]
    hat = next(2 * narrow);                 // x̂ in fp32, by thread
    inverse = next(size_t(tokens) * 4);     // 1/σ
    sum1 = next(S::kMlp ? S::U * 4 : 0);    // column sums of dzq1
    sum2 = next(size_t(tokens) / 16 * S::F * 4);  // column sums of dzq, by tile
    size = at;
  }
};

// The backward pass's memory.
struct Workspace {
  const float* saved;  // states of the forward pass [sequences, groups, kState]
  char* kept;          // [sequences, mini-batches of the chunk], Kept::size bytes each
  float* norm;         // [sequences, groups of the chunk, 2, F]: gradients of γ and β from the queries
  float* carried;      // [sequences, kState]: gradient of the state, from chunk to chunk
};

}  // namespace ttt
