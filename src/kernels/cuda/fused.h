// Norm with modulation, norm of heads, gate with residual, and rotary embedding: bf16 or float in memory, float in between, one rounding.
//
// One warp computes one row. With Σ over the tokens of a part, S = Σ dy and A = Σ dy∘x̂ for y = (x̂∘gain + bias)∘(1 + scale) + shift:
//   dshift = S, dscale = gain∘A + bias∘S, and over all parts and samples dgain = Σ (1 + scale)∘A, dbias = Σ (1 + scale)∘S.
// For y = x + gate∘u: dgate = Σ dy∘u. Two stages compute these sums, each in a fixed order: blocks add the rows of a chunk, then each
// thread adds the chunks of one column.

#pragma once

#include "bf16.h"
#include "fused_sizes.h"

namespace fused {

using gpu::bf16;

// The numbers of 16 bytes.
template <class T>
constexpr int kPiece = 16 / int(sizeof(T));

template <class T>
using Piece = float[kPiece<T>];

__device__ __forceinline__ void load(float (&v)[8], const bf16* from) {
  const uint4 w = gpu::load16(from);
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = gpu::low(words[i]);
    v[2 * i + 1] = gpu::high(words[i]);
  }
}
__device__ __forceinline__ void load(float (&v)[4], const float* from) {
  const uint4 w = gpu::load16(from);
  v[0] = gpu::float_of(w.x), v[1] = gpu::float_of(w.y), v[2] = gpu::float_of(w.z), v[3] = gpu::float_of(w.w);
}
__device__ __forceinline__ void store(bf16* to, const float (&v)[8]) {
  gpu::store16(to, make_uint4(gpu::pack(v[0], v[1]), gpu::pack(v[2], v[3]), gpu::pack(v[4], v[5]), gpu::pack(v[6], v[7])));
}
__device__ __forceinline__ void store(float* to, const float (&v)[4]) {
  gpu::store16(to, make_uint4(gpu::bits_of(v[0]), gpu::bits_of(v[1]), gpu::bits_of(v[2]), gpu::bits_of(v[3])));
}
__device__ __forceinline__ float value(bf16 v) { return gpu::low(v); }
__device__ __forceinline__ float value(float v) { return v; }
__device__ __forceinline__ void put(bf16& to, float v) { to = static_cast<bf16>(gpu::pack(v, 0)); }
__device__ __forceinline__ void put(float& to, float v) { to = v; }

__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
  return v;
}

template <class T>
__device__ __forceinline__ const T* vector_of(const Vector& v, int sample) {
  return static_cast<const T*>(v.data) + sample * v.stride;
}

// No index into an argument of a kernel, which would copy the argument to memory.
__device__ __forceinline__ const Vector& of_part(const Vector (&v)[2], int part) { return part == 0 ? v[0] : v[1]; }

// The row of a warp.
struct Row {
  int lane = threadIdx.x % 32;
  int64_t index;
  bool exists;
  int sample, part;

  __device__ explicit Row(const Rows& rows) {
    index = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    exists = index < int64_t(rows.samples) * rows.length;
    sample = int(index / rows.length);
    part = index % rows.length >= rows.split;
  }
};

// Calls f(piece, column) for each piece of a row that this lane has. kPieces · 32 pieces are a row or more.
template <class T, int kPieces, class Body>
__device__ __forceinline__ void each_piece(int width, int lane, Body f) {
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int column = (p * 32 + lane) * kPiece<T>;
    if (column < width) f(p, column);
  }
}

