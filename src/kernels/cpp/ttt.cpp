// The inner loop of a TTT layer over mini-batches, forward and backward, for CPUs.
//
// One sequence is one head of one sample. Its inner weights stay in the thread's cache during the scan of the whole
// sequence; sequences are distributed over libtorch's threads. The scan builds no graph and allocates nothing. The
// forward pass saves the inner weights every `group` mini-batches. The backward pass goes through the groups from the last to
// the first: it recomputes a group, keeps all intermediate values, and then goes through the group in reverse.
//
// Names follow the formulas of ttt.rs. F is the head width, M the hidden width of the inner MLP (F for the linear
// kind), b the tokens of a mini-batch. All matrices are row-major fp32.

#include "ttt.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if !defined(__x86_64__)
#include <ATen/ATen.h>
#endif

// The elementwise loops are compiled for several x86 levels; the level of the CPU is selected when the program starts.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EVERY_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_PROCESSOR
#endif

extern "C" {
#if defined(__x86_64__)
// libtorch's own BLAS.
void sgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
#endif
}

namespace {

enum class Turn { No, Yes };

// C[m,n] = alpha · op(A) · op(B) + beta · C, row-major and without gaps.
void gemm(Turn ta, Turn tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, const float* b, float beta,
          float* c) {
#if defined(__x86_64__)
  // A row-major matrix is the transpose of a column-major one: Cᵀ = op(B)ᵀ op(A)ᵀ.
  const int rows = static_cast<int>(n), columns = static_cast<int>(m), inner = static_cast<int>(k);
  const int ldb = tb == Turn::No ? rows : inner, lda = ta == Turn::No ? inner : columns;
  const char* turn_b = tb == Turn::No ? "N" : "T";
  const char* turn_a = ta == Turn::No ? "N" : "T";
  sgemm_(turn_b, turn_a, &rows, &columns, &inner, &alpha, b, &ldb, a, &lda, &beta, c, &rows);
#else
  const auto view = [](const float* data, int64_t rows, int64_t columns, Turn turn) {
    float* writable = const_cast<float*>(data);
    return turn == Turn::No ? at::from_blob(writable, {rows, columns}) : at::from_blob(writable, {columns, rows}).t();
  };
  at::Tensor out = at::from_blob(c, {m, n});
  at::addmm_out(out, out, view(a, m, k, ta), view(b, k, n, tb), beta, alpha);
#endif
}

constexpr float kGeluLinear = 0.7978845608028654f;  // √(2/π)
constexpr float kGeluCubic = 0.044715f;

// Computes tanh from the exponential, with an absolute error of at most 2e-7. The argument is clamped where tanh is ±1
// in fp32.
inline float fast_tanh(float x) {
  const float clamped = std::min(std::max(x, -9.0f), 9.0f);
  // e^(2x) = 2^n · e^r with |r| ≤ ln 2 / 2.
  const float y = clamped * 2.885390081777927f;  // 2x / ln 2
  const float n = std::floor(y + 0.5f);
  const float r = (y - n) * 0.6931471805599453f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  const float less_one = p * r;  // e^r - 1, exact for small x where the difference below would cancel
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  const float e_less_one = scale * less_one + (scale - 1.0f);
  return e_less_one / (e_less_one + 2.0f);
}

// X = gelu(Z); D = gelu'(Z).
EVERY_PROCESSOR void gelu_and_slope(const float* z, float* x, float* d, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float v = z[i], square = v * v;
    const float t = fast_tanh(kGeluLinear * v * (1.0f + kGeluCubic * square));
    const float inner = kGeluLinear * (1.0f + 3.0f * kGeluCubic * square);
    x[i] = 0.5f * v * (1.0f + t);
    d[i] = 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * inner;
  }
}

// G1 = P ∘ gelu'(Z), kept beside P for the backward pass.
EVERY_PROCESSOR void multiply(const float* a, const float* b, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] * b[i];
}

