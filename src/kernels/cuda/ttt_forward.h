// The forward pass of the TTT scan, and its replay for the backward pass. One block, or a cluster of blocks in the forward pass, computes
// one sequence; one block replays one group of mini-batches of a sequence.
//
// The state stays in registers: warp w has rows R·w… of the outer weights and of the transposed inner weights. The
// products that sum over all units read a bf16 image of the weights in shared memory; one warp, or two that share the columns, compute
// 16 rows of them and their LayerNorm. Both kinds of work alternate, with a barrier between them.
//
// The blocks of a cluster divide the units, and each sums the products over its own. The sums of a tile of 16 tokens go to the block that
// normalises the tile; that block sends the tile of G to all.

#pragma once

#include "ttt_tiles.h"

namespace ttt {

template <class S>
struct ForwardShared {
  bf16 *x, *slope, *image, *k, *q, *t, *g;  // k holds two mini-batches
  float *eta, *outer_bias, *part, *gamma, *beta, *dgamma, *dbeta, *of_norm, *of_gradient;
  float *key_sums, *query_sums;  // from other blocks; one memory for both would be written before it is read
  size_t size;

  __host__ __device__ ForwardShared(char* base, int tokens) {
    size = 0;
    const auto next = [&](size_t bytes) {
      char* at = base + size;
      size += bytes;
      return at;
    };
    const size_t wide = S::kMlp ? size_t(tokens) * S::PU * 2 : 0, narrow = size_t(tokens) * S::P * 2;
    x = reinterpret_cast<bf16*>(next(wide));
    slope = reinterpret_cast<bf16*>(next(wide));
    image = reinterpret_cast<bf16*>(next(size_t(S::kUnits) * S::P * 2));
    k = reinterpret_cast<bf16*>(next(2 * narrow));
    for (bf16** tile : {&q, &t, &g}) *tile = reinterpret_cast<bf16*>(next(narrow));
    eta = reinterpret_cast<float*>(next(tokens * 4));
    for (float** row : {&outer_bias, &gamma, &beta}) *row = reinterpret_cast<float*>(next(S::F * 4));
    for (float** rows : {&part, &dgamma, &dbeta}) *rows = reinterpret_cast<float*>(next(tokens / 16 * S::F * 4));
    for (float** numbers : {&of_norm, &of_gradient}) *numbers = reinterpret_cast<float*>(next(S::kSplit > 1 ? kShared * 4 : 0));
    for (float** sums : {&key_sums, &query_sums}) *sums = reinterpret_cast<float*>(next(numbers_received<S>(tokens / 16) * 4));
  }
};

// The forward pass writes `out`, and every `group` mini-batches the state, unless `saved` is null. The replay starts from
// saved states and fills `kept`, `norm` and the gradient of the queries.
struct ForwardResults {
  bf16* out;
  float* saved;
};
struct ReplayResults {
  Workspace work;
  Chunk chunk;
  const bf16* grad_out;
  Grads grads;
};

template <class S, class Results>
__global__ void __launch_bounds__(S::kThreads, 1) ttt_scan(const Shape shape, const Inputs in, const Results results) {
  if constexpr (S::kBlocks > gpu::kMostBlocks) return;
  constexpr bool kReplay = sizeof(Results) == sizeof(ReplayResults);
  static_assert(!kReplay || S::kBlocks == 1, "groups are replayed in parallel, so that clusters are not needed");
  constexpr int F = S::F, U = S::U, P = S::P, PU = S::PU, R = S::R;
  const Lane l;
  const OwnTile<S> own(l);
  const int sequence = blockIdx.x / S::kBlocks, rank = blockIdx.x % S::kBlocks, head = sequence % shape.heads;
  // The warp's first unit, of those of the block and of all.
  const int unit = l.warp * R, layer_unit = rank * S::kUnits + unit;
  const int tokens = shape.mini_batch, tiles = tokens / 16, row = own.row;
  const bool owns = l.warp < S::kOwners, has_tile = own.tile < tiles, normalizes = has_tile && own.block == rank;
  const int batches = shape.length / tokens, groups = (batches + shape.group - 1) / shape.group;
  const Places<S> places(layer_unit, l.thread, l.lane);
  const ForwardShared<S> s(gpu::shared_memory(), tokens);
  const Kept<S> layout(tokens);
  int first = 0, last = batches;
  if constexpr (kReplay) {
    first = (results.chunk.first_group + blockIdx.y) * shape.group;
    last = first + shape.group < batches ? first + shape.group : batches;
  }

  Weights<S> inner, outer;
  float inner_bias[S::kUnitTiles][2];
  const auto each_inner_bias = [&](auto f) {
#pragma unroll
    for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) f(inner_bias[j][i], layer_unit + j * 8 + l.c + i);
  };
  // A saved state: outer accumulators by thread, inner accumulators by thread, biases.
  const auto state_at = [&](auto* states, int group) { return states + (int64_t(sequence) * groups + group) * S::kState; };
  const auto each_saved = [&](auto* at, auto f) {
    if (owns) {
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            f(outer[m][n][i], at[places.weight(m, n, i)]);
            if constexpr (S::kMlp) f(inner[m][n][i], at[S::kWeights + places.weight(m, n, i)]);
          }
    }
  };
  if (l.thread < F) {
    s.gamma[l.thread] = in.gamma[head * F + l.thread];
    s.beta[l.thread] = in.beta[head * F + l.thread];
  }
  if constexpr (kReplay) {
    const float* from = state_at(results.work.saved, first / shape.group);
    each_saved(from, [](float& w, const float& kept) { w = kept; });
    const float* biases = from + (S::kMlp ? 2 : 1) * S::kWeights;
    if (S::kMlp && owns) each_inner_bias([&](float& b, int u) { b = biases[F + u]; });
    if (l.thread < F) s.outer_bias[l.thread] = biases[l.thread];
    for (int i = l.thread; i < tiles * F; i += S::kThreads) s.dgamma[i] = s.dbeta[i] = 0;
  } else {
    if (owns) {
      each_weight<S>(outer, layer_unit, l, [&](float& w, int u, int f) { w = in.outer_weight[(head * U + u) * F + f]; });
      if constexpr (S::kMlp) {
        each_weight<S>(inner, layer_unit, l, [&](float& w, int u, int f) { w = in.inner_weight[(head * F + f) * U + u]; });
        each_inner_bias([&](float& b, int u) { b = in.inner_bias[head * U + u]; });
      }
      write_image<S>(s.image, P, outer, l);
    }
    if (l.thread < F) s.outer_bias[l.thread] = in.outer_bias[head * F + l.thread];
  }

  // The first token of a mini-batch in the whole input.
  const auto token_at = [&](int batch) { return int64_t(sequence) * shape.length + int64_t(batch) * tokens; };
  const auto fetch_tokens = [&](bf16* to, const bf16* from, int batch) {
    fetch<F>(to, P, from + token_at(batch) * F, tokens, l.thread, S::kThreads);
  };
  // z = rows of `x` through the outer layer. The column of z[n] in a thread.
  float z[S::kOwnTiles][4], inverse[2];
  const auto column_at = [&](int n) { return own.column + n * 8 + l.c; };
  const auto outer_layer = [&](const bf16* x, float* sums) {
    if (has_tile) {
#pragma unroll
      for (int n = 0; n < S::kOwnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) z[n][i] = normalizes ? s.outer_bias[column_at(n) + i % 2] : 0;
      add_product<S>(z, x, S::kMlp ? PU : P, row, s.image, own.column, l.lane);
    }
    add_of_blocks<S>(z, sums, own, has_tile, rank, l);
  };
  // All tiles times this warp's weights: f(two products, tile, j, h) for each pair of units, on sums that start with `bias`.
  const auto each_own_product = [&](const bf16* x, const Weights<S>& w, auto bias, auto f) {
    for (int tile = 0; tile < tiles; tile += kAtOnce) {
      OwnProduct<S> u;
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t)
#pragma unroll
        for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) u[t][j][i] = bias(j, i % 2);
      add_own_product<S>(u, x, tile, tiles, w, l.lane);
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        if (tile + t >= tiles) continue;
#pragma unroll
        for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h) f(u[t][j][2 * h], u[t][j][2 * h + 1], tile + t, j, h);
      }
    }
  };
  const auto without_bias = [](int, int) { return 0.0f; };
  const auto with_inner_bias = [&](int j, int i) { return inner_bias[j][i]; };
  // The place of this thread's pair of units in wide arrays, which have rows of `pitch`.
  const auto wide_at = [&](int tile, int j, int h, int pitch) {
    return (tile * 16 + l.g + h * 8) * pitch + unit + j * 8 + l.c;
  };

  const auto keys_at = [&](int batch) { return s.k + batch % 2 * tokens * P; };
  fetch_tokens(keys_at(first), in.k, first);
  gpu::copy_commit();
  if constexpr (S::kBlocks > 1) gpu::cluster_barrier();  // All blocks have started.
  for (int batch = first; batch < last; ++batch) {
    const bf16* k = keys_at(batch);
    char* kept = nullptr;
    if constexpr (kReplay) {
      const int64_t span = int64_t(results.chunk.groups) * shape.group;
      kept = results.work.kept + (sequence * span + batch - results.chunk.first_group * shape.group) * layout.size;
    } else if (results.saved != nullptr && batch % shape.group == 0) {
      float* to = state_at(results.saved, batch / shape.group);
      each_saved(to, [](const float& w, float& saved) { saved = w; });
      float* biases = to + (S::kMlp ? 2 : 1) * S::kWeights;
      if (rank == 0 && l.thread < F) biases[l.thread] = s.outer_bias[l.thread];
      if (S::kMlp && owns && l.g == 0) each_inner_bias([&](const float& b, int u) { biases[F + u] = b; });
    }
    gpu::copy_wait<0>();
    __syncthreads();  // The keys have arrived; the last mini-batch is finished with all buffers.
    fetch_tokens(s.t, in.target, batch);
    fetch_tokens(s.q, in.q, batch);
    for (int i = l.thread; i < tokens / 4; i += S::kThreads) {
      gpu::copy16(s.eta + i * 4, in.eta + token_at(batch) + i * 4);
    }
    gpu::copy_commit();
    if (batch + 1 < last) fetch_tokens(keys_at(batch + 1), in.k, batch + 1);
    gpu::copy_commit();

    // X = gelu(K W1 + b1).
    if (owns) {
      if constexpr (kReplay) {
        write_image<S>(s.image, P, outer, l);
        uint32_t* packed = reinterpret_cast<uint32_t*>(kept + layout.outer);
#pragma unroll
        for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              packed[places.rounded(m, n, h)] = gpu::pack(outer[m][n][2 * h], outer[m][n][2 * h + 1]);
            }
        if constexpr (S::kMlp) write_image<S>(reinterpret_cast<bf16*>(kept + layout.inner), F, inner, l);
      }
      if constexpr (S::kMlp) {
        each_own_product(k, inner, with_inner_bias, [&](float z0, float z1, int tile, int j, int h) {
          const Gelu a(z0), b(z1);
          const uint32_t x = gpu::pack(a.value, b.value), slope = gpu::pack(a.slope, b.slope);
          word(s.x + wide_at(tile, j, h, PU)) = x;
          word(s.slope + wide_at(tile, j, h, PU)) = slope;
          if constexpr (kReplay) {
            word(reinterpret_cast<bf16*>(kept + layout.x) + wide_at(tile, j, h, U)) = x;
            reinterpret_cast<uint32_t*>(kept + layout.slope)[places.pair(tile, j, h)] = slope;
            reinterpret_cast<uint32_t*>(kept + layout.curve)[places.pair(tile, j, h)] = gpu::pack(a.curve, b.curve);
          }
        });
      }
    }
    gpu::copy_wait<1>();
    __syncthreads();  // X, the image, targets, queries and rates are complete.

    // G = -η∘g2.
    outer_layer(S::kMlp ? s.x : k, s.key_sums);
    if (normalizes) {
      normalize<S>(z, inverse, shape.eps, s.of_norm, own, l);
      float gradient[2][S::kOwnTiles][2], sums[2][2];  // sums: of the gradient, and of its product with x̂
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + l.g + h * 8;
        float mean = 0, projection = 0;
#pragma unroll
        for (int n = 0; n < S::kOwnTiles; ++n) {
          const int at = column_at(n);
          const uint32_t target = word(s.t + r * P + at);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float gain = s.gamma[at + i], hat = z[n][2 * h + i];
            const float v = (gain * hat + s.beta[at + i] - half_of(target, i)) * gain;
            gradient[h][n][i] = v;
            mean += v;
            projection += v * hat;
            if constexpr (kReplay) {
              const int place = own.tile * S::kColumnTiles * 4 + (own.half * S::kOwnTiles + n) * 4 + 2 * h + i;
              reinterpret_cast<float*>(kept + layout.hat)[place * 32 + l.lane] = hat;
            }
          }
        }
        sums[h][0] = sum_of_row(mean);
        sums[h][1] = sum_of_row(projection);
      }
      add_of_tile<S>(sums, s.of_gradient, own, l);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + l.g + h * 8;
        const float mean = sums[h][0] / F, projection = sums[h][1] / F, scale = -s.eta[r] * inverse[h];