template <class T, int kPieces>
__global__ void __launch_bounds__(kThreads, 2) norm_forward(const Rows rows, const Norm in, void* out, const Statistics kept) {
  const Row row(rows);
  if (!row.exists) return;
  const int width = rows.width;
  const T* x = static_cast<const T*>(in.x) + row.index * width;
  Piece<T> v[kPieces];
  float sum = 0, square = 0;
  each_piece<T, kPieces>(width, row.lane, [&](int p, int column) {
    load(v[p], x + column);
    for (float number : v[p]) sum += number;
  });
  const float mean = sum_of_warp(sum) / width;
  each_piece<T, kPieces>(width, row.lane, [&](int p, int) {
    for (float& number : v[p]) {
      number -= mean;
      square += number * number;
    }
  });
  const float inverse = rsqrtf(sum_of_warp(square) / width + in.eps);
  if (row.lane == 0) {
    kept.mean[row.index] = mean;
    kept.inverse[row.index] = inverse;
  }
  const T *gains = static_cast<const T*>(in.gain), *biases = static_cast<const T*>(in.bias);
  const T* shifts = vector_of<T>(of_part(in.shift, row.part), row.sample);
  const T* scales = vector_of<T>(of_part(in.scale, row.part), row.sample);
  T* to = static_cast<T*>(out) + row.index * width;
  each_piece<T, kPieces>(width, row.lane, [&](int p, int column) {
    Piece<T> gain, bias, shift, scale;
    load(gain, gains + column);
    load(bias, biases + column);
    load(shift, shifts + column);
    load(scale, scales + column);
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i) v[p][i] = (v[p][i] * inverse * gain[i] + bias[i]) * (1 + scale[i]) + shift[i];
    store(to + column, v[p]);
  });
}

// dx = (dx̂ - mean dx̂ - x̂ mean(dx̂∘x̂))/σ with dx̂ = dy∘(1 + scale)∘gain.
template <class T, int kPieces>
__global__ void __launch_bounds__(kThreads, 2) norm_backward(const Rows rows, const Norm in, const Statistics kept, const void* grad,
                                                          void* grad_x) {
  const Row row(rows);
  if (!row.exists) return;
  const int width = rows.width;
  const float mean = kept.mean[row.index], inverse = kept.inverse[row.index];
  const T *x = static_cast<const T*>(in.x) + row.index * width, *dy = static_cast<const T*>(grad) + row.index * width;
  const T *gains = static_cast<const T*>(in.gain), *scales = vector_of<T>(of_part(in.scale, row.part), row.sample);
  Piece<T> d[kPieces];
  float sum = 0, projection = 0;
  each_piece<T, kPieces>(width, row.lane, [&](int p, int column) {
    Piece<T> hat, gain, scale;
    load(hat, x + column);
    load(d[p], dy + column);
    load(gain, gains + column);
    load(scale, scales + column);
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i) {
      d[p][i] *= (1 + scale[i]) * gain[i];
      sum += d[p][i];
      projection += d[p][i] * (hat[i] - mean) * inverse;
    }
  });
  sum = sum_of_warp(sum) / width;
  projection = sum_of_warp(projection) / width;
  T* to = static_cast<T*>(grad_x) + row.index * width;
  each_piece<T, kPieces>(width, row.lane, [&](int p, int column) {
    Piece<T> hat;
    load(hat, x + column);  // from the cache
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i) d[p][i] = (d[p][i] - sum - (hat[i] - mean) * inverse * projection) * inverse;
    store(to + column, d[p]);
  });
}

// Each thread computes one piece of x + gate∘update, or of gate∘update if x is null.
template <class T>
__global__ void __launch_bounds__(kThreads) gated(const Rows rows, const void* x, const void* update, const Vector gate0,
                                                  const Vector gate1, void* out) {
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kPiece<T>, row = at / rows.width;
  if (row >= int64_t(rows.samples) * rows.length) return;
  const bool first = row % rows.length < rows.split;
  Piece<T> v = {}, u, gate;
  if (x != nullptr) load(v, static_cast<const T*>(x) + at);
  load(u, static_cast<const T*>(update) + at);
  load(gate, vector_of<T>(first ? gate0 : gate1, int(row / rows.length)) + at % rows.width);
#pragma unroll
  for (int i = 0; i < kPiece<T>; ++i) v[i] += gate[i] * u[i];
  store(static_cast<T*>(out) + at, v);
}

