// The backward pass of the TTT scan after the replay of a chunk of groups: the chain and the keys.
//
// The chain goes through the mini-batches of a sequence in reverse, with the gradient of the state in registers, where the
// forward pass has the state. Two products of TTT-MLP do not feed the chain, those of the keys' gradient: another kernel
// computes them for all mini-batches in parallel, from the gradients that the chain leaves in the workspace.
//
// With D1 and D2 the gradients of the weights after the update, d1 and d2 those of the biases, U = G W2ᵀ:
//   dG1 = K D1 + d1, dG = X D2 + d2 + dU W2 with dU = dG1∘gelu'(Z1), dX = G D2ᵀ + dZ W2ᵀ,
//   dZ1 = dX∘gelu'(Z1) + dG1∘U∘gelu''(Z1), dK = G1 D1ᵀ + dZ1 W1ᵀ,
//   and before the update D2 + dUᵀ G + Xᵀ dZ, D1 + Kᵀ dZ1; dZ, dT and dη follow from dG by the inner LayerNorm.

#pragma once

#include "ttt_tiles.h"

namespace ttt {

template <class S>
struct ChainShared {
  bf16 *x, *y, *image, *k, *q, *g, *dz;
  float *outer_bias, *part, *gamma, *beta, *dgamma, *dbeta, *exchanged[4], *sums;  // `sums` from other blocks
  size_t size;