// dZ = dG1 ∘ P ∘ gelu''(Z) + dX ∘ gelu'(Z).
EVERY_PROCESSOR void through_gelu(const float* z, const float* slope, const float* p, const float* dg1,
                                  const float* dx, float* dz, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float v = z[i], square = v * v;
    const float t = fast_tanh(kGeluLinear * v * (1.0f + kGeluCubic * square));
    const float sech = 1.0f - t * t;
    const float inner = kGeluLinear * (1.0f + 3.0f * kGeluCubic * square);
    const float curve = sech * inner - v * t * sech * inner * inner + 0.5f * v * sech * 6.0f * kGeluLinear * kGeluCubic * v;
    dz[i] = dg1[i] * p[i] * curve + dx[i] * slope[i];
  }
}

// out = rows of `a` scaled by eta.
EVERY_PROCESSOR void scale_rows(const float* a, const float* eta, float* out, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) out[r * width + i] = eta[r] * a[r * width + i];
  }
}

// Adds `bias` to every row of `a`.
EVERY_PROCESSOR void add_bias(float* a, const float* bias, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) a[r * width + i] += bias[i];
  }
}

// bias += alpha · Σ_r weight_r · a_r ; weights of one when `weights` is null.
EVERY_PROCESSOR void add_rows(const float* a, const float* weights, float alpha, float* bias, int64_t rows,
                              int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    const float factor = weights == nullptr ? alpha : alpha * weights[r];
    for (int64_t i = 0; i < width; ++i) bias[i] += factor * a[r * width + i];
  }
}

// Computes x̂ and 1/σ of every row.
EVERY_PROCESSOR void normalize(const float* z, float* hat, float* inverse, float eps, int64_t rows, int64_t width) {
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = z + r * width;
    float mean = 0.0f;
    for (int64_t i = 0; i < width; ++i) mean += row[i];
    mean *= share;
    float variance = 0.0f;
    for (int64_t i = 0; i < width; ++i) variance += (row[i] - mean) * (row[i] - mean);
    const float scale = 1.0f / std::sqrt(variance * share + eps);
    inverse[r] = scale;
    for (int64_t i = 0; i < width; ++i) hat[r * width + i] = (row[i] - mean) * scale;
  }
}

// The gradient of ½‖γ∘x̂+β-T‖² with respect to Z: g2 = (G - mean G - x̂ mean(G∘x̂))/σ with G = (γ∘x̂+β-T)∘γ.
EVERY_PROCESSOR void inner_gradient(const float* hat, const float* inverse, const float* target, const float* gamma,
                                    const float* beta, float* g2, int64_t rows, int64_t width) {
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r) {
    const float *h = hat + r * width, *t = target + r * width;
    float* g = g2 + r * width;
    float mean = 0.0f, along = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      g[i] = (gamma[i] * h[i] + beta[i] - t[i]) * gamma[i];
      mean += g[i];
      along += g[i] * h[i];
    }
    mean *= share;
    along *= share;
    for (int64_t i = 0; i < width; ++i) g[i] = (g[i] - mean - h[i] * along) * inverse[r];
  }
}

