// Compares the fused operators' kernels on the emulator with plain loops over doubles, and the loops' gradients with finite differences.
//
//   fused_check differences
//   fused_check norm|heads|gate|rotation bf16|float SAMPLES LENGTH SPLIT WIDTH HEADS SHARED_VECTORS SEED
//
// Exit status: 0, 1 if numbers differ, 2 if threads race, 3 if the emulator stops a kernel.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "compare.h"
#include "fused_kernels.h"
#include "reference.h"

extern "C" size_t race_count();

namespace {

constexpr double kEps = 1e-5;

// The place of a token's vectors.
struct Place {
  int part;
  size_t at;  // of the first number in the part's vectors
};
Place place(const Sizes& s, size_t row) {
  const size_t sample = row / s.length;
  return {row % s.length >= size_t(s.split) ? 1 : 0, s.shared_vectors ? 0 : sample * s.width};
}

Outcome empty_like(const Tensors& t) {
  const auto zeros = [](const Numbers& v) { return Numbers(v.size(), 0.0); };
  return {zeros(t.x), zeros(t.x), zeros(t.u), zeros(t.gain), zeros(t.bias), {zeros(t.first[0]), zeros(t.first[1])},
          {zeros(t.second[0]), zeros(t.second[1])}};
}

// y = (x̂∘gain + bias)∘(1 + second) + first.
Outcome norm(const Sizes& s, const Tensors& t) {
  Outcome g = empty_like(t);
  g.u.clear();
  const size_t width = s.width;
  for (size_t row = 0; row < t.x.size() / width; ++row) {
    const double *x = &t.x[row * width], *dy = &t.dy[row * width];
    const auto [part, at] = place(s, row);
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width; ++i) mean += x[i] / width;
    for (size_t i = 0; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean) / width;
    const double inverse = 1 / std::sqrt(variance + kEps);
    double sum = 0, projection = 0;
    for (size_t i = 0; i < width; ++i) {
      const double hat = (x[i] - mean) * inverse, normed = hat * t.gain[i] + t.bias[i], factor = 1 + t.second[part][at + i];
      g.out[row * width + i] = normed * factor + t.first[part][at + i];
      g.first[part][at + i] += dy[i];
      g.second[part][at + i] += dy[i] * normed;
      g.gain[i] += dy[i] * factor * hat;
      g.bias[i] += dy[i] * factor;
      sum += dy[i] * factor * t.gain[i] / width;
      projection += dy[i] * factor * t.gain[i] * hat / width;
    }
    for (size_t i = 0; i < width; ++i) {
      const double hat = (x[i] - mean) * inverse;
      g.x[row * width + i] = (dy[i] * (1 + t.second[part][at + i]) * t.gain[i] - sum - hat * projection) * inverse;
    }
  }
  return g;
}

// y = the norm of each head of F numbers with the first F numbers of gain and bias, rotated unless all samples share vectors.
Outcome heads(const Sizes& s, const Tensors& t) {
  Outcome g = empty_like(t);
  for (Numbers* none : {&g.u, &g.first[0], &g.first[1], &g.second[0], &g.second[1]}) none->clear();
  const size_t head = s.width / s.heads;
  const auto turned = [&](const double* from, double* to, size_t at, double sign) {
    for (size_t i = 0; i < head; i += 2) {
      const double* factor = &t.factors[at / s.width % s.length * head + i];
      const double cosine = s.shared_vectors ? 1 : factor[0], sine = s.shared_vectors ? 0 : sign * factor[1];
      to[i] = from[i] * cosine - from[i + 1] * sine;
      to[i + 1] = from[i] * sine + from[i + 1] * cosine;
    }
  };
  for (size_t at = 0; at < t.x.size(); at += head) {
    const double* x = &t.x[at];
    double mean = 0, variance = 0, sum = 0, projection = 0;
    for (size_t i = 0; i < head; ++i) mean += x[i] / head;
    for (size_t i = 0; i < head; ++i) variance += (x[i] - mean) * (x[i] - mean) / head;
    const double inverse = 1 / std::sqrt(variance + kEps);
    Numbers hat(head), normed(head), d(head);
    for (size_t i = 0; i < head; ++i) {
      hat[i] = (x[i] - mean) * inverse;
      normed[i] = hat[i] * t.gain[i] + t.bias[i];
    }
    turned(normed.data(), &g.out[at], at, 1);
    turned(&t.dy[at], d.data(), at, -1);
    for (size_t i = 0; i < head; ++i) {
      g.gain[i] += d[i] * hat[i];
      g.bias[i] += d[i];
      sum += d[i] * t.gain[i] / head;
      projection += d[i] * t.gain[i] * hat[i] / head;
    }
    for (size_t i = 0; i < head; ++i) g.x[at + i] = (d[i] * t.gain[i] - sum - hat[i] * projection) * inverse;
  }
  return g;
}

// y = x + second∘u. The gradient of x is dy.
Outcome gate(const Sizes& s, const Tensors& t) {
  Outcome g = empty_like(t);
  for (Numbers* none : {&g.x, &g.gain, &g.bias, &g.first[0], &g.first[1]}) none->clear();
  for (size_t i = 0; i < t.x.size(); ++i) {
    const auto [part, at] = place(s, i / s.width);
    const size_t own = at + i % s.width;
    g.out[i] = t.x[i] + t.second[part][own] * t.u[i];
    g.u[i] = t.dy[i] * t.second[part][own];
    g.second[part][own] += t.dy[i] * t.u[i];
  }
  return g;
}