  __host__ __device__ ChainShared(char* base, int tokens) {
    size = 0;
    const auto next = [&](size_t bytes) {
      char* at = base + size;
      size += bytes;
      return at;
    };
    const size_t wide = S::kMlp ? size_t(tokens) * S::PU * 2 : 0, narrow = size_t(tokens) * S::P * 2;
    x = reinterpret_cast<bf16*>(next(wide));
    y = reinterpret_cast<bf16*>(next(wide));
    image = reinterpret_cast<bf16*>(next(size_t(S::kUnits) * S::P * 2));
    for (bf16** tile : {&k, &q, &g, &dz}) *tile = reinterpret_cast<bf16*>(next(narrow));
    for (float** row : {&outer_bias, &gamma, &beta}) *row = reinterpret_cast<float*>(next(S::F * 4));
    for (float** rows : {&part, &dgamma, &dbeta}) *rows = reinterpret_cast<float*>(next(tokens / 16 * S::F * 4));
    for (float*& numbers : exchanged) numbers = reinterpret_cast<float*>(next(S::kSplit > 1 ? kShared * 4 : 0));
    sums = reinterpret_cast<float*>(next(numbers_received<S>(tokens / 16) * 4));
  }
};

// One block, or one cluster of blocks, per sequence. Chunks come from the last to the first; `carried` joins them.
template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) ttt_chain(const Shape shape, const Inputs in, const Workspace work,
                                                            const Chunk chunk, const Grads grads) {
  if constexpr (S::kBlocks > gpu::kMostBlocks) return;
  constexpr int F = S::F, U = S::U, P = S::P, PU = S::PU, R = S::R;
  const Lane l;
  const OwnTile<S> own(l);
  const int sequence = blockIdx.x / S::kBlocks, rank = blockIdx.x % S::kBlocks, head = sequence % shape.heads;
  // The warp's first unit, of those of the block and of all.
  const int unit = l.warp * R, layer_unit = rank * S::kUnits + unit;
  const int tokens = shape.mini_batch, tiles = tokens / 16, row = own.row, batches = shape.length / tokens;
  const bool owns = l.warp < S::kOwners, has_tile = own.tile < tiles, normalizes = has_tile && own.block == rank;
  const Places<S> places(layer_unit, l.thread, l.lane);
  const int groups = (batches + shape.group - 1) / shape.group;
  const int first = chunk.first_group * shape.group, span = chunk.groups * shape.group;
  const int last = first + span < batches ? first + span : batches;
  const bool starts = chunk.first_group + chunk.groups == groups, ends = chunk.first_group == 0;
  const ChainShared<S> s(gpu::shared_memory(), tokens);
  const Kept<S> layout(tokens);

  Weights<S> inner, outer;  // D1ᵀ and D2
  float inner_bias[S::kUnitTiles][2];
  const auto each_inner_bias = [&](auto f) {
#pragma unroll
    for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) f(inner_bias[j][i], layer_unit + j * 8 + l.c + i);
  };
  float* carried = work.carried + int64_t(sequence) * S::kState;
  float* carried_biases = carried + (S::kMlp ? 2 : 1) * S::kWeights;
  const auto each_carried = [&](auto f) {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = places.weight(m, n, i);
          f(outer[m][n][i], carried[at]);
          if constexpr (S::kMlp) f(inner[m][n][i], carried[S::kWeights + at]);
        }
  };
  if (owns) {
    each_carried([&](float& d, const float& kept) { d = starts ? 0 : kept; });
    if (S::kMlp) each_inner_bias([&](float& d, int u) { d = starts ? 0 : carried_biases[F + u]; });
  }
  if (l.thread < F) {
    s.outer_bias[l.thread] = starts ? 0 : carried_biases[l.thread];
    s.gamma[l.thread] = in.gamma[head * F + l.thread];
    s.beta[l.thread] = in.beta[head * F + l.thread];
  }
  for (int i = l.thread; i < tiles * F; i += S::kThreads) s.dgamma[i] = s.dbeta[i] = 0;

  const auto token_at = [&](int batch) { return int64_t(sequence) * shape.length + int64_t(batch) * tokens; };
  const auto wide_at = [&](int tile, int j, int h, int pitch) {
    return (tile * 16 + l.g + h * 8) * pitch + unit + j * 8 + l.c;
  };

  // Loads this thread's pairs of a tile at once: a load after a store to the workspace would wait for it.
  const auto load_pairs = [&](uint32_t (&to)[S::kUnitTiles][2], size_t part, const char* kept, int tile) {
#pragma unroll
    for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) to[j][h] = reinterpret_cast<const uint32_t*>(kept + part)[places.pair(tile, j, h)];
  };
  const auto column_at = [&](int n) { return own.column + n * 8 + l.c; };

  if constexpr (S::kBlocks > 1) gpu::cluster_barrier();  // All blocks have started.
  for (int batch = last - 1; batch >= first; --batch) {
    char* kept = work.kept + (int64_t(sequence) * span + batch - first) * layout.size;
    bf16* kept_x = reinterpret_cast<bf16*>(kept + layout.x);
    const uint32_t* packed = reinterpret_cast<const uint32_t*>(kept + layout.outer);  // W2 before the update
    const auto packed_at = [&](int m, int n, int h) { return packed[places.rounded(m, n, h)]; };
    __syncthreads();  // The last mini-batch is finished with all buffers.
    // Bring what the replay left for the next mini-batch into the L2 cache, which answers sooner than memory.
    if (batch > first) {
      const auto prefetch = [&](const void* from, size_t bytes) {
        constexpr int kLine = 128;
        constexpr int kThreads = S::kBlocks * S::kThreads;
        for (size_t at = size_t(rank * S::kThreads + l.thread) * kLine; at < bytes; at += size_t(kThreads) * kLine) {
          gpu::prefetch(static_cast<const char*>(from) + at);
        }
      };
      const int64_t token = token_at(batch - 1);
      prefetch(kept - layout.size, layout.size);
      for (const bf16* rows : {in.q, in.k, in.target}) prefetch(rows + token * F, size_t(tokens) * F * 2);
    }
    const auto fetch_narrow = [&](bf16* to, const void* from) {
      fetch<F>(to, P, static_cast<const bf16*>(from), tokens, l.thread, S::kThreads);
    };
    fetch_narrow(s.q, in.q + token_at(batch) * F);
    fetch_narrow(s.dz, kept + layout.dzq);
    gpu::copy_commit();
    fetch_narrow(s.k, in.k + token_at(batch) * F);
    fetch_narrow(s.g, kept + layout.g);
    if constexpr (S::kMlp) fetch<S::kUnits, U>(s.x, PU, kept_x + rank * S::kUnits, tokens, l.thread, S::kThreads);
    gpu::copy_commit();
    if constexpr (S::kMlp) {
      if (owns) {
#pragma unroll
        for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) word(s.image + (unit + m * 16 + l.g + h * 8) * P + n * 8 + l.c) = packed_at(m, n, h);
      }
    }
    gpu::copy_wait<1>();
    __syncthreads();  // The queries and the gradient of their Z2 have arrived.

    // The gradient of the weights after the update: the output of this mini-batch contributes.
    if (owns) {
      for (int tile = 0; tile < tiles; ++tile) {
        uint32_t a[S::kRowTiles][4];
        if constexpr (S::kMlp) {
          const auto load = [&](size_t part) {
#pragma unroll
            for (int m = 0; m < S::kRowTiles; ++m) {
              const uint4 v = reinterpret_cast<const uint4*>(kept + part)[places.fragment(tile, m)];
              a[m][0] = v.x, a[m][1] = v.y, a[m][2] = v.z, a[m][3] = v.w;
            }
          };
          load(layout.xq);
          add_update<S>(outer, a, s.dz, tile * 16, l.lane);
          load(layout.dzq1);
          add_update<S>(inner, a, s.q, tile * 16, l.lane);
        } else {
          load_factor<S>(a, s.q, P, tile * 16, unit, l.lane);
          add_update<S>(outer, a, s.dz, tile * 16, l.lane);
        }
      }
      if constexpr (S::kMlp) {
        const float* sums = reinterpret_cast<const float*>(kept + layout.sum1);
        each_inner_bias([&](float& d, int u) { d += sums[u]; });
      }
    }
    if (l.thread < F) {
      const float* sums = reinterpret_cast<const float*>(kept + layout.sum2);
      for (int tile = 0; tile < tiles; ++tile) s.outer_bias[l.thread] += sums[tile * F + l.thread];
    }
    gpu::copy_wait<0>();
    __syncthreads();  // The keys, G and X have arrived; d2 is complete.

    if constexpr (S::kMlp) {
      if (owns) {
        for (int tile = 0; tile < tiles; tile += kAtOnce) {
          OwnProduct<S> d;
#pragma unroll
          for (int t = 0; t < kAtOnce; ++t)
#pragma unroll
            for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
              for (int i = 0; i < 4; ++i) d[t][j][i] = inner_bias[j][i % 2];
          add_own_product<S>(d, s.k, tile, tiles, inner, l.lane);
#pragma unroll
          for (int t = 0; t < kAtOnce; ++t) {
            if (tile + t >= tiles) continue;
            uint32_t slope[S::kUnitTiles][2], curve[S::kUnitTiles][2];
            load_pairs(slope, layout.slope, kept, tile + t);
            load_pairs(curve, layout.curve, kept, tile + t);
#pragma unroll
            for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                const float d0 = d[t][j][2 * h], d1 = d[t][j][2 * h + 1];
                word(s.y + wide_at(tile + t, j, h, PU)) = gpu::pack(d0 * low(slope[j][h]), d1 * high(slope[j][h]));
                reinterpret_cast<uint32_t*>(kept + layout.curve)[places.pair(tile + t, j, h)] =
                    gpu::pack(d0 * low(curve[j][h]), d1 * high(curve[j][h]));
              }
          }
        }
        write_image<S>(reinterpret_cast<bf16*>(kept + layout.dinner) + rank * S::kUnits * F, F, inner, l);
      }
      __syncthreads();  // dU and the image of W2 are complete.
    }
    float z[S::kOwnTiles][4];
    if (has_tile) {
#pragma unroll
      for (int n = 0; n < S::kOwnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) z[n][i] = normalizes ? s.outer_bias[column_at(n) + i % 2] : 0;
      if constexpr (S::kMlp) add_product<S>(z, s.y, PU, row, s.image, own.column, l.lane);
    }
    if constexpr (S::kMlp) __syncthreads();  // All warps have read the image of W2.
    if (owns) write_image<S>(s.image, P, outer, l);
    __syncthreads();  // The image of D2 is complete.

    // From dG to dZ, dT and dη.
    if (has_tile) add_product<S>(z, S::kMlp ? s.x : s.k, S::kMlp ? PU : P, row, s.image, own.column, l.lane);
    add_of_blocks<S>(z, s.sums, own, has_tile, rank, l);
    if (normalizes) {
      // x̂, the output of the inner LayerNorm minus the target, and sums over the rows; of rows g and g + 8.
      float hats[2][S::kOwnTiles][2], residuals[2][S::kOwnTiles][2], inverses[2], etas[2], sums[2][2];
      // Calls f(h, d, x̂, residual, column) for each number of the rows.
      const auto each = [&](int h, auto f) {
#pragma unroll
        for (int n = 0; n < S::kOwnTiles; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) f(z[n][2 * h + i], hats[h][n][i], residuals[h][n][i], column_at(n) + i);
      };
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + l.g + h * 8;
        const int64_t token = token_at(batch) + r;
        inverses[h] = reinterpret_cast<const float*>(kept + layout.inverse)[r];
        etas[h] = in.eta[token];
        const int place = own.tile * S::kColumnTiles * 4 + own.half * S::kOwnTiles * 4 + 2 * h;
        const float* from = reinterpret_cast<const float*>(kept + layout.hat) + place * 32 + l.lane;
#pragma unroll
        for (int n = 0; n < S::kOwnTiles; ++n) {
          const uint32_t target = word(in.target + token * F + column_at(n));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int at = column_at(n) + i;
            hats[h][n][i] = from[(n * 4 + i) * 32];
            residuals[h][n][i] = s.gamma[at] * hats[h][n][i] + s.beta[at] - half_of(target, i);
          }
        }
        float mean = 0, projection = 0;
        each(h, [&](float, float hat, float residual, int at) {
          const float gradient = residual * s.gamma[at];
          mean += gradient;
          projection += gradient * hat;
        });
        sums[h][0] = sum_of_row(mean);
        sums[h][1] = sum_of_row(projection);
      }
      add_of_tile<S>(sums, s.exchanged[0], own, l);
      // g2 = (gradient - mean - x̂ projection)/σ, G = -η g2.
      float projections[2], detas[2][2] = {}, of_d[2][2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float mean = sums[h][0] / F, projection = sums[h][1] / F;
        projections[h] = projection;
        float deta = 0, mean_d = 0, projection_d = 0;
        each(h, [&](float d, float hat, float residual, int at) {
          deta -= d * (residual * s.gamma[at] - mean - hat * projection) * inverses[h];
          const float dhat = -etas[h] * d * inverses[h];
          mean_d += dhat;
          projection_d += dhat * hat;
        });
        detas[h][0] = sum_of_row(deta);
        of_d[h][0] = sum_of_row(mean_d);
        of_d[h][1] = sum_of_row(projection_d);
      }
      add_of_tile<S>(detas, s.exchanged[1], own, l);
      add_of_tile<S>(of_d, s.exchanged[2], own, l);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t token = token_at(batch) + row + l.g + h * 8;
        const float mean_d = of_d[h][0] / F, projection_d = of_d[h][1] / F;
        if (l.c == 0 && own.half == 0) grads.eta[token] = detas[h][0];
        float mean_x = 0, projection_x = 0;
        each(h, [&](float& d, float hat, float residual, int at) {
          const float gain = s.gamma[at], dhat = -etas[h] * d * inverses[h], dgradient = dhat - mean_d - hat * projection_d;
          const float dy = dgradient * gain, dgamma = sum_of_column(dgradient * residual + dy * hat);
          const float dbeta = sum_of_column(dy);
          if (l.g == 0) {
            s.dgamma[own.tile * F + at] += dgamma;
            s.dbeta[own.tile * F + at] += dbeta;
          }
          grads.target[token * F + at] = static_cast<bf16>(gpu::pack(-dy, 0));
          d = dy * gain - projections[h] * dhat - residual * gain * projection_d;
          mean_x += d;
          projection_x += d * hat;
        });
        sums[h][0] = sum_of_row(mean_x);
        sums[h][1] = sum_of_row(projection_x);
      }
      add_of_tile<S>(sums, s.exchanged[3], own, l);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + l.g + h * 8;
        const float mean_x = sums[h][0] / F, projection_x = sums[h][1] / F, dsigma = etas[h] * -detas[h][0] * inverses[h];
        each(h, [&](float& d, float hat, float, int) {
          d = (d - mean_x - hat * projection_x) * inverses[h] + dsigma * hat / F;
        });