// The derivative of `inner_gradient`: from dg2 to dZ2, and to T, γ and β.
EVERY_PROCESSOR void through_inner_gradient(const float* hat, const float* inverse, const float* g2, const float* target,
                                            const float* gamma, const float* beta, const float* dg2, float* dz,
                                            float* dtarget, float* dgamma, float* dbeta, float* scratch, int64_t rows,
                                            int64_t width) {
  const float share = 1.0f / static_cast<float>(width);
  float* dhat = scratch;
  for (int64_t r = 0; r < rows; ++r) {
    const float *h = hat + r * width, *t = target + r * width, *d = dg2 + r * width, *g = g2 + r * width;
    const float inv = inverse[r];
    float along = 0.0f, mean_d = 0.0f, along_d = 0.0f, dsigma = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      const float grad = (gamma[i] * h[i] + beta[i] - t[i]) * gamma[i];
      const float dh = d[i] * inv;
      along += grad * h[i];
      mean_d += dh;
      along_d += dh * h[i];
      dsigma -= d[i] * g[i];
    }
    along *= share;
    mean_d *= share;
    along_d *= share;
    dsigma *= inv;
    float mean_x = 0.0f, along_x = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      const float residual = gamma[i] * h[i] + beta[i] - t[i];
      const float grad = residual * gamma[i];
      const float dh = d[i] * inv;
      const float dgrad = dh - mean_d - h[i] * along_d;
      const float dy = dgrad * gamma[i];
      dgamma[i] += dgrad * residual + dy * h[i];
      dbeta[i] += dy;
      dtarget[r * width + i] = -dy;
      const float dx = dy * gamma[i] - along * dh - grad * along_d;
      dhat[i] = dx;
      mean_x += dx;
      along_x += dx * h[i];
    }
    mean_x *= share;
    along_x *= share;
    for (int64_t i = 0; i < width; ++i) {
      dz[r * width + i] = (dhat[i] - mean_x - h[i] * along_x) * inv + dsigma * h[i] * share;
    }
  }
}

// out = Q + γ∘x̂ + β.
EVERY_PROCESSOR void residual_out(const float* q, const float* hat, const float* gamma, const float* beta, float* out,
                                  int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) out[r * width + i] = q[r * width + i] + gamma[i] * hat[r * width + i] + beta[i];
  }
}

// The derivative of the LayerNorm in `residual_out`: from the output's gradient to Z̄2, γ and β.
EVERY_PROCESSOR void through_out(const float* dout, const float* hat, const float* inverse, const float* gamma, float* dz,
                                 float* dgamma, float* dbeta, int64_t rows, int64_t width) {
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r) {
    const float *d = dout + r * width, *h = hat + r * width;
    float mean = 0.0f, along = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      const float dx = d[i] * gamma[i];
      dgamma[i] += d[i] * h[i];
      dbeta[i] += d[i];
      mean += dx;
      along += dx * h[i];
    }
    mean *= share;
    along *= share;
    for (int64_t i = 0; i < width; ++i) dz[r * width + i] = (d[i] * gamma[i] - mean - h[i] * along) * inverse[r];
  }
}

// dA = -η∘S, and dη_r -= ⟨S_r, a_r⟩, where S is the gradient of the weight update with respect to the rows of `a`.
EVERY_PROCESSOR void through_update(const float* s, const float* a, const float* eta, float* da, float* deta,
                                    int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    float dot = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      dot += s[r * width + i] * a[r * width + i];
      da[r * width + i] = -eta[r] * s[r * width + i];
    }
    deta[r] -= dot;
  }
}

// Inner weights laid end to end: W1, b1, W2, b2.
struct State {
  int64_t f, m;
  bool mlp;

  explicit State(const TttShape& s) : f(s.width), m(s.hidden > 0 ? s.hidden : s.width), mlp(s.hidden > 0) {}
  int64_t size() const { return f * m + m + (mlp ? m * f + f : 0); }
  float* w1(float* at) const { return at; }
  float* b1(float* at) const { return at + f * m; }
  float* w2(float* at) const { return at + f * m + m; }
  float* b2(float* at) const { return at + f * m + m + m * f; }
};

// The intermediate values of one mini-batch. The backward pass keeps one per mini-batch of a group.
struct Kept {
  std::vector<float> z1, x1, slope1, p, g1;   // [b, M]
  std::vector<float> hat, inverse, g2;        // [b, F], [b], [b, F]
  std::vector<float> zq1, xq1, slopeq1;       // [b, M]
  std::vector<float> hatq, inverseq;          // [b, F], [b]

