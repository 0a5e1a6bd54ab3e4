#include "reference.h"

#include <cmath>
#include <cstring>

double round_to_bf16(double x) {
  float f = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&f, &bits, 4);
  return f;
}

namespace {

using Matrix = std::vector<double>;

enum class Turn { No, Yes };

// C[m, n] += op(A) · op(B).
void add_product(Matrix& c, const Matrix& a, Turn ta, const Matrix& b, Turn tb, int m, int n, int k) {
  for (int i = 0; i < m; ++i)
    for (int l = 0; l < k; ++l) {
      const double v = ta == Turn::No ? a[i * k + l] : a[l * m + i];
      for (int j = 0; j < n; ++j) c[i * n + j] += v * (tb == Turn::No ? b[l * n + j] : b[j * k + l]);
    }
}

void add_bias(Matrix& c, const Matrix& bias) {
  for (size_t i = 0; i < c.size(); ++i) c[i] += bias[i % bias.size()];
}

void add_columns(Matrix& bias, const Matrix& a) {
  for (size_t i = 0; i < a.size(); ++i) bias[i % bias.size()] += a[i];
}

struct Scan {
  const Problem& p;
  bool rounds;
  int b, f, u;

  Scan(const Problem& problem, Rounding rounding)
      : p(problem), rounds(rounding == Rounding::AsKernels), b(p.mini_batch), f(p.width), u(p.units) {}

  Matrix r(Matrix m) const {
    if (rounds) {
      for (double& v : m) v = round_to_bf16(v);
    }
    return m;
  }

  struct State {
    Matrix w1, b1, w2, b2;
  };
  State start() const { return {p.inner_weight, p.inner_bias, p.outer_weight, p.outer_bias}; }

  Matrix rows(const Matrix& from, int batch, int width) const {
    return Matrix(from.begin() + long(batch) * b * width, from.begin() + long(batch + 1) * b * width);
  }

  // Values of one mini-batch, as the kernels keep them.
  struct Step {
    Matrix q, k, target, eta, x, slope, curve, hat, inverse, g, uw, g1, xq, slopeq, hatq, inverseq;
    State before, after;
  };

  void inner_layer(const State& w, const Matrix& in, Matrix& x, Matrix& slope, Matrix* curve) const {
    if (!p.mlp) {
      x = in;
      return;
    }
    Matrix z(b * u);
    add_product(z, in, Turn::No, r(w.w1), Turn::No, b, u, f);
    add_bias(z, w.b1);
    x = slope = z;
    if (curve) *curve = z;
    const double c = std::sqrt(2 / M_PI), d = 0.044715;
    for (size_t i = 0; i < z.size(); ++i) {
      const double v = z[i], t = std::tanh(c * (v + d * v * v * v)), s = 1 - t * t, in1 = c * (1 + 3 * d * v * v);
      x[i] = 0.5 * v * (1 + t);
      slope[i] = 0.5 * (1 + t) + 0.5 * v * s * in1;
      if (curve) (*curve)[i] = s * in1 - v * t * s * in1 * in1 + 3 * c * d * v * v * s;
    }
    x = r(x);
    slope = r(slope);
    if (curve) *curve = r(*curve);
  }

  void outer_layer(const State& w, const Matrix& x, Matrix& hat, Matrix& inverse) const {
    hat.assign(b * f, 0);
    inverse.assign(b, 0);
    add_product(hat, x, Turn::No, r(w.w2), Turn::No, b, f, u);
    add_bias(hat, w.b2);
    for (int i = 0; i < b; ++i) {
      double mean = 0, square = 0;
      for (int j = 0; j < f; ++j) mean += hat[i * f + j] / f;
      for (int j = 0; j < f; ++j) square += std::pow(hat[i * f + j] - mean, 2) / f;
      inverse[i] = 1 / std::sqrt(square + p.eps);
      for (int j = 0; j < f; ++j) hat[i * f + j] = (hat[i * f + j] - mean) * inverse[i];
    }
  }

