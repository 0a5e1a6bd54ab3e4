#pragma once
// Faults that tests write into copies of the kernels. Every program with kernels includes this file.

#include <cstdlib>

// The number of the fault that the kernels of this process have; 0 for none.
inline const int active_fault = std::getenv("FAULT") != nullptr ? std::atoi(std::getenv("FAULT")) : 0;

// Not instrumented, because the race checker would check each read of the number.
__attribute__((noinline, no_sanitize_thread)) inline bool has_fault(int number) { return number == active_fault; }
