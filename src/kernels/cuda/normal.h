// Standard normal numbers from a counter, the same on a GPU and on a CPU, bit for bit.
//
// Philox4x32-10 turns a key and a counter into four words (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"). The
// inverse of the normal cumulative distribution function turns each word into a number (Wichura 1988, algorithm AS 241, function PPND7).
// Each operation rounds as IEEE 754 defines it, and no multiplication is fused with an addition, so that the device makes no difference.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define EVERYWHERE __host__ __device__ __forceinline__
#else
#define EVERYWHERE inline
#endif

namespace normal {

#if defined(__CUDA_ARCH__)
EVERYWHERE float sum(float a, float b) { return __fadd_rn(a, b); }
EVERYWHERE float product(float a, float b) { return __fmul_rn(a, b); }
EVERYWHERE float quotient(float a, float b) { return __fdiv_rn(a, b); }
EVERYWHERE float root(float a) { return __fsqrt_rn(a); }
EVERYWHERE uint32_t bits(float a) { return __float_as_uint(a); }
EVERYWHERE float from_bits(uint32_t a) { return __uint_as_float(a); }
#else
// Compile with -ffp-contract=off.
EVERYWHERE float sum(float a, float b) { return a + b; }
EVERYWHERE float product(float a, float b) { return a * b; }
EVERYWHERE float quotient(float a, float b) { return a / b; }
EVERYWHERE float root(float a) { return __builtin_sqrtf(a); }
EVERYWHERE uint32_t bits(float a) {
  uint32_t b;
  memcpy(&b, &a, 4);
  return b;
}
EVERYWHERE float from_bits(uint32_t a) {
  float b;
  memcpy(&b, &a, 4);
  return b;
}
#endif

// Replaces a counter by its four random words.
EVERYWHERE void philox(uint32_t key0, uint32_t key1, uint32_t (&words)[4]) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(words[0]) * 0xD2511F53u, b = uint64_t(words[2]) * 0xCD9E8D57u;
    words[0] = uint32_t(b >> 32) ^ words[1] ^ key0;
    words[1] = uint32_t(b);
    words[2] = uint32_t(a >> 32) ^ words[3] ^ key1;
    words[3] = uint32_t(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// The value of a polynomial, from its highest coefficient.
EVERYWHERE float polynomial(float, float value) { return value; }
template <class... Rest>
EVERYWHERE float polynomial(float x, float value, float next, Rest... rest) {
  return polynomial(x, sum(product(value, x), next), rest...);
}

// log x for 0 < x < 1, from the exponent and a series of atanh, with a relative error of about 1e-7.
EVERYWHERE float logarithm(float x) {
  const uint32_t b = bits(x);
  const float half = from_bits((b & 0x007FFFFFu) | 0x3F000000u);  // 0.5 to 1
  const bool is_small = half < 0.70710678f;
  const float m = is_small ? sum(half, half) : half;
  const float exponent = float(int(b >> 23) - 126 - (is_small ? 1 : 0));
  const float s = quotient(sum(m, -1.0f), sum(m, 1.0f)), t = product(s, s);
  const float series = polynomial(t, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f);
  return sum(product(exponent, 0.69314718f), product(sum(s, s), series));
}

// The number of a word: the first bit is its sign, and the others are its distance from the middle of the distribution.
EVERYWHERE float of_word(uint32_t word) {
  const float tail = product(sum(float(int32_t(word & 0x7FFFFFFFu)), 0.5f), 0x1p-32f);  // the probability beyond, up to 0.5
  const float q = sum(0.5f, -tail), near = sum(0.180625f, -product(q, q)), far = sum(root(-logarithm(tail)), -1.6f);
  const float middle = quotient(product(q, polynomial(near, 59.109374720f, 159.29113202f, 50.434271938f, 3.3871327179f)),
                                polynomial(near, 67.187563600f, 78.757757664f, 17.895169469f, 1.0f));
  // Of the two formulas for tails, the words need the one for probabilities from 1e-11.
  const float outer = quotient(polynomial(far, 0.17023821103f, 1.3067284816f, 2.7568153900f, 1.4234372777f),
                               polynomial(far, 0.12021132975f, 0.73700164250f, 1.0f));
  const float size = q <= 0.425f ? middle : outer;
  return (word >> 31) != 0 ? -size : size;
}

// The numbers at 4·block to 4·block + 3 of a key.
EVERYWHERE void four(uint64_t key, uint64_t block, float (&numbers)[4]) {
  uint32_t words[4] = {uint32_t(block), uint32_t(block >> 32), 0, 0};
  philox(uint32_t(key), uint32_t(key >> 32), words);
  for (int i = 0; i < 4; ++i) numbers[i] = of_word(words[i]);
}

}  // namespace normal