#pragma unroll
        for (int n = 0; n < S::kOwnTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& v = z[n][2 * h + i];
            v = (gradient[h][n][i] - mean - v * projection) * scale;
          }
          const uint32_t rounded = gpu::pack(z[n][2 * h], z[n][2 * h + 1]);
          store_in_all<S>(word(s.g + r * P + column_at(n)), rounded);
          if constexpr (kReplay) word(reinterpret_cast<bf16*>(kept + layout.g) + r * F + column_at(n)) = rounded;
        }
        if constexpr (kReplay) {
          if (l.c == 0 && own.half == 0) reinterpret_cast<float*>(kept + layout.inverse)[r] = inverse[h];
        }
      }
      sum_columns<S>(s.part + own.tile * F + own.column, z, l);
    }
    sync_blocks<S>();  // G is complete.

    // The update of all weights, and the query's X.
    if (l.thread < F) {
      for (int tile = 0; tile < tiles; ++tile) s.outer_bias[l.thread] += s.part[tile * F + l.thread];
    }
    if (owns) {
      if constexpr (S::kMlp) {
        // G1 = (G W2ᵀ)∘gelu'(Z1), in the place of gelu'(Z1).
        float sums[S::kUnitTiles][2] = {};
        each_own_product(s.g, outer, without_bias, [&](float u0, float u1, int tile, int j, int h) {
          uint32_t& place = word(s.slope + wide_at(tile, j, h, PU));
          const float v0 = u0 * low(place), v1 = u1 * high(place);
          sums[j][0] += v0;
          sums[j][1] += v1;
          place = gpu::pack(v0, v1);
          if constexpr (kReplay) {
            word(reinterpret_cast<bf16*>(kept + layout.g1) + wide_at(tile, j, h, U)) = place;
            uint32_t& curve = reinterpret_cast<uint32_t*>(kept + layout.curve)[places.pair(tile, j, h)];
            curve = gpu::pack(u0 * low(curve), u1 * high(curve));
          }
        });
#pragma unroll
        for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) inner_bias[j][i] += sum_of_column(sums[j][i]);
        __syncwarp();  // G1 is complete in this warp's columns.
      }
      for (int tile = 0; tile < tiles; ++tile) {
        uint32_t a[S::kRowTiles][4];
        load_factor<S>(a, S::kMlp ? s.x : k, S::kMlp ? PU : P, tile * 16, unit, l.lane);
        add_update<S>(outer, a, s.g, tile * 16, l.lane);
        if constexpr (S::kMlp) {
          load_factor<S>(a, s.slope, PU, tile * 16, unit, l.lane);
          add_update<S>(inner, a, k, tile * 16, l.lane);
        }
      }
      write_image<S>(s.image, P, outer, l);
      if constexpr (S::kMlp) {
        __syncwarp();  // The warp has read X and G1.
        each_own_product(s.q, inner, with_inner_bias, [&](float z0, float z1, int tile, int j, int h) {
          const Gelu a(z0), b(z1);
          word(s.x + wide_at(tile, j, h, PU)) = gpu::pack(a.value, b.value);
          if constexpr (kReplay) word(s.slope + wide_at(tile, j, h, PU)) = gpu::pack(a.slope, b.slope);
        });
      }
    }
    __syncthreads();  // The updated image and the query's X are complete.

    outer_layer(S::kMlp ? s.x : s.q, s.query_sums);
    if (normalizes) {
      normalize<S>(z, inverse, shape.eps, s.of_norm, own, l);
      const auto place_of = [&](int r) { return (token_at(batch) + r) * F; };
      if constexpr (kReplay) {
        // The gradient of Z2 from that of out = Q + γ∘x̂ + β.
        float d[2][S::kOwnTiles][2], sums[2][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float mean = 0, projection = 0;
#pragma unroll
          for (int n = 0; n < S::kOwnTiles; ++n) {
            const int at = column_at(n);
            const uint32_t pair = word(results.grad_out + place_of(row + l.g + h * 8) + at);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const float dout = half_of(pair, i), hat = z[n][2 * h + i];
              d[h][n][i] = dout * s.gamma[at + i];
              mean += d[h][n][i];
              projection += d[h][n][i] * hat;
              const float dgamma = sum_of_column(dout * hat), dbeta = sum_of_column(dout);
              if (l.g == 0) {
                s.dgamma[own.tile * F + at + i] += dgamma;
                s.dbeta[own.tile * F + at + i] += dbeta;
              }
            }
          }
          sums[h][0] = sum_of_row(mean);
          sums[h][1] = sum_of_row(projection);
        }
        add_of_tile<S>(sums, s.of_gradient, own, l);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int r = row + l.g + h * 8;
          const float mean = sums[h][0] / F, projection = sums[h][1] / F;
#pragma unroll
          for (int n = 0; n < S::kOwnTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              float& v = z[n][2 * h + i];
              v = (d[h][n][i] - mean - v * projection) * inverse[h];
            }
            const uint32_t rounded = gpu::pack(z[n][2 * h], z[n][2 * h + 1]);
            word(s.g + r * P + column_at(n)) = rounded;
            word(reinterpret_cast<bf16*>(kept + layout.dzq) + r * F + column_at(n)) = rounded;
          }
        }
        sum_columns<S>(reinterpret_cast<float*>(kept + layout.sum2) + own.tile * F + own.column, z, l);
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int r = row + l.g + h * 8;
#pragma unroll
          for (int n = 0; n < S::kOwnTiles; ++n) {
            const int at = column_at(n);
            const uint32_t q = word(s.q + r * P + at);
            word(results.out + place_of(r) + at) = gpu::pack(low(q) + s.gamma[at] * z[n][2 * h] + s.beta[at],
                                                             high(q) + s.gamma[at + 1] * z[n][2 * h + 1] + s.beta[at + 1]);
          }
        }
      }
    }
    if constexpr (kReplay) {
      __syncthreads();  // The gradient of the query's Z2 is complete, in the place of G.
      if (owns) {
        float sums[S::kUnitTiles][2] = {};
        each_own_product(s.g, outer, without_bias, [&](float u0, float u1, int tile, int j, int h) {
          if constexpr (S::kMlp) {
            uint32_t& place = word(s.slope + wide_at(tile, j, h, PU));
            const float v0 = u0 * low(place), v1 = u1 * high(place);
            sums[j][0] += v0;
            sums[j][1] += v1;
            place = gpu::pack(v0, v1);
          } else {
            const int64_t at = token_at(batch) * F + wide_at(tile, j, h, F);
            const uint32_t dout = word(results.grad_out + at);
            word(results.grads.q + at) = gpu::pack(low(dout) + u0, high(dout) + u1);
          }
        });
        if constexpr (S::kMlp) {
#pragma unroll
          for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const float sum = sum_of_column(sums[j][i]);
              if (l.g == 0) reinterpret_cast<float*>(kept + layout.sum1)[unit + j * 8 + l.c + i] = sum;
            }
          write_image<S>(s.image, P, inner, l);
          __syncwarp();  // The gradient of the query's Z1 is complete in this warp's columns.
          for (int tile = 0; tile < tiles; ++tile) {
            uint32_t x[S::kRowTiles][4], d[S::kRowTiles][4];
            load_factor<S>(x, s.x, PU, tile * 16, unit, l.lane);
            load_factor<S>(d, s.slope, PU, tile * 16, unit, l.lane);
#pragma unroll
            for (int m = 0; m < S::kRowTiles; ++m) {
              const int at = places.fragment(tile, m);
              reinterpret_cast<uint4*>(kept + layout.xq)[at] = make_uint4(x[m][0], x[m][1], x[m][2], x[m][3]);
              reinterpret_cast<uint4*>(kept + layout.dzq1)[at] = make_uint4(d[m][0], d[m][1], d[m][2], d[m][3]);
            }
          }
        }
      }
      if constexpr (S::kMlp) {
        __syncthreads();  // The image of W1ᵀ and the gradient of the query's Z1 are complete.
        if (has_tile) {
          float d[S::kOwnTiles][4] = {};
          add_product<S>(d, s.slope, PU, row, s.image, own.column, l.lane);
#pragma unroll
          for (int n = 0; n < S::kOwnTiles; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const int64_t at = (token_at(batch) + row + l.g + h * 8) * F + column_at(n);
              const uint32_t dout = word(results.grad_out + at);
              word(results.grads.q + at) = gpu::pack(low(dout) + d[n][2 * h], high(dout) + d[n][2 * h + 1]);
            }
        }
      }
    }
  }
  if constexpr (kReplay) {
    // The last barrier of the loop is after the last sum.
    if (l.thread < F) {
      float dgamma = 0, dbeta = 0;
      for (int tile = 0; tile < tiles; ++tile) {
        dgamma += s.dgamma[tile * F + l.thread];
        dbeta += s.dbeta[tile * F + l.thread];
      }
      float* norm = results.work.norm + (int64_t(sequence) * results.chunk.groups + blockIdx.y) * 2 * F;
      norm[l.thread] = dgamma;
      norm[F + l.thread] = dbeta;
    }
  }
}

}  // namespace ttt
