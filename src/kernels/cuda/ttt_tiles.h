// Products of tiles, and LayerNorm of a tile's rows: what the kernels of the TTT scan have in common.

#pragma once

#include "bf16.h"
#include "ttt_sizes.h"

namespace ttt {

using gpu::high;
using gpu::low;

// A lane's place in a 16×8 accumulator: rows g and g + 8, columns c and c + 1.
struct Lane {
  int thread, warp, lane, g, c;

  __device__ Lane() : thread(threadIdx.x), warp(thread / 32), lane(thread % 32), g(lane / 4), c(lane % 4 * 2) {}
};

__device__ __forceinline__ float half_of(uint32_t v, int i) { return i ? high(v) : low(v); }
__device__ __forceinline__ uint32_t& word(bf16* p) { return *reinterpret_cast<uint32_t*>(p); }
__device__ __forceinline__ uint32_t word(const bf16* p) { return *reinterpret_cast<const uint32_t*>(p); }

// Sums over the four lanes of a row, and over the eight rows of a column.
__device__ __forceinline__ float sum_of_row(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
__device__ __forceinline__ float sum_of_column(float v) {
  v += __shfl_xor_sync(~0u, v, 4);
  v += __shfl_xor_sync(~0u, v, 8);
  return v + __shfl_xor_sync(~0u, v, 16);
}

// Row addresses for ldmatrix of a 16×16 tile: matrices down the first column, then down the second; or along the first
// row, then along the second.
__device__ __forceinline__ const bf16* down(const bf16* x, int pitch, int row, int column, int lane) {
  return x + (row + lane % 16) * pitch + column + lane / 16 * 8;
}
__device__ __forceinline__ const bf16* along(const bf16* x, int pitch, int row, int column, int lane) {
  return x + (row + lane % 8 + lane / 16 * 8) * pitch + column + lane / 8 % 2 * 8;
}

// Starts to copy kColumns columns of `rows` rows, which are kFrom apart, into rows `pitch` apart.
template <int kColumns, int kFrom = kColumns>
__device__ __forceinline__ void fetch(bf16* to, int pitch, const bf16* from, int rows, int thread, int threads) {
  constexpr int kPieces = kColumns / 8;
  for (int i = thread; i < rows * kPieces; i += threads) {
    // If kFrom is kColumns, both expressions are equal. The compiler does not see that, and uses more registers.
    const int at = kFrom == kColumns ? i * 8 : i / kPieces * kFrom + i % kPieces * 8;
    gpu::copy16(to + i / kPieces * pitch + i % kPieces * 8, from + at);
  }
}

template <class S>
using Weights = float[S::kRowTiles][S::kColumnTiles][4];

// Rows of a tile times columns `column`… of an image: z[16, 8·kTiles] += A[16, kUnits] · image[kUnits, …].
template <class S, int kTiles>
__device__ __forceinline__ void add_product(float (&z)[kTiles][4], const bf16* a_rows, int pitch, int row, const bf16* image,
                                            int column, int lane) {
#pragma unroll 4
  for (int k = 0; k < S::kUnits / 16; ++k) {
    uint32_t a[4];
    gpu::load_matrices(a, down(a_rows, pitch, row, k * 16, lane));
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      uint32_t b[4];
      gpu::load_transposed(b, down(image, S::P, k * 16, column + n * 16, lane));
      gpu::mma(z[2 * n], a, b[0], b[1]);
      gpu::mma(z[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Tiles that a warp multiplies with its weights at a time: more independent sums, and one rounding of the weights for all of them.
constexpr int kAtOnce = 2;

template <class S>
using OwnProduct = float[kAtOnce][S::kUnitTiles][4];

// The tile whose product is number `i` of those that start with `tile`. If the tiles are odd, the last is computed twice.
__device__ __forceinline__ int tile_of(int tile, int i, int tiles) { return tile + i < tiles ? tile + i : tiles - 1; }

// Rows of some tiles times this warp's weights: z[16, R] += A[16, F] · Wᵀ. The accumulators of W, rounded, are the second
// factor as they are.
template <class S>
__device__ __forceinline__ void add_own_product(OwnProduct<S>& z, const bf16* a_rows, int tile, int tiles, const Weights<S>& w,
                                                int lane) {
#pragma unroll
  for (int k = 0; k < S::F / 16; ++k) {
    uint32_t a[kAtOnce][4];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) gpu::load_matrices(a[t], down(a_rows, S::P, tile_of(tile, t, tiles) * 16, k * 16, lane));
#pragma unroll
    for (int j = 0; j < S::kUnitTiles; ++j) {
      const auto& first = w[j / 2][2 * k];
      const auto& second = w[j / 2][2 * k + 1];
      const int i = j % 2 * 2;
      const uint32_t b0 = gpu::pack(first[i], first[i + 1]), b1 = gpu::pack(second[i], second[i + 1]);
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) gpu::mma(z[t][j], a[t], b0, b1);
    }
  }
}

// The same with factors from `factor(k, j, b)`, which gives those of unit tiles j and j + 1.
template <class S, class Factor>
__device__ __forceinline__ void add_unit_product(OwnProduct<S>& z, const bf16* a_rows, int tile, int tiles, int lane, Factor factor) {
#pragma unroll
  for (int k = 0; k < S::F / 16; ++k) {
    uint32_t a[kAtOnce][4];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) gpu::load_matrices(a[t], down(a_rows, S::P, tile_of(tile, t, tiles) * 16, k * 16, lane));
#pragma unroll
    for (int j = 0; j < S::kUnitTiles; j += 2) {
      uint32_t b[4];
      factor(k, j, b);
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        gpu::mma(z[t][j], a[t], b[0], b[1]);
        gpu::mma(z[t][j + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// w[R, F] += aᵀ · B[16, F] for rows `row`… of B, with aᵀ as fragments.
template <class S>
__device__ __forceinline__ void add_update(Weights<S>& w, const uint32_t (&a)[S::kRowTiles][4], const bf16* b_rows,
                                           int row, int lane) {
#pragma unroll
  for (int n = 0; n < S::F / 16; ++n) {
    uint32_t b[4];
    gpu::load_transposed(b, down(b_rows, S::P, row, n * 16, lane));
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      gpu::mma(w[m][2 * n], a[m], b[0], b[1]);
      gpu::mma(w[m][2 * n + 1], a[m], b[2], b[3]);
    }
  }
}

// Loads aᵀ for `add_update`: rows `row`… and this warp's columns of A.
template <class S>
__device__ __forceinline__ void load_factor(uint32_t (&a)[S::kRowTiles][4], const bf16* a_rows, int pitch, int row,
                                            int unit, int lane) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
    gpu::load_transposed(a[m], along(a_rows, pitch, row, unit + m * 16, lane));
  }
}

// Calls f(accumulator, row, column) for each accumulator of this warp's weights. Rows are units of the layer, from `unit` on.
template <class S, class Body>
__device__ __forceinline__ void each_weight(Weights<S>& w, int unit, const Lane& l, Body f) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(w[m][n][i], unit + m * 16 + l.g + i / 2 * 8, n * 8 + l.c + i % 2);
}

// Stores a word, or a number, at the same place of the shared memory of all blocks.
template <class S>
__device__ __forceinline__ void store_in_all(uint32_t& at, uint32_t v) {
  if constexpr (S::kBlocks == 1) {
    at = v;
  } else {
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) gpu::store4_in_block(&at, block, v);
  }
}
template <class S>
__device__ __forceinline__ void store_in_all(float& at, float v) {
  if constexpr (S::kBlocks == 1) {
    at = v;
  } else {
    store_in_all<S>(reinterpret_cast<uint32_t&>(at), gpu::bits_of(v));
  }
}

// Writes the column sums of z over the 16 rows of this warp's tile, for all blocks.
template <class S>
__device__ __forceinline__ void sum_columns(float* to, const float (&z)[S::kOwnTiles][4], const Lane& l) {
#pragma unroll
  for (int n = 0; n < S::kOwnTiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sum_of_column(z[n][i] + z[n][2 + i]);
      if (l.g == 0) store_in_all<S>(to[n * 8 + l.c + i], sum);
    }
}

// Waits for all threads that share a sequence.
template <class S>
__device__ __forceinline__ void sync_blocks() {
  if constexpr (S::kBlocks == 1) {
    __syncthreads();
  } else {
    gpu::cluster_barrier();
  }
}

// Writes this warp's weights, rounded, into rows of an image.
template <class S>
__device__ __forceinline__ void write_image(bf16* image, int pitch, const Weights<S>& w, const Lane& l) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        word(image + (l.warp * S::R + m * 16 + l.g + h * 8) * pitch + n * 8 + l.c) =
            gpu::pack(w[m][n][2 * h], w[m][n][2 * h + 1]);
      }
}

// The tile of 16 tokens of a warp, and its columns of them. S::kSplit warps share a tile.
template <class S>
struct OwnTile {
  int tile, half, row, column;  // the number of the tile and of the warp in it, the first row and column
  int block;                    // the block of the cluster that normalises the tile