// Bytes of shared memory of column_sums: two sums of each column of a block, by warp.
template <class T>
constexpr size_t kSumsShared = size_t(kWarps) * 2 * 32 * kPiece<T> * sizeof(float);

// Sums of dy and of dy∘h over the rows of a chunk, h = x̂ with statistics and h = x without. Blocks: columns × chunks of all samples.
template <class T>
__global__ void __launch_bounds__(kThreads) column_sums(const Rows rows, const void* grad, const void* x, const Statistics kept,
                                                        float* sums) {
  constexpr int kColumns = 32 * kPiece<T>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = rows.width;
  const Chunks chunks(rows);
  const int sample = blockIdx.y / chunks.of_sample(), chunk = blockIdx.y % chunks.of_sample();
  const bool first_part = chunk < chunks.count[0];
  const int begin = first_part ? chunk * chunks.rows[0] : rows.split + (chunk - chunks.count[0]) * chunks.rows[1];
  const int end_of_part = first_part ? rows.split : rows.length, end_of_chunk = begin + chunks.rows[first_part ? 0 : 1];
  const int end = end_of_chunk < end_of_part ? end_of_chunk : end_of_part;
  const int column = blockIdx.x * kColumns + lane * kPiece<T>;
  Piece<T> plain = {}, product = {};
  if (column < width) {
    for (int token = begin + warp; token < end; token += kWarps) {
      const int64_t row = int64_t(sample) * rows.length + token;
      Piece<T> dy, h;
      load(dy, static_cast<const T*>(grad) + row * width + column);
      load(h, static_cast<const T*>(x) + row * width + column);
      const float mean = kept.mean != nullptr ? kept.mean[row] : 0, inverse = kept.mean != nullptr ? kept.inverse[row] : 1;
#pragma unroll
      for (int i = 0; i < kPiece<T>; ++i) {
        plain[i] += dy[i];
        product[i] += dy[i] * (h[i] - mean) * inverse;
      }
    }
  }
  float* shared = reinterpret_cast<float*>(gpu::shared_memory());
#pragma unroll
  for (int i = 0; i < kPiece<T>; ++i) {
    shared[warp * 2 * kColumns + lane * kPiece<T> + i] = plain[i];
    shared[warp * 2 * kColumns + kColumns + lane * kPiece<T> + i] = product[i];
  }
  __syncthreads();  // The sums of all warps are complete.
  for (int at = threadIdx.x; at < 2 * kColumns; at += kThreads) {
    const int own = blockIdx.x * kColumns + at % kColumns;
    if (own >= width) continue;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += shared[w * 2 * kColumns + at];
    sums[(int64_t(blockIdx.y) * 2 + at / kColumns) * width + own] = sum;
  }
}

// Adds the sums of all chunks of one column, and computes the gradients of the vectors. `in` has no gain for a gate: first sums are not
// used, and second ones are the gate's gradient.
template <class T>
__global__ void __launch_bounds__(kThreads) vector_gradients(const Rows rows, const Norm in, const float* sums,
                                                             const VectorGrads grads) {
  const int column = blockIdx.x * kThreads + threadIdx.x, width = rows.width;
  if (column >= width) return;
  const Chunks chunks(rows);
  const auto number = [&](const void* from) { return value(static_cast<const T*>(from)[column]); };
  const float gain = in.gain != nullptr ? number(in.gain) : 1, bias = in.gain != nullptr ? number(in.bias) : 0;
  float of_gain = 0, of_bias = 0;
  for (int part = 0; part < 2; ++part) {
    float first = 0, second = 0;
    for (int sample = 0; sample < rows.samples; ++sample) {
      float plain = 0, product = 0;
      for (int chunk = 0; chunk < chunks.count[part]; ++chunk) {
        const int64_t at = int64_t(sample) * chunks.of_sample() + (part == 0 ? 0 : chunks.count[0]) + chunk;
        plain += sums[2 * at * width + column];
        product += sums[(2 * at + 1) * width + column];
      }
      if (in.gain != nullptr) {
        const float factor = 1 + value(vector_of<T>(in.scale[part], sample)[column]);
        of_gain += factor * product;
        of_bias += factor * plain;
      }
      const auto give = [&](void* to, const Vector& vector, float& total, float grad) {
        total += grad;
        if (to == nullptr || (vector.stride == 0 && sample + 1 < rows.samples)) return;
        put(static_cast<T*>(to)[(vector.stride == 0 ? 0 : int64_t(sample) * width) + column], vector.stride == 0 ? total : grad);
      };
      give(grads.first[part], in.shift[part], first, plain);
      give(grads.second[part], in.scale[part], second, gain * product + bias * plain);
    }
  }
  if (grads.gain != nullptr) put(static_cast<T*>(grads.gain)[column], of_gain);
  if (grads.bias != nullptr) put(static_cast<T*>(grads.bias)[column], of_bias);
}