  Kept(const State& st, int64_t b) {
    const int64_t wide = b * st.m, narrow = b * st.f;
    if (st.mlp) {
      for (auto* v : {&z1, &x1, &slope1, &p, &g1, &zq1, &xq1, &slopeq1}) v->resize(wide);
    }
    for (auto* v : {&hat, &g2, &hatq}) v->resize(narrow);
    inverse.resize(b);
    inverseq.resize(b);
  }
};

// The scratch memory of one thread.
struct Scratch {
  std::vector<float> wide, wide2, narrow, narrow2, narrow3;

  Scratch(const State& st, int64_t b) {
    for (auto* v : {&wide, &wide2}) v->resize(b * st.m);
    for (auto* v : {&narrow, &narrow2, &narrow3}) v->resize(b * st.f);
  }
};

// Runs one mini-batch: `state` becomes the updated weights, `out` (unless null) the layer's output.
void forward_step(const TttShape& s, const State& st, const float* q, const float* k, const float* target,
                  const float* eta, const float* gamma, const float* beta, float* state, Kept& kept, Scratch& tmp,
                  float* out) {
  const int64_t b = s.mini_batch, f = st.f, m = st.m;
  float* z2 = tmp.narrow.data();
  if (st.mlp) {
    gemm(Turn::No, Turn::No, b, m, f, 1.0f, k, st.w1(state), 0.0f, kept.z1.data());
    add_bias(kept.z1.data(), st.b1(state), b, m);
    gelu_and_slope(kept.z1.data(), kept.x1.data(), kept.slope1.data(), b * m);
    gemm(Turn::No, Turn::No, b, f, m, 1.0f, kept.x1.data(), st.w2(state), 0.0f, z2);
    add_bias(z2, st.b2(state), b, f);
  } else {
    gemm(Turn::No, Turn::No, b, f, f, 1.0f, k, st.w1(state), 0.0f, z2);
    add_bias(z2, st.b1(state), b, f);
  }
  normalize(z2, kept.hat.data(), kept.inverse.data(), s.eps, b, f);
  inner_gradient(kept.hat.data(), kept.inverse.data(), target, gamma, beta, kept.g2.data(), b, f);
  if (st.mlp) {
    gemm(Turn::No, Turn::Yes, b, m, f, 1.0f, kept.g2.data(), st.w2(state), 0.0f, kept.p.data());
    multiply(kept.p.data(), kept.slope1.data(), kept.g1.data(), b * m);
    scale_rows(kept.g1.data(), eta, tmp.wide.data(), b, m);
    gemm(Turn::Yes, Turn::No, f, m, b, -1.0f, k, tmp.wide.data(), 1.0f, st.w1(state));
    add_rows(tmp.wide.data(), nullptr, -1.0f, st.b1(state), b, m);
    scale_rows(kept.g2.data(), eta, tmp.narrow.data(), b, f);
    gemm(Turn::Yes, Turn::No, m, f, b, -1.0f, kept.x1.data(), tmp.narrow.data(), 1.0f, st.w2(state));
    add_rows(tmp.narrow.data(), nullptr, -1.0f, st.b2(state), b, f);
    gemm(Turn::No, Turn::No, b, m, f, 1.0f, q, st.w1(state), 0.0f, kept.zq1.data());
    add_bias(kept.zq1.data(), st.b1(state), b, m);
    gelu_and_slope(kept.zq1.data(), kept.xq1.data(), kept.slopeq1.data(), b * m);
    gemm(Turn::No, Turn::No, b, f, m, 1.0f, kept.xq1.data(), st.w2(state), 0.0f, z2);
    add_bias(z2, st.b2(state), b, f);
  } else {
    scale_rows(kept.g2.data(), eta, tmp.narrow2.data(), b, f);
    gemm(Turn::Yes, Turn::No, f, f, b, -1.0f, k, tmp.narrow2.data(), 1.0f, st.w1(state));
    add_rows(tmp.narrow2.data(), nullptr, -1.0f, st.b1(state), b, f);
    gemm(Turn::No, Turn::No, b, f, f, 1.0f, q, st.w1(state), 0.0f, z2);
    add_bias(z2, st.b1(state), b, f);
  }
  normalize(z2, kept.hatq.data(), kept.inverseq.data(), s.eps, b, f);
  if (out != nullptr) residual_out(q, kept.hatq.data(), gamma, beta, out, b, f);
}

