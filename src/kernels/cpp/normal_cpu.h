#pragma once

#include <cstdint>

namespace normal_cpu {

// Writes the numbers from `begin`, a multiple of 4, to `end`, exclusive, of a key.
void fill(uint64_t key, int64_t begin, int64_t end, float* out);

}  // namespace normal_cpu
