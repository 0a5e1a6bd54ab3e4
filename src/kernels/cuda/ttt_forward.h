// The forward pass of the TTT scan, and its replay for the backward pass. One block computes one sequence, or one group of
// mini-batches of a sequence.
//
// The state stays in registers: warp w has rows R·w… of the outer weights and of the transposed inner weights. The
// products that sum over all units read a bf16 image of the weights in shared memory; warp w computes rows 16w… of them and
// their LayerNorm. Both kinds of work alternate, with a barrier between them.

#pragma once

#include "ttt_tiles.h"

namespace ttt {

template <class S>
struct ForwardShared {
  bf16 *x, *slope, *image, *k, *q, *t, *g;  // k holds two mini-batches
  float *eta, *outer_bias, *part, *gamma, *beta, *dgamma, *dbeta;
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
    image = reinterpret_cast<bf16*>(next(size_t(S::U) * S::P * 2));
    k = reinterpret_cast<bf16*>(next(2 * narrow));
    for (bf16** tile : {&q, &t, &g}) *tile = reinterpret_cast<bf16*>(next(narrow));
    eta = reinterpret_cast<float*>(next(tokens * 4));
    for (float** row : {&outer_bias, &gamma, &beta}) *row = reinterpret_cast<float*>(next(S::F * 4));
    for (float** rows : {&part, &dgamma, &dbeta}) *rows = reinterpret_cast<float*>(next(tokens / 16 * S::F * 4));
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
  constexpr bool kReplay = sizeof(Results) == sizeof(ReplayResults);
  constexpr int F = S::F, U = S::U, P = S::P, PU = S::PU, R = S::R;
  const Lane l;
  const int tokens = shape.mini_batch, tiles = tokens / 16, row = l.warp * 16, unit = l.warp * R;
  const bool owns = l.warp < S::kOwners, has_tile = l.warp < tiles;
  const int sequence = blockIdx.x, head = sequence % shape.heads, batches = shape.length / tokens;
  const int groups = (batches + shape.group - 1) / shape.group;
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
      for (int i = 0; i < 2; ++i) f(inner_bias[j][i], unit + j * 8 + l.c + i);
  };
  // A saved state: outer accumulators by thread, inner accumulators by thread, biases.
  const auto state_at = [&](auto* states, int group) { return states + (int64_t(sequence) * groups + group) * S::kState; };
  const auto by_thread = [&](int m, int n, int i) {
    return ((m * S::kColumnTiles + n) * 4 + i) * (32 * S::kOwners) + l.thread;
  };
  const auto each_saved = [&](auto* at, auto f) {
    if (owns) {
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            f(outer[m][n][i], at[by_thread(m, n, i)]);
            if constexpr (S::kMlp) f(inner[m][n][i], at[S::kWeights + by_thread(m, n, i)]);
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
      each_weight<S>(outer, l, [&](float& w, int u, int f) { w = in.outer_weight[(head * U + u) * F + f]; });
      if constexpr (S::kMlp) {
        each_weight<S>(inner, l, [&](float& w, int u, int f) { w = in.inner_weight[(head * F + f) * U + u]; });
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
  // z = rows of `x` through the outer layer, normalised.
  float z[S::kColumnTiles][4], inverse[2];
  const auto outer_layer = [&](const bf16* x) {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) z[n][i] = s.outer_bias[n * 8 + l.c + i % 2];
    add_product<S>(z, x, S::kMlp ? PU : P, row, s.image, l.lane);
    normalize<S>(z, inverse, shape.eps);
  };
  // One tile of the inner layer: f(Z1, word of X, row, unit) for each pair of units.
  const auto inner_layer = [&](const bf16* x, int tile, auto f) {
    float z1[S::kUnitTiles][4];
#pragma unroll
    for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) z1[j][i] = inner_bias[j][i % 2];
    add_own_product<S>(z1, x, tile * 16, inner, l.lane);
#pragma unroll
    for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) f(z1[j][2 * h], z1[j][2 * h + 1], j, h);
  };
  // The place of this thread's pair of units in wide arrays: [b, U] in rows of `pitch`, and by thread.
  const auto wide_at = [&](int tile, int j, int h, int pitch) {
    return (tile * 16 + l.g + h * 8) * pitch + unit + j * 8 + l.c;
  };
  const auto pair_at = [&](int tile, int j, int h) {
    return ((tile * S::kUnitTiles + j) * 2 + h) * (32 * S::kOwners) + l.thread;
  };