// Rotates the pairs of a piece by complex factors, or back with sign -1.
template <class T>
__device__ __forceinline__ void turn(Piece<T>& v, const float* factors, float sign) {
#pragma unroll
  for (int i = 0; i < kPiece<T>; i += 4) {
    float f[4];
    load(f, factors + i);
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const float real = v[i + k], imaginary = v[i + k + 1], sine = sign * f[k + 1];
      v[i + k] = real * f[k] - imaginary * sine;
      v[i + k + 1] = real * sine + imaginary * f[k];
    }
  }
}

// Rotates adjacent pairs of numbers [B, L, heads, F] by complex factors [L, F/2], or back with sign -1. Each thread rotates one piece.
template <class T>
__global__ void __launch_bounds__(kThreads) rotated(const Rows rows, int head_width, const void* x, const float* factors, float sign,
                                                    void* out) {
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kPiece<T>, row = at / rows.width;
  if (row >= int64_t(rows.samples) * rows.length) return;
  const float* factor = factors + row % rows.length * head_width + at % rows.width % head_width;
  Piece<T> v;
  load(v, static_cast<const T*>(x) + at);
  turn<T>(v, factor, sign);
  store(static_cast<T*>(out) + at, v);
}

// Sums over the `lanes` threads of a head. All threads of a warp call this.
__device__ __forceinline__ float sum_of_head(float v, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
  return v;
}

// Replaces a piece of a head by x̂, and returns 1/σ. All threads of a warp call this.
template <class T>
__device__ __forceinline__ float normalize_head(Piece<T>& v, const HeadNorm& in) {
  const int lanes = in.width / kPiece<T>;
  float sum = 0, square = 0;
#pragma unroll
  for (float number : v) sum += number;
  const float mean = sum_of_head(sum, lanes) / in.width;
#pragma unroll
  for (float& number : v) {
    number -= mean;
    square += number * number;
  }
  const float inverse = rsqrtf(sum_of_head(square, lanes) / in.width + in.eps);
#pragma unroll
  for (float& number : v) number *= inverse;
  return inverse;
}

// The factors of a piece at a place of [B, L, heads, F].
__device__ __forceinline__ const float* factors_of(const Rows& rows, const HeadNorm& in, int64_t at) {
  return in.factors + at / rows.width % rows.length * in.width + at % in.width;
}

// Each thread computes one piece of the normalised and rotated heads.
template <class T>
__global__ void __launch_bounds__(kThreads) head_norm_forward(const Rows rows, const HeadNorm in, void* out) {
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kPiece<T>;
  const bool exists = at < int64_t(rows.samples) * rows.length * rows.width;
  Piece<T> v = {}, gain, bias;
  if (exists) load(v, static_cast<const T*>(in.x) + at);
  normalize_head<T>(v, in);
  if (!exists) return;
  const int column = int(at % in.width);
  load(gain, static_cast<const T*>(in.gain) + column);
  load(bias, static_cast<const T*>(in.bias) + column);
#pragma unroll
  for (int i = 0; i < kPiece<T>; ++i) v[i] = v[i] * gain[i] + bias[i];
  if (in.factors != nullptr) turn<T>(v, factors_of(rows, in, at), 1);
  store(static_cast<T*>(out) + at, v);
}