  __device__ explicit OwnTile(const Lane& l)
      : tile(S::kSplit == 1 ? l.warp : l.warp % kMostTiles),
        half(S::kSplit == 1 ? 0 : l.warp / kMostTiles),
        row(tile * 16),
        column(half * S::kOwnTiles * 8),
        block(tile % S::kBlocks) {}
};

// Numbers in the memory where a block receives the sums of others: [own tile, block, column tile, lane, 4].
template <class S>
__host__ __device__ constexpr int numbers_received(int tiles) {
  return S::kBlocks == 1 ? 0 : (tiles + S::kBlocks - 1) / S::kBlocks * S::kBlocks * 16 * S::F;
}

// Adds the sums z[16, …] of a tile over the blocks, for the block that normalises it. All threads of the cluster call this; between two
// calls with the same memory is another barrier of the cluster.
template <class S>
__device__ __forceinline__ void add_of_blocks(float (&z)[S::kOwnTiles][4], float* memory, const OwnTile<S>& own, bool has_tile,
                                              int rank, const Lane& l) {
  if constexpr (S::kBlocks > 1) {
    const auto place = [&](int block, int n) {
      const int column_tile = own.half * S::kOwnTiles + n;
      return memory + ((((own.tile / S::kBlocks) * S::kBlocks + block) * S::kColumnTiles + column_tile) * 32 + l.lane) * 4;
    };
    if (has_tile && own.block != rank) {
#pragma unroll
      for (int n = 0; n < S::kOwnTiles; ++n) {
        const uint4 sums = make_uint4(gpu::bits_of(z[n][0]), gpu::bits_of(z[n][1]), gpu::bits_of(z[n][2]), gpu::bits_of(z[n][3]));
        gpu::store16_in_block(place(rank, n), own.block, sums);
      }
    }
    gpu::cluster_barrier();
    if (has_tile && own.block == rank) {
#pragma unroll
      for (int i = 1; i < S::kBlocks; ++i) {
#pragma unroll
        for (int n = 0; n < S::kOwnTiles; ++n) {
          const uint4 sums = gpu::load16(place((rank + i) % S::kBlocks, n));
          z[n][0] += gpu::float_of(sums.x), z[n][1] += gpu::float_of(sums.y);
          z[n][2] += gpu::float_of(sums.z), z[n][3] += gpu::float_of(sums.w);
        }
      }
    }
  }
}

// Two numbers of each row, from one warp of a tile to the other: [tile, warp, 16, 2].
constexpr int kShared = kMostTiles * 2 * 16 * 2;

// Gives the other warp of the tile two numbers of rows g and g + 8, and takes those of the other warp. Between two calls with the same
// memory is a barrier of the block.
template <class S>
__device__ __forceinline__ void exchange(const float (&mine)[2][2], float (&others)[2][2], float* shared, const OwnTile<S>& own,
                                         const Lane& l) {
  float* rows = shared + own.tile * 64;
  if (l.c == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) rows[own.half * 32 + (l.g + h * 8) * 2 + i] = mine[h][i];
  }
  gpu::barrier(1 + own.tile, 64);
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) others[h][i] = rows[(1 - own.half) * 32 + (l.g + h * 8) * 2 + i];
}

