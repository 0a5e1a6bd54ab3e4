// All sources of the kernels in one translation unit, because libtorch's headers take most of the time to compile them.

#include "attention.cpp"
#include "fused.cpp"
#include "gradients.cpp"
#include "linear.cpp"
#include "normal.cpp"
#include "order.cpp"
#include "scan.cpp"
#include "ttt.cpp"

#ifdef WITH_CUDA
#include "attention_cuda.cpp"
#include "fused_cuda.cpp"
#include "normal_cuda.cpp"
#include "scan_cuda.cpp"
#else
#include "no_cuda.cpp"
#endif
