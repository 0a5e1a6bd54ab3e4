// The inner loop of a TTT layer on plain arrays; scan.cpp makes it a differentiable operator.

#pragma once

#include <cstdint>

// The sizes of a call.
struct TttShape {
  int64_t sequences;   // samples × heads, the heads innermost
  int64_t heads;       // heads of this rank: sequence s has head s % heads
  int64_t length;      // tokens of a sequence, a multiple of mini_batch
  int64_t width;       // F
  int64_t hidden;      // M, or 0 for the linear kind
  int64_t mini_batch;  // b
  int64_t group;       // mini-batches between saved states
  int64_t blocks;      // of a cluster that shares a sequence in CUDA kernels; 0: chosen by the number of sequences
  float eps;           // of the inner LayerNorm
};

// The tensors of both passes, all fp32.
struct TttInputs {
  const float* q;       // [sequences, length, F]
  const float* k;       // [sequences, length, F]
  const float* target;  // [sequences, length, F]
  const float* eta;     // [sequences, length]
  const float* gamma;   // [heads, F]
  const float* beta;    // [heads, F]
  const float* w1;      // [heads, F, M], or [heads, F, F]
  const float* b1;      // [heads, M], or [heads, F]
  const float* w2;      // [heads, M, F], or null
  const float* b2;      // [heads, F], or null
};

struct TttGrads {
  float* q;
  float* k;
  float* target;
  float* eta;
  float* gamma;  // [sequences, F]: one row per sequence, summed over samples by the caller
  float* beta;
  float* w1;  // [sequences, F, M]
  float* b1;
  float* w2;
  float* b2;
};

// The number of elements in the saved states of one sequence.
int64_t ttt_saved_size(const TttShape& shape);

// out [sequences, length, F]; saved [sequences, ttt_saved_size], or null without a backward pass.
void ttt_forward(const TttShape& shape, const TttInputs& in, float* out, float* saved);

// Fills `grads` from the gradient of the output [sequences, length, F].
void ttt_backward(const TttShape& shape, const TttInputs& in, const float* saved, const float* grad_out,
                  const TttGrads& grads);