// The backward pass of one mini-batch. `before` and `after` are the weights around its update; `d` holds the gradient of
// `after` and becomes that of `before`.
void backward_step(const TttShape& s, const State& st, const float* q, const float* k, const float* target,
                   const float* eta, const float* gamma, const float* beta, float* before, float* after,
                   const Kept& kept, Scratch& tmp, const float* dout, float* d, float* dq, float* dk, float* dtarget,
                   float* deta, float* dgamma, float* dbeta) {
  const int64_t b = s.mini_batch, f = st.f, m = st.m;
  float *dz2 = tmp.narrow.data(), *dg2 = tmp.narrow2.data(), *row = tmp.narrow3.data();
  float *wide = tmp.wide.data(), *wide2 = tmp.wide2.data();
  std::fill(deta, deta + b, 0.0f);

  // The output, computed with the updated weights.
  through_out(dout, kept.hatq.data(), kept.inverseq.data(), gamma, dz2, dgamma, dbeta, b, f);
  std::memcpy(dq, dout, sizeof(float) * b * f);
  if (st.mlp) {
    gemm(Turn::No, Turn::Yes, b, m, f, 1.0f, dz2, st.w2(after), 0.0f, wide);
    gemm(Turn::Yes, Turn::No, m, f, b, 1.0f, kept.xq1.data(), dz2, 1.0f, st.w2(d));
    add_rows(dz2, nullptr, 1.0f, st.b2(d), b, f);
    multiply(wide, kept.slopeq1.data(), wide, b * m);
    gemm(Turn::No, Turn::Yes, b, f, m, 1.0f, wide, st.w1(after), 1.0f, dq);
    gemm(Turn::Yes, Turn::No, f, m, b, 1.0f, q, wide, 1.0f, st.w1(d));
    add_rows(wide, nullptr, 1.0f, st.b1(d), b, m);
  } else {
    gemm(Turn::No, Turn::Yes, b, f, f, 1.0f, dz2, st.w1(after), 1.0f, dq);
    gemm(Turn::Yes, Turn::No, f, f, b, 1.0f, q, dz2, 1.0f, st.w1(d));
    add_rows(dz2, nullptr, 1.0f, st.b1(d), b, f);
  }

  // The weight update, whose gradient is now `d`.
  if (st.mlp) {
    // wide2 = dg1 from W1' = W1 - (η∘K)ᵀ g1 and b1' = b1 - Σ η g1.
    gemm(Turn::No, Turn::No, b, m, f, 1.0f, k, st.w1(d), 0.0f, wide);
    add_bias(wide, st.b1(d), b, m);
    through_update(wide, kept.g1.data(), eta, wide2, deta, b, m);
    gemm(Turn::No, Turn::Yes, b, f, m, 1.0f, kept.g1.data(), st.w1(d), 0.0f, row);
    for (int64_t r = 0; r < b; ++r) {
      for (int64_t i = 0; i < f; ++i) dk[r * f + i] = -eta[r] * row[r * f + i];
    }
    // dg2 from W2' = W2 - (η∘X)ᵀ g2 and b2' = b2 - Σ η g2.
    gemm(Turn::No, Turn::No, b, f, m, 1.0f, kept.x1.data(), st.w2(d), 0.0f, row);
    add_bias(row, st.b2(d), b, f);
    through_update(row, kept.g2.data(), eta, dg2, deta, b, f);
    // wide = dX1, also from W2'.
    gemm(Turn::No, Turn::Yes, b, m, f, 1.0f, kept.g2.data(), st.w2(d), 0.0f, wide);
    for (int64_t r = 0; r < b; ++r) {
      for (int64_t i = 0; i < m; ++i) wide[r * m + i] *= -eta[r];
    }
    // g1 = P ∘ gelu'(Z1), P = g2 W2ᵀ: dP contributes to g2 and W2. `after` is no longer needed and holds dP.
    float* dp = after;
    std::vector<float> spill;
    if (st.size() < b * m) {
      spill.resize(b * m);
      dp = spill.data();
    }
    multiply(wide2, kept.slope1.data(), dp, b * m);
    gemm(Turn::No, Turn::No, b, f, m, 1.0f, dp, st.w2(before), 1.0f, dg2);
    gemm(Turn::Yes, Turn::No, m, f, b, 1.0f, dp, kept.g2.data(), 1.0f, st.w2(d));
    through_inner_gradient(kept.hat.data(), kept.inverse.data(), kept.g2.data(), target, gamma, beta, dg2, dz2, dtarget,
                           dgamma, dbeta, row, b, f);
    gemm(Turn::No, Turn::Yes, b, m, f, 1.0f, dz2, st.w2(before), 1.0f, wide);
    gemm(Turn::Yes, Turn::No, m, f, b, 1.0f, kept.x1.data(), dz2, 1.0f, st.w2(d));
    add_rows(dz2, nullptr, 1.0f, st.b2(d), b, f);
    through_gelu(kept.z1.data(), kept.slope1.data(), kept.p.data(), wide2, wide, dp, b * m);
    gemm(Turn::No, Turn::Yes, b, f, m, 1.0f, dp, st.w1(before), 1.0f, dk);
    gemm(Turn::Yes, Turn::No, f, m, b, 1.0f, k, dp, 1.0f, st.w1(d));
    add_rows(dp, nullptr, 1.0f, st.b1(d), b, m);
  } else {
    gemm(Turn::No, Turn::No, b, f, f, 1.0f, k, st.w1(d), 0.0f, row);
    add_bias(row, st.b1(d), b, f);
    through_update(row, kept.g2.data(), eta, dg2, deta, b, f);
    gemm(Turn::No, Turn::Yes, b, f, f, 1.0f, kept.g2.data(), st.w1(d), 0.0f, row);
    for (int64_t r = 0; r < b; ++r) {
      for (int64_t i = 0; i < f; ++i) dk[r * f + i] = -eta[r] * row[r * f + i];
    }
    through_inner_gradient(kept.hat.data(), kept.inverse.data(), kept.g2.data(), target, gamma, beta, dg2, dz2, dtarget,
                           dgamma, dbeta, row, b, f);
    gemm(Turn::No, Turn::Yes, b, f, f, 1.0f, dz2, st.w1(before), 1.0f, dk);
    gemm(Turn::Yes, Turn::No, f, f, b, 1.0f, k, dz2, 1.0f, st.w1(d));
    add_rows(dz2, nullptr, 1.0f, st.b1(d), b, f);
  }
}

