// One step of AdamW whose moments are 8-bit codes with a scale for each block (Dettmers et al. 2021, arXiv 2110.02861).

#include "shim.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace {

constexpr int64_t kBlock = 256;
// As in torchao: blocks of zeros have this scale.
constexpr float kSmallestScale = 1e-12f;

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Finds the code nearest to a number in [-1, 1].
//
// The codes of a sign are at most one per cell, if a cell is 1/128 of a binade from 2^-24 to 1: a look-up gives the number of
// boundaries below the cell, and one comparison decides. The construction verifies this.
class Quantizer {
 public:
  Quantizer(const float* map, const float* boundaries) {
    std::copy_n(map, 256, map_);
    std::copy_n(boundaries, 255, boundaries_);
    boundaries_[255] = INFINITY;
    for (const bool negative : {false, true}) fill(negative);
  }

  float value(uint8_t code) const { return map_[code]; }

  uint8_t code(float x) const {
    const uint32_t size = bits_of(x) & 0x7fffffffu;
    const int64_t cell = std::clamp<int64_t>((static_cast<int64_t>(size) - kFirst) >> kShift, 0, kCells - 1);
    const uint8_t below = lowest_[std::signbit(x)][cell];
    return below + (x >= boundaries_[below]);
  }

 private:
  static constexpr int64_t kFirst = 0x33800000;  // 2^-24
  static constexpr int kShift = 16;
  static constexpr int64_t kCells = ((0x3f800000 - kFirst) >> kShift) + 1;

  // The number of boundaries at or below `x`.
  int count(float x) const { return std::upper_bound(boundaries_, boundaries_ + 255, x) - boundaries_; }

  void fill(bool negative) {
    for (int64_t cell = 0; cell < kCells; ++cell) {
      const uint32_t first = cell == 0 ? 0 : kFirst + (cell << kShift);
      const uint32_t last = std::min<uint32_t>(kFirst + ((cell + 1) << kShift) - 1, 0x3f800000);
      float low, high;
      std::memcpy(&low, &first, sizeof low);
      std::memcpy(&high, &last, sizeof high);
      const int least = negative ? count(-high) : count(low);
      const int most = negative ? count(-low) : count(high);
      if (most - least > 1) throw std::runtime_error("the quantization map is too dense for its look-up table");
      lowest_[negative][cell] = static_cast<uint8_t>(least);
    }
  }

  float map_[256];
  float boundaries_[256];
  uint8_t lowest_[2][kCells];
};

// The state of one moment.
struct Moment {
  uint8_t* codes;
  float* scales;
};

struct Coefficients {
  float scale, keep, b1, a1, b2, a2, rate, root, eps;
};

void dequantize(const Quantizer& map, int64_t n, const uint8_t* codes, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = map.value(codes[i]) * scale;
}

// Quantizes a block and returns its scale.
float quantize(const Quantizer& map, int64_t n, const float* values, uint8_t* codes) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float scale = std::max(largest, kSmallestScale);
  for (int64_t i = 0; i < n; ++i) codes[i] = map.code(values[i] / scale);
  return scale;
}

void step_block(const Coefficients c, const Quantizer& first, const Quantizer& second, int64_t n, float* __restrict__ p,
                const float* __restrict__ g, uint8_t* first_codes, float* first_scale, uint8_t* second_codes,
                float* second_scale) {
  float m[kBlock], v[kBlock];
  dequantize(first, n, first_codes, *first_scale, m);
  dequantize(second, n, second_codes, *second_scale, v);
  for (int64_t i = 0; i < n; ++i) {
    const float gi = g[i] * c.scale;
    m[i] = c.b1 * m[i] + c.a1 * gi;
    v[i] = c.b2 * v[i] + c.a2 * (gi * gi);
    // The update takes the moments before they are quantized.
    p[i] = c.keep * p[i] - c.rate * (m[i] / (std::sqrt(v[i]) * c.root + c.eps));
  }
  *first_scale = quantize(first, n, m, first_codes);
  *second_scale = quantize(second, n, v, second_codes);
}

}  // namespace

extern "C" {

// One AdamW step on the CPU over `n` fp32 elements, of which the first is element `phase` of its block.
//
// The maps are 256 ascending fp32 values, and the 255 boundaries between them.
TorchError* vidtui_adamw8(const at::Tensor* param, const at::Tensor* grad, const at::Tensor* first_codes,
                    const at::Tensor* first_scales, const at::Tensor* second_codes, const at::Tensor* second_scales,
                    const at::Tensor* signed_map, const at::Tensor* signed_boundaries, const at::Tensor* unsigned_map,
                    const at::Tensor* unsigned_boundaries, int64_t phase, double grad_scale, double lr, double beta1,
                    double beta2, double weight_decay, double eps, double step) {
  return guarded([&] {
    const Coefficients c{
        static_cast<float>(grad_scale),
        static_cast<float>(1 - lr * weight_decay),
        static_cast<float>(beta1),
        static_cast<float>(1 - beta1),
        static_cast<float>(beta2),
        static_cast<float>(1 - beta2),
        static_cast<float>(lr / (1 - std::pow(beta1, step))),
        static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step))),
        static_cast<float>(eps),
    };
    const auto floats = [](const at::Tensor* t) { return static_cast<float*>(t->data_ptr()); };
    const auto bytes = [](const at::Tensor* t) { return static_cast<uint8_t*>(t->data_ptr()); };
    // The maps are the same in every call.
    static const Quantizer first(floats(signed_map), floats(signed_boundaries));
    static const Quantizer second(floats(unsigned_map), floats(unsigned_boundaries));
    float* const p = floats(param);
    const float* const g = floats(grad);
    const Moment m{bytes(first_codes), floats(first_scales)}, v{bytes(second_codes), floats(second_scales)};
    const int64_t n = param->numel(), blocks = (phase + n + kBlock - 1) / kBlock;
    at::parallel_for(0, blocks, 64, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t from = std::max<int64_t>(block * kBlock - phase, 0);
        const int64_t to = std::min((block + 1) * kBlock - phase, n);
        step_block(c, first, second, to - from, p + from, g + from, m.codes + from, m.scales + block, v.codes + from,
                   v.scales + block);
      }
    });
  });
}

}  // extern "C"