  const auto keys_at = [&](int batch) { return s.k + batch % 2 * tokens * P; };
  fetch_tokens(keys_at(first), in.k, first);
  gpu::copy_commit();
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
      if (l.thread < F) biases[l.thread] = s.outer_bias[l.thread];
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
              packed[((m * S::kColumnTiles + n) * 2 + h) * (32 * S::kOwners) + l.thread] =
                  gpu::pack(outer[m][n][2 * h], outer[m][n][2 * h + 1]);
            }
        if constexpr (S::kMlp) write_image<S>(reinterpret_cast<bf16*>(kept + layout.inner), F, inner, l);
      }
      if constexpr (S::kMlp) {
        for (int tile = 0; tile < tiles; ++tile) {
          inner_layer(k, tile, [&](float z0, float z1, int j, int h) {
            const Gelu a(z0), b(z1);
            const uint32_t x = gpu::pack(a.value, b.value), slope = gpu::pack(a.slope, b.slope);
            word(s.x + wide_at(tile, j, h, PU)) = x;
            word(s.slope + wide_at(tile, j, h, PU)) = slope;
            if constexpr (kReplay) {
              word(reinterpret_cast<bf16*>(kept + layout.x) + wide_at(tile, j, h, U)) = x;
              reinterpret_cast<uint32_t*>(kept + layout.slope)[pair_at(tile, j, h)] = slope;
              reinterpret_cast<uint32_t*>(kept + layout.curve)[pair_at(tile, j, h)] = gpu::pack(a.curve, b.curve);
            }
          });
        }
      }
    }
    gpu::copy_wait<1>();
    __syncthreads();  // X, the image, targets, queries and rates are complete.

    // G = -η∘g2.
    if (has_tile) {
      outer_layer(S::kMlp ? s.x : k);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + l.g + h * 8;
        float gradient[S::kColumnTiles][2], mean = 0, projection = 0;
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n) {
          const int at = n * 8 + l.c;
          const uint32_t target = word(s.t + r * P + at);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float gain = s.gamma[at + i], hat = z[n][2 * h + i];
            const float v = (gain * hat + s.beta[at + i] - half_of(target, i)) * gain;
            gradient[n][i] = v;
            mean += v;
            projection += v * hat;
            if constexpr (kReplay) {
              reinterpret_cast<float*>(kept + layout.hat)[(l.warp * S::kColumnTiles * 4 + n * 4 + 2 * h + i) * 32 + l.lane] = hat;
            }
          }
        }
        mean = sum_of_row(mean) / F;
        projection = sum_of_row(projection) / F;
        const float scale = -s.eta[r] * inverse[h];
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& v = z[n][2 * h + i];
            v = (gradient[n][i] - mean - v * projection) * scale;
          }
          const uint32_t rounded = gpu::pack(z[n][2 * h], z[n][2 * h + 1]);
          word(s.g + r * P + n * 8 + l.c) = rounded;
          if constexpr (kReplay) word(reinterpret_cast<bf16*>(kept + layout.g) + r * F + n * 8 + l.c) = rounded;
        }
        if constexpr (kReplay) {
          if (l.c == 0) reinterpret_cast<float*>(kept + layout.inverse)[r] = inverse[h];
        }
      }
      sum_columns<S>(s.part + l.warp * F, z, l);
    }
    __syncthreads();  // G is complete.

    // The update of all weights, and the query's X.
    if (l.thread < F) {
      for (int tile = 0; tile < tiles; ++tile) s.outer_bias[l.thread] += s.part[tile * F + l.thread];
    }
    if (owns) {
      if constexpr (S::kMlp) {
        // G1 = (G W2ᵀ)∘gelu'(Z1), in the place of gelu'(Z1).
        float sums[S::kUnitTiles][2] = {};
        for (int tile = 0; tile < tiles; ++tile) {
          float u[S::kUnitTiles][4] = {};
          add_own_product<S>(u, s.g, tile * 16, outer, l.lane);
#pragma unroll
          for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              uint32_t& place = word(s.slope + wide_at(tile, j, h, PU));
              const float v0 = u[j][2 * h] * low(place), v1 = u[j][2 * h + 1] * high(place);
              sums[j][0] += v0;
              sums[j][1] += v1;
              place = gpu::pack(v0, v1);
              if constexpr (kReplay) {
                word(reinterpret_cast<bf16*>(kept + layout.g1) + wide_at(tile, j, h, U)) = place;
                uint32_t& curve = reinterpret_cast<uint32_t*>(kept + layout.curve)[pair_at(tile, j, h)];
                curve = gpu::pack(u[j][2 * h] * low(curve), u[j][2 * h + 1] * high(curve));
              }
            }
        }
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
        for (int tile = 0; tile < tiles; ++tile) {
          inner_layer(s.q, tile, [&](float z0, float z1, int j, int h) {
            const Gelu a(z0), b(z1);
            word(s.x + wide_at(tile, j, h, PU)) = gpu::pack(a.value, b.value);
            if constexpr (kReplay) word(s.slope + wide_at(tile, j, h, PU)) = gpu::pack(a.slope, b.slope);
          });
        }
      }
    }
    __syncthreads();  // The updated image and the query's X are complete.

    if (has_tile) {
      outer_layer(S::kMlp ? s.x : s.q);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + l.g + h * 8;
        const int64_t place = (token_at(batch) + r) * F;
        if constexpr (kReplay) {
          // The gradient of Z2 from that of out = Q + γ∘x̂ + β.
          float mean = 0, projection = 0, d[S::kColumnTiles][2];
#pragma unroll
          for (int n = 0; n < S::kColumnTiles; ++n) {
            const int at = n * 8 + l.c;
            const uint32_t pair = word(results.grad_out + place + at);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const float dout = half_of(pair, i), hat = z[n][2 * h + i];
              d[n][i] = dout * s.gamma[at + i];
              mean += d[n][i];
              projection += d[n][i] * hat;
              const float dgamma = sum_of_column(dout * hat), dbeta = sum_of_column(dout);
              if (l.g == 0) {
                s.dgamma[l.warp * F + at + i] += dgamma;
                s.dbeta[l.warp * F + at + i] += dbeta;
              }
            }
          }
          mean = sum_of_row(mean) / F;
          projection = sum_of_row(projection) / F;
#pragma unroll
          for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              float& v = z[n][2 * h + i];
              v = (d[n][i] - mean - v * projection) * inverse[h];
            }
            const uint32_t rounded = gpu::pack(z[n][2 * h], z[n][2 * h + 1]);
            word(s.g + r * P + n * 8 + l.c) = rounded;
            word(reinterpret_cast<bf16*>(kept + layout.dzq) + r * F + n * 8 + l.c) = rounded;
          }
        } else {
#pragma unroll
          for (int n = 0; n < S::kColumnTiles; ++n) {
            const int at = n * 8 + l.c;
            const uint32_t q = word(s.q + r * P + at);
            word(results.out + place + at) = gpu::pack(low(q) + s.gamma[at] * z[n][2 * h] + s.beta[at],
                                                       high(q) + s.gamma[at + 1] * z[n][2 * h + 1] + s.beta[at + 1]);
          }
        }
      }
      if constexpr (kReplay) sum_columns<S>(reinterpret_cast<float*>(kept + layout.sum2) + l.warp * F, z, l);
    }
    if constexpr (kReplay) {
      __syncthreads();  // The gradient of the query's Z2 is complete, in the place of G.
      if (owns) {
        float sums[S::kUnitTiles][2] = {};
        for (int tile = 0; tile < tiles; ++tile) {
          float u[S::kUnitTiles][4] = {};
          add_own_product<S>(u, s.g, tile * 16, outer, l.lane);
#pragma unroll
          for (int j = 0; j < S::kUnitTiles; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              if constexpr (S::kMlp) {
                uint32_t& place = word(s.slope + wide_at(tile, j, h, PU));
                const float v0 = u[j][2 * h] * low(place), v1 = u[j][2 * h + 1] * high(place);
                sums[j][0] += v0;
                sums[j][1] += v1;
                place = gpu::pack(v0, v1);
              } else {
                const int64_t at = token_at(batch) * F + wide_at(tile, j, h, F);
                const uint32_t dout = word(results.grad_out + at);
                word(results.grads.q + at) = gpu::pack(low(dout) + u[j][2 * h], high(dout) + u[j][2 * h + 1]);
              }
            }
        }
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
              const int at = (tile * S::kRowTiles + m) * (32 * S::kOwners) + l.thread;
              reinterpret_cast<uint4*>(kept + layout.xq)[at] = make_uint4(x[m][0], x[m][1], x[m][2], x[m][3]);
              reinterpret_cast<uint4*>(kept + layout.dzq1)[at] = make_uint4(d[m][0], d[m][1], d[m][2], d[m][3]);
            }
          }
        }
      }
      if constexpr (S::kMlp) {
        __syncthreads();  // The image of W1ᵀ and the gradient of the query's Z1 are complete.
        if (has_tile) {
          float d[S::kColumnTiles][4] = {};
          add_product<S>(d, s.slope, PU, row, s.image, l.lane);
#pragma unroll
          for (int n = 0; n < S::kColumnTiles; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const int64_t at = (token_at(batch) + row + l.g + h * 8) * F + n * 8 + l.c;
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