void load_state(const State& st, const TttInputs& in, int64_t head, float* state) {
  std::memcpy(st.w1(state), in.w1 + head * st.f * st.m, sizeof(float) * st.f * st.m);
  std::memcpy(st.b1(state), in.b1 + head * st.m, sizeof(float) * st.m);
  if (st.mlp) {
    std::memcpy(st.w2(state), in.w2 + head * st.m * st.f, sizeof(float) * st.m * st.f);
    std::memcpy(st.b2(state), in.b2 + head * st.f, sizeof(float) * st.f);
  }
}

void store_state(const State& st, float* d, int64_t sequence, const TttGrads& out) {
  std::memcpy(out.w1 + sequence * st.f * st.m, st.w1(d), sizeof(float) * st.f * st.m);
  std::memcpy(out.b1 + sequence * st.m, st.b1(d), sizeof(float) * st.m);
  if (st.mlp) {
    std::memcpy(out.w2 + sequence * st.m * st.f, st.w2(d), sizeof(float) * st.m * st.f);
    std::memcpy(out.b2 + sequence * st.f, st.b2(d), sizeof(float) * st.f);
  }
}

}  // namespace

int64_t ttt_saved_size(const TttShape& s) {
  const int64_t batches = s.length / s.mini_batch;
  return (batches + s.group - 1) / s.group * State(s).size();
}