Outcome rotation(const Sizes& s, const Tensors& t) {
  Outcome g;
  g.out.resize(t.x.size());
  g.x.resize(t.x.size());
  const int head = s.width / s.heads;
  for (size_t i = 0; i < t.x.size(); i += 2) {
    const double* factor = &t.factors[i / s.width % s.length * head + i % s.width % head];
    const auto turn = [&](const Numbers& from, Numbers& to, double sine) {
      to[i] = from[i] * factor[0] - from[i + 1] * sine;
      to[i + 1] = from[i] * sine + from[i + 1] * factor[0];
    };
    turn(t.x, g.out, factor[1]);
    turn(t.dy, g.x, -factor[1]);
  }
  return g;
}

using Reference = Outcome (*)(const Sizes&, const Tensors&);

const struct {
  const char* name;
  Reference reference;
} kOperators[] = {{"norm", norm}, {"heads", heads}, {"gate", gate}, {"rotation", rotation}};

Tensors random_tensors(const Sizes& s, Type type) {
  const size_t all = size_t(s.samples) * s.length * s.width, vectors = size_t(s.shared_vectors ? 1 : s.samples) * s.width;
  const auto draw = [&](size_t count, double mean, double deviation) {
    Numbers v = normals(count, mean, deviation);
    if (type == Type::Bf16) {
      for (double& number : v) number = round_to_bf16(number);
    }
    return v;
  };
  Tensors t{draw(all, 0.5, 0.3), draw(all, 0, 1), draw(s.width, 1, 0.3), draw(s.width, 0, 0.3), {}, {}, draw(all, 0, 1), {}};
  for (int part = 0; part < 2; ++part) {
    t.first[part] = draw(vectors, 0, 1);
    t.second[part] = draw(vectors, 0, 0.5);
  }
  for (int i = 0; i < s.length * s.width / s.heads / 2; ++i) {
    const double angle = normal();
    t.factors.push_back(float(std::cos(angle)));
    t.factors.push_back(float(std::sin(angle)));
  }
  return t;
}

// Results are rounded once. A bf16 number is within 2^-8 of the exact one, and 1.7e-3 is the mean over many.
double limit(Type type, size_t count) {
  if (type == Type::Float) return 1e-6;
  return count < 256 ? 0x1p-8 : 2e-3;
}

bool compare(const Outcome& got, const Outcome& want, Type type) {
  bool good = true;
  const auto one = [&](const char* name, const Numbers& a, const Numbers& b) {
    good &= a.size() == b.size() && agrees(name, relative(a, b), limit(type, b.size()));
  };
  one("output", got.out, want.out);
  one("x", got.x, want.x);
  one("update", got.u, want.u);
  one("gain", got.gain, want.gain);
  one("bias", got.bias, want.bias);
  for (int part = 0; part < 2; ++part) {
    one("first vector", got.first[part], want.first[part]);
    one("second vector", got.second[part], want.second[part]);
  }
  return good;
}

bool differences() {
  bool good = true;
  source.seed(1);
  for (bool shared : {false, true}) {
    const Sizes sizes{2, 5, 2, 8, 2, shared, 0};
    Tensors t = random_tensors(sizes, Type::Float);
    for (const auto& [name, reference] : kOperators) {
      printf("%s\n", name);
      Outcome g = reference(sizes, t);
      const std::pair<Numbers*, Numbers*> pairs[] = {{&t.x, &g.x},       {&t.u, &g.u},       {&t.gain, &g.gain},
                                                     {&t.bias, &g.bias}, {&t.first[0], &g.first[0]}, {&t.first[1], &g.first[1]},
                                                     {&t.second[0], &g.second[0]}, {&t.second[1], &g.second[1]}};
      for (auto [tensor, gradient] : pairs) {
        if (gradient->empty()) continue;
        Numbers numeric;
        for (double& x : *tensor) {
          const double before = x, step = 1e-5;
          double loss[2] = {0, 0};
          for (int side = 0; side < 2; ++side) {
            x = before + (side ? step : -step);
            const Numbers out = reference(sizes, t).out;
            for (size_t i = 0; i < out.size(); ++i) loss[side] += out[i] * t.dy[i];
          }
          x = before;
          numeric.push_back((loss[1] - loss[0]) / (2 * step));
        }
        good &= agrees("gradient", relative(*gradient, numeric), 1e-7);
      }
    }
  }
  return good;
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int i) { return atoi(arguments[i]); };
  if (count == 2 && strcmp(arguments[1], "differences") == 0) return differences() ? 0 : 1;
  if (count != 10) return 4;
  const std::string name = arguments[1];
  const Type type = strcmp(arguments[2], "bf16") == 0 ? Type::Bf16 : Type::Float;
  const Sizes sizes{number(3), number(4), number(5), number(6), number(7), number(8) != 0, unsigned(number(9))};
  source.seed(sizes.seed + 1);
  const Tensors t = random_tensors(sizes, type);
  bool good;
  if (name == "norm") {
    good = compare(run_norm(type, sizes, t, kEps), norm(sizes, t), type);
  } else if (name == "heads") {
    good = compare(run_heads(type, sizes, t, kEps), heads(sizes, t), type);
  } else if (name == "gate") {
    good = compare(run_gate(type, sizes, t), gate(sizes, t), type);
  } else {
    good = compare(run_rotation(type, sizes, t), rotation(sizes, t), type);
  }
  if (race_count() > 0) return 2;
  return good ? 0 : 1;
}
