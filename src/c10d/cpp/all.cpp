// All sources of the shim in one translation unit, because libtorch's headers take most of the time to compile them.

#include "adamw8.cpp"
#include "mapped.cpp"
#include "profile.cpp"
#include "shim.cpp"
#include "waits.cpp"

#ifdef WITH_CUDA
#include "cuda.cpp"
#else
#include "no_cuda.cpp"
#endif