#pragma unroll
        for (int n = 0; n < S::kOwnTiles; ++n) {
          store_in_all<S>(word(s.dz + r * P + column_at(n)), gpu::pack(z[n][2 * h], z[n][2 * h + 1]));
        }
      }
      sum_columns<S>(s.part + own.tile * F + own.column, z, l);
    }
    sync_blocks<S>();  // dZ is complete.

    // The gradient of the weights before the update.
    if (l.thread < F) {
      for (int tile = 0; tile < tiles; ++tile) s.outer_bias[l.thread] += s.part[tile * F + l.thread];
    }
    if (owns) {
      for (int tile = 0; tile < tiles; ++tile) {
        uint32_t a[S::kRowTiles][4];
        if constexpr (S::kMlp) {
          load_factor<S>(a, s.y, PU, tile * 16, unit, l.lane);
          add_update<S>(outer, a, s.g, tile * 16, l.lane);
        }
        load_factor<S>(a, S::kMlp ? s.x : s.k, S::kMlp ? PU : P, tile * 16, unit, l.lane);
        add_update<S>(outer, a, s.dz, tile * 16, l.lane);
      }
      if constexpr (S::kMlp) __syncwarp();  // The warp has read dU.
      float sums[S::kUnitTiles][2] = {};
      for (int tile = 0; tile < tiles; tile += kAtOnce) {
        // dX = G D2ᵀ + dZ W2ᵀ; it is dK for the linear kind.
        OwnProduct<S> d = {};
        add_unit_product<S>(d, s.g, tile, tiles, l.lane, [&](int k, int j, uint32_t(&b)[4]) {
          gpu::load_matrices(b, along(s.image, P, unit + j * 8, k * 16, l.lane));
        });
        add_unit_product<S>(d, s.dz, tile, tiles, l.lane, [&](int k, int j, uint32_t(&b)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) b[i] = packed_at(j / 2, 2 * k + i % 2, i / 2);
        });
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) {
          if (tile + t >= tiles) continue;
          if constexpr (S::kMlp) {
            uint32_t slope[S::kUnitTiles][2], curve[S::kUnitTiles][2];
            load_pairs(slope, layout.slope, kept, tile + t);
            load_pairs(curve, layout.curve, kept, tile + t);
#pragma unroll
            for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                const float d0 = d[t][j][2 * h] * low(slope[j][h]) + low(curve[j][h]);
                const float d1 = d[t][j][2 * h + 1] * high(slope[j][h]) + high(curve[j][h]);
                sums[j][0] += d0;
                sums[j][1] += d1;
                const uint32_t dz1 = gpu::pack(d0, d1);
                word(s.y + wide_at(tile + t, j, h, PU)) = dz1;
                word(kept_x + rank * S::kUnits + wide_at(tile + t, j, h, U)) = dz1;
              }
          } else {
#pragma unroll
            for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                word(grads.k + token_at(batch) * F + wide_at(tile + t, j, h, F)) = gpu::pack(d[t][j][2 * h], d[t][j][2 * h + 1]);
              }
          }
        }
      }
      if constexpr (S::kMlp) {
#pragma unroll
        for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) inner_bias[j][i] += sum_of_column(sums[j][i]);
        __syncwarp();  // dZ1 is complete in this warp's columns.
        for (int tile = 0; tile < tiles; ++tile) {
          uint32_t a[S::kRowTiles][4];
          load_factor<S>(a, s.y, PU, tile * 16, unit, l.lane);
          add_update<S>(inner, a, s.k, tile * 16, l.lane);
        }
      }
    }
  }

  if (owns) {
    if (!ends) {
      each_carried([](const float& d, float& kept) { kept = d; });
      if (S::kMlp && l.g == 0) each_inner_bias([&](const float& d, int u) { carried_biases[F + u] = d; });
    } else {
      float* outer_weight = grads.outer_weight + int64_t(sequence) * U * F;
      each_weight<S>(outer, layer_unit, l, [&](float& d, int u, int f) { outer_weight[u * F + f] = d; });
      if constexpr (S::kMlp) {
        float* inner_weight = grads.inner_weight + int64_t(sequence) * F * U;
        each_weight<S>(inner, layer_unit, l, [&](float& d, int u, int f) { inner_weight[f * U + u] = d; });
        if (l.g == 0) each_inner_bias([&](float& d, int u) { grads.inner_bias[int64_t(sequence) * U + u] = d; });
      }
    }
  }
  if constexpr (S::kBlocks > 1) {
    // The first block adds the rows of all tiles.
    for (int i = l.thread; i < tiles * F; i += S::kThreads) {
      if (rank == 0 || i / F % S::kBlocks != rank) continue;
      gpu::store4_in_block(s.dgamma + i, 0, gpu::bits_of(s.dgamma[i]));
      gpu::store4_in_block(s.dbeta + i, 0, gpu::bits_of(s.dbeta[i]));
    }
    gpu::cluster_barrier();
  }
  // The last barrier of the loop is after the last sum.
  if (rank == 0 && l.thread < F) {
    (ends ? grads.outer_bias + int64_t(sequence) * F : carried_biases)[l.thread] = s.outer_bias[l.thread];
    float dgamma = starts ? 0 : grads.gamma[int64_t(sequence) * F + l.thread];
    float dbeta = starts ? 0 : grads.beta[int64_t(sequence) * F + l.thread];
    for (int tile = 0; tile < tiles; ++tile) {
      dgamma += s.dgamma[tile * F + l.thread];
      dbeta += s.dbeta[tile * F + l.thread];
    }
    for (int group = 0; group < chunk.groups; ++group) {
      const float* norm = work.norm + (int64_t(sequence) * chunk.groups + group) * 2 * F;
      dgamma += norm[l.thread];
      dbeta += norm[F + l.thread];
    }
    grads.gamma[int64_t(sequence) * F + l.thread] = dgamma;
    grads.beta[int64_t(sequence) * F + l.thread] = dbeta;
  }
}

