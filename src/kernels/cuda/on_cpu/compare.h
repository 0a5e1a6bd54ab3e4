// Random numbers, and the comparison of two lists of numbers.

#pragma once

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

inline std::mt19937_64 source;

// Twelve uniform numbers sum to nearly a normal one, the same with every standard library.
inline double normal() {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += double(source() >> 11) * 0x1p-53;
  return sum;
}

inline std::vector<double> normals(size_t count, double mean, double deviation) {
  std::vector<double> v(count);
  for (double& x : v) x = float(mean + deviation * normal());
  return v;
}

inline double relative(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(norm > 0 ? error / norm : error);
}

inline bool agrees(const char* what, double error, double limit) {
  const bool good = error <= limit;
  printf("%-24s %.2e%s\n", what, error, good ? "" : "  differs");
  return good;
}