// Bytes of shared memory of head_norm_backward: two sums for each number of its pieces.
template <class T>
constexpr size_t kHeadSumsShared = size_t(kThreads) * kPiece<T> * 2 * sizeof(float);

// The gradient of x for the heads of a block, and the sums over them of dy and of dy∘x̂, [blocks, 2, F]. Unwanted results are null. A
// chunk is the heads of a block, a multiple of those that its threads compute at a time.
template <class T>
__global__ void __launch_bounds__(kThreads) head_norm_backward(const Rows rows, const HeadNorm in, int64_t chunk, const void* grad,
                                                               void* grad_x, float* sums) {
  const int width = in.width, lanes = width / kPiece<T>, at_a_time = kThreads / lanes, own = threadIdx.x / lanes;
  const int column = threadIdx.x % lanes * kPiece<T>;
  const int64_t heads = int64_t(rows.samples) * rows.length * rows.width / width, begin = blockIdx.x * chunk;
  const int64_t end = begin + chunk < heads ? begin + chunk : heads;
  Piece<T> of_gain = {}, of_bias = {}, gain;
  load(gain, static_cast<const T*>(in.gain) + column);
  for (int64_t first = begin; first < end; first += at_a_time) {
    const bool exists = first + own < end;
    const int64_t at = (first + own) * width + column;
    Piece<T> hat = {}, d = {};
    if (exists) {
      load(hat, static_cast<const T*>(in.x) + at);
      load(d, static_cast<const T*>(grad) + at);
      if (in.factors != nullptr) turn<T>(d, factors_of(rows, in, at), -1);
    }
    const float inverse = normalize_head<T>(hat, in);
    float sum = 0, projection = 0;
    if (exists) {
#pragma unroll
      for (int i = 0; i < kPiece<T>; ++i) {
        of_bias[i] += d[i];
        of_gain[i] += d[i] * hat[i];
        d[i] *= gain[i];
        sum += d[i];
        projection += d[i] * hat[i];
      }
    }
    sum = sum_of_head(sum, lanes) / width;
    projection = sum_of_head(projection, lanes) / width;
    if (exists && grad_x != nullptr) {
#pragma unroll
      for (int i = 0; i < kPiece<T>; ++i) d[i] = (d[i] - sum - hat[i] * projection) * inverse;
      store(static_cast<T*>(grad_x) + at, d);
    }
  }
  if (sums == nullptr) return;
  float* shared = reinterpret_cast<float*>(gpu::shared_memory());
#pragma unroll
  for (int i = 0; i < kPiece<T>; ++i) {
    shared[own * 2 * width + column + i] = of_bias[i];
    shared[own * 2 * width + width + column + i] = of_gain[i];
  }
  __syncthreads();  // The sums of all threads are complete.
  for (int at = threadIdx.x; at < 2 * width; at += kThreads) {
    float sum = 0;
    for (int i = 0; i < at_a_time; ++i) sum += shared[i * 2 * width + at];
    sums[int64_t(blockIdx.x) * 2 * width + at] = sum;
  }
}

// Adds the sums of all blocks of head_norm_backward. A warp computes the gradient of one number of bias or gain.
template <class T>
__global__ void __launch_bounds__(kThreads) head_vector_gradients(int width, int blocks, const float* sums, void* gain, void* bias) {
  const int at = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum = 0;
  if (at < 2 * width) {
    for (int block = lane; block < blocks; block += 32) sum += sums[int64_t(block) * 2 * width + at];
  }
  sum = sum_of_warp(sum);
  void* to = at < width ? bias : gain;
  if (at < 2 * width && lane == 0 && to != nullptr) put(static_cast<T*>(to)[at % width], sum);
}

}  // namespace fused