  Step step(State& w, int batch) const {
    Step s;
    s.before = w;
    s.q = rows(p.q, batch, f);
    s.k = rows(p.k, batch, f);
    s.target = rows(p.target, batch, f);
    s.eta = rows(p.eta, batch, 1);
    inner_layer(w, s.k, s.x, s.slope, &s.curve);
    outer_layer(w, s.x, s.hat, s.inverse);
    s.g.assign(b * f, 0);
    for (int i = 0; i < b; ++i) {
      double mean = 0, projection = 0;
      for (int j = 0; j < f; ++j) {
        const double v = (p.gamma[j] * s.hat[i * f + j] + p.beta[j] - s.target[i * f + j]) * p.gamma[j];
        s.g[i * f + j] = v;
        mean += v / f;
        projection += v * s.hat[i * f + j] / f;
      }
      for (int j = 0; j < f; ++j) {
        double& v = s.g[i * f + j];
        v = -s.eta[i] * (v - mean - s.hat[i * f + j] * projection) * s.inverse[i];
      }
    }
    add_columns(w.b2, s.g);
    s.g = r(s.g);
    if (p.mlp) {
      s.uw.assign(b * u, 0);
      add_product(s.uw, s.g, Turn::No, r(s.before.w2), Turn::Yes, b, u, f);
      s.g1 = s.uw;
      for (int i = 0; i < b * u; ++i) s.g1[i] *= s.slope[i];
      add_columns(w.b1, s.g1);
      s.g1 = r(s.g1);
      add_product(w.w1, s.k, Turn::Yes, s.g1, Turn::No, f, u, b);
    }
    add_product(w.w2, s.x, Turn::Yes, s.g, Turn::No, u, f, b);
    s.after = w;
    inner_layer(w, s.q, s.xq, s.slopeq, nullptr);
    outer_layer(w, s.xq, s.hatq, s.inverseq);
    return s;
  }
};

}  // namespace

Output reference_forward(const Problem& p, Rounding rounding) {
  const Scan scan(p, rounding);
  Output out;
  Scan::State w = scan.start();
  for (int batch = 0; batch < p.length / p.mini_batch; ++batch) {
    const Scan::Step s = scan.step(w, batch);
    for (size_t i = 0; i < s.q.size(); ++i) {
      out.push_back(s.q[i] + p.gamma[i % p.width] * s.hatq[i] + p.beta[i % p.width]);
    }
  }
  return out;
}