template <class S>
struct KeysShared {
  bf16 *rows, *image;
  size_t size;

  __host__ __device__ KeysShared(char* base, int tokens) {
    rows = reinterpret_cast<bf16*>(base);
    image = rows + tokens * S::PU;
    size = (size_t(tokens) * S::PU + size_t(S::U) * S::P) * sizeof(bf16);
  }
};

constexpr int kKeysThreads = 128;

// dK = G1 D1ᵀ + dZ1 W1ᵀ of TTT-MLP. One block of four warps per sequence and mini-batch of the chunk.
template <class S>
__global__ void __launch_bounds__(kKeysThreads) ttt_keys(const Shape shape, const Workspace work, const Chunk chunk,
                                                const Grads grads) {
  const Lane l;
  const int tokens = shape.mini_batch, first = chunk.first_group * shape.group, span = chunk.groups * shape.group;
  const int sequence = blockIdx.x, batch = first + blockIdx.y, row = l.warp * 16;
  const bool has_tile = row < tokens;
  const Kept<S> layout(tokens);
  const char* kept = work.kept + (int64_t(sequence) * span + blockIdx.y) * layout.size;
  const KeysShared<S> s(gpu::shared_memory(), tokens);
  float d[S::kColumnTiles][4] = {};
  for (int product = 0; product < 2; ++product) {
    __syncthreads();  // All warps have read the factors of the last product.
    const auto* wide = reinterpret_cast<const bf16*>(kept + (product ? layout.x : layout.g1));
    const auto* weights = reinterpret_cast<const bf16*>(kept + (product ? layout.inner : layout.dinner));
    fetch<S::U>(s.rows, S::PU, wide, tokens, l.thread, kKeysThreads);
    fetch<S::F>(s.image, S::P, weights, S::U, l.thread, kKeysThreads);
    gpu::copy_commit();
    gpu::copy_wait<0>();
    __syncthreads();  // The factors have arrived.
    if (has_tile) add_product<S>(d, s.rows, S::PU, row, s.image, 0, l.lane);
  }
  if (has_tile) {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t token = int64_t(sequence) * shape.length + int64_t(batch) * tokens + row + l.g + h * 8;
        word(grads.k + token * S::F + n * 8 + l.c) = gpu::pack(d[n][2 * h], d[n][2 * h + 1]);
      }
  }
}

}  // namespace ttt