void ttt_forward(const TttShape& s, const TttInputs& in, float* out, float* saved) {
  const State st(s);
  const int64_t batches = s.length / s.mini_batch, b = s.mini_batch, f = s.width, span = s.length * f;
  const int64_t saved_size = ttt_saved_size(s);
  at::parallel_for(0, s.sequences, 1, [&](int64_t first, int64_t last) {
    Kept kept(st, b);
    Scratch tmp(st, b);
    std::vector<float> state(st.size());
    for (int64_t n = first; n < last; ++n) {
      const int64_t head = n % s.heads;
      load_state(st, in, head, state.data());
      for (int64_t c = 0; c < batches; ++c) {
        if (saved != nullptr && c % s.group == 0) {
          std::memcpy(saved + n * saved_size + c / s.group * st.size(), state.data(), sizeof(float) * st.size());
        }
        const int64_t at = n * span + c * b * f;
        forward_step(s, st, in.q + at, in.k + at, in.target + at, in.eta + n * s.length + c * b,
                     in.gamma + head * f, in.beta + head * f, state.data(), kept, tmp, out + at);
      }
    }
  });
}

void ttt_backward(const TttShape& s, const TttInputs& in, const float* saved, const float* dout,
                  const TttGrads& grads) {
  const State st(s);
  const int64_t batches = s.length / s.mini_batch, b = s.mini_batch, f = s.width, span = s.length * f;
  const int64_t saved_size = ttt_saved_size(s);
  at::parallel_for(0, s.sequences, 1, [&](int64_t first, int64_t last) {
    const int64_t most = std::min(s.group, batches);
    std::vector<Kept> kept(most, Kept(st, b));
    Scratch tmp(st, b);
    // The weights before each mini-batch of the group, and after the last.
    std::vector<float> states((most + 1) * st.size()), d(st.size());
    for (int64_t n = first; n < last; ++n) {
      const int64_t head = n % s.heads;
      const float *gamma = in.gamma + head * f, *beta = in.beta + head * f;
      float *dgamma = grads.gamma + n * f, *dbeta = grads.beta + n * f;
      std::fill(dgamma, dgamma + f, 0.0f);
      std::fill(dbeta, dbeta + f, 0.0f);
      std::fill(d.begin(), d.end(), 0.0f);
      for (int64_t begin = (batches - 1) / s.group * s.group; begin >= 0; begin -= s.group) {
        const int64_t count = std::min(s.group, batches - begin);
        std::memcpy(states.data(), saved + n * saved_size + begin / s.group * st.size(), sizeof(float) * st.size());
        for (int64_t i = 0; i < count; ++i) {
          float* state = states.data() + (i + 1) * st.size();
          std::memcpy(state, state - st.size(), sizeof(float) * st.size());
          const int64_t at = n * span + (begin + i) * b * f;
          forward_step(s, st, in.q + at, in.k + at, in.target + at, in.eta + n * s.length + (begin + i) * b, gamma,
                       beta, state, kept[i], tmp, nullptr);
        }
        for (int64_t i = count - 1; i >= 0; --i) {
          float* before = states.data() + i * st.size();
          const int64_t at = n * span + (begin + i) * b * f, token = n * s.length + (begin + i) * b;
          backward_step(s, st, in.q + at, in.k + at, in.target + at, in.eta + token, gamma, beta, before,
                        before + st.size(), kept[i], tmp, dout + at, d.data(), grads.q + at, grads.k + at,
                        grads.target + at, grads.eta + token, dgamma, dbeta);
        }
      }
      store_state(st, d.data(), n, grads);
    }
  });
}