Gradient reference_backward(const Problem& p, const Output& grad_out, Rounding rounding) {
  const Scan scan(p, rounding);
  const int b = p.mini_batch, f = p.width, u = p.units;
  std::vector<Scan::Step> steps;
  Scan::State w = scan.start();
  for (int batch = 0; batch < p.length / b; ++batch) steps.push_back(scan.step(w, batch));

  Gradient d = p;
  for (Matrix* m : {&d.q, &d.k, &d.target, &d.eta, &d.gamma, &d.beta, &d.inner_weight, &d.inner_bias, &d.outer_weight,
                    &d.outer_bias}) {
    m->assign(m->size(), 0);
  }
  const auto times = [&](const Matrix& a, const Matrix& c) {
    Matrix out = a;
    for (size_t i = 0; i < out.size(); ++i) out[i] *= c[i];
    return out;
  };
  for (int batch = int(steps.size()) - 1; batch >= 0; --batch) {
    const Scan::Step& s = steps[batch];
    const long at = long(batch) * b * f;
    const Matrix dout(grad_out.begin() + at, grad_out.begin() + at + b * f);
    // The output.
    Matrix dzq(b * f), dq = dout, dk(b * f);
    for (int i = 0; i < b; ++i) {
      double mean = 0, projection = 0;
      for (int j = 0; j < f; ++j) {
        const double o = dout[i * f + j], h = s.hatq[i * f + j];
        d.gamma[j] += o * h;
        d.beta[j] += o;
        mean += o * p.gamma[j] / f;
        projection += o * p.gamma[j] * h / f;
      }
      for (int j = 0; j < f; ++j) {
        dzq[i * f + j] = (dout[i * f + j] * p.gamma[j] - mean - s.hatq[i * f + j] * projection) * s.inverseq[i];
      }
    }
    add_columns(d.outer_bias, dzq);
    dzq = scan.r(dzq);
    Matrix dxq(b * u);
    add_product(dxq, dzq, Turn::No, scan.r(s.after.w2), Turn::Yes, b, u, f);
    add_product(d.outer_weight, s.xq, Turn::Yes, dzq, Turn::No, u, f, b);
    if (p.mlp) {
      dxq = times(dxq, s.slopeq);
      add_columns(d.inner_bias, dxq);
      dxq = scan.r(dxq);
      add_product(dq, dxq, Turn::No, scan.r(s.after.w1), Turn::Yes, b, f, u);
      add_product(d.inner_weight, s.q, Turn::Yes, dxq, Turn::No, f, u, b);
    } else {
      for (int i = 0; i < b * f; ++i) dq[i] += dxq[i];
    }
    // The update.
    const Matrix d1 = scan.r(d.inner_weight), d2 = scan.r(d.outer_weight);
    Matrix dg(b * f), dx(b * u), du, dg1, curved;
    if (p.mlp) {
      dg1.assign(b * u, 0);
      add_product(dg1, s.k, Turn::No, d1, Turn::No, b, u, f);
      add_bias(dg1, d.inner_bias);
      du = scan.r(times(dg1, s.slope));
      curved = scan.r(times(dg1, scan.r(times(s.uw, s.curve))));
      add_product(dk, s.g1, Turn::No, d1, Turn::Yes, b, f, u);
      add_product(dg, du, Turn::No, scan.r(s.before.w2), Turn::No, b, f, u);
      add_product(d.outer_weight, du, Turn::Yes, s.g, Turn::No, u, f, b);
    }
    add_product(dg, s.x, Turn::No, d2, Turn::No, b, f, u);
    add_bias(dg, d.outer_bias);
    add_product(dx, s.g, Turn::No, d2, Turn::Yes, b, u, f);
    Matrix dz(b * f);
    for (int i = 0; i < b; ++i) {
      // ĝ = (γx̂ + β - T)γ, g2 = (ĝ - mean ĝ - x̂ mean(ĝx̂))/σ, G = -η g2.
      const double inverse = s.inverse[i], eta = s.eta[i];
      double mean = 0, projection = 0, mean_d = 0, projection_d = 0, dot = 0;
      std::vector<double> residual(f), gradient(f), dn(f), dhat(f);
      const double* h = &s.hat[i * f];
      for (int j = 0; j < f; ++j) {
        residual[j] = p.gamma[j] * h[j] + p.beta[j] - s.target[i * f + j];
        gradient[j] = residual[j] * p.gamma[j];
        mean += gradient[j] / f;
        projection += gradient[j] * h[j] / f;
        dn[j] = -eta * dg[i * f + j] * inverse;
        mean_d += dn[j] / f;
        projection_d += dn[j] * h[j] / f;
      }
      for (int j = 0; j < f; ++j) dot += dg[i * f + j] * (gradient[j] - mean - h[j] * projection) * inverse;
      d.eta[batch * b + i] = -dot;
      double mean_h = 0, projection_h = 0;
      for (int j = 0; j < f; ++j) {
        const double dgradient = dn[j] - mean_d - h[j] * projection_d, dy = dgradient * p.gamma[j];
        d.gamma[j] += dgradient * residual[j] + dy * h[j];
        d.beta[j] += dy;
        d.target[at + i * f + j] = -dy;
        dhat[j] = dy * p.gamma[j] - projection * dn[j] - gradient[j] * projection_d;
        mean_h += dhat[j] / f;
        projection_h += dhat[j] * h[j] / f;
      }
      // x̂ = (Z - mean)·inverse; inverse also scales g2, and d inverse / dZ = -inverse² x̂ / F.
      for (int j = 0; j < f; ++j) {
        dz[i * f + j] = (dhat[j] - mean_h - h[j] * projection_h) * inverse + eta * dot * inverse * h[j] / f;
      }
    }
    add_columns(d.outer_bias, dz);
    dz = scan.r(dz);
    add_product(dx, dz, Turn::No, scan.r(s.before.w2), Turn::Yes, b, u, f);
    add_product(d.outer_weight, s.x, Turn::Yes, dz, Turn::No, u, f, b);
    if (p.mlp) {
      Matrix dz1 = times(dx, s.slope);
      for (int i = 0; i < b * u; ++i) dz1[i] += curved[i];
      add_columns(d.inner_bias, dz1);
      dz1 = scan.r(dz1);
      add_product(dk, dz1, Turn::No, scan.r(s.before.w1), Turn::Yes, b, f, u);
      add_product(d.inner_weight, s.k, Turn::Yes, dz1, Turn::No, f, u, b);
    } else {
      dk = dx;
    }
    for (int i = 0; i < b * f; ++i) {
      d.q[at + i] = dq[i];
      d.k[at + i] = dk[i];
    }
  }
  return d;
}