// Adds two sums of each row over the warps of the tile, as `exchange` does.
template <class S>
__device__ __forceinline__ void add_of_tile(float (&sums)[2][2], float* shared, const OwnTile<S>& own, const Lane& l) {
  if constexpr (S::kSplit > 1) {
    float others[2][2];
    exchange<S>(sums, others, shared, own, l);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) sums[h][i] += others[h][i];
  }
}

// Normalises rows g and g + 8 of a tile; inverse[h] is 1/σ of row g + 8h. Two halves with means m and m' and sums of squares around them
// q and q' have the sum of squares q + q' + (m' - m)²·F/4 around their mean, (m + m')/2.
template <class S>
__device__ __forceinline__ void normalize(float (&z)[S::kOwnTiles][4], float (&inverse)[2], float eps, float* shared,
                                          const OwnTile<S>& own, const Lane& l) {
  float mine[2][2], others[2][2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float mean = 0, square = 0;
#pragma unroll
    for (int n = 0; n < S::kOwnTiles; ++n) mean += z[n][2 * h] + z[n][2 * h + 1];
    mean = sum_of_row(mean) / (S::kOwnTiles * 8);
#pragma unroll
    for (int n = 0; n < S::kOwnTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& v = z[n][2 * h + i];
        v -= mean;
        square += v * v;
      }
    mine[h][0] = mean;
    mine[h][1] = sum_of_row(square);
  }
  if constexpr (S::kSplit > 1) exchange<S>(mine, others, shared, own, l);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float square = mine[h][1], shift = 0;
    if constexpr (S::kSplit > 1) {
      const float apart = others[h][0] - mine[h][0];
      square += others[h][1] + apart * apart * (S::F / 4);
      shift = apart / 2;
    }
    inverse[h] = rsqrtf(square / S::F + eps);
#pragma unroll
    for (int n = 0; n < S::kOwnTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) z[n][2 * h + i] = (z[n][2 * h + i] - shift) * inverse[h];
  }
}

// gelu(z) with its first two derivatives.
struct Gelu {
  float value, slope, curve;

  __device__ explicit Gelu(float z) {
    constexpr float kLinear = 0.7978845608028654f, kCubic = 0.044715f;  // √(2/π)
    const float square = z * z, t = gpu::tanh_fast(kLinear * z * (1 + kCubic * square)), sech = 1 - t * t;
    const float inner = kLinear * (1 + 3 * kCubic * square);
    value = 0.5f * z * (1 + t);
    slope = 0.5f * (1 + t) + 0.5f * z * sech * inner;
    curve = sech * inner - z * t * sech * inner * inner + 3 * kLinear * kCubic * square * sech;
  }
};

}  // namespace ttt
