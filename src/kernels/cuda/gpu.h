// The GPU instructions that the kernels use, as functions. on_cpu/emulator.h has the same functions for a CPU.

#pragma once

#if !defined(__CUDACC__)
#include "emulator.h"
#else

#include <cstdint>

namespace gpu {

extern __shared__ __align__(16) char dynamic_shared[];

__device__ __forceinline__ char* shared_memory() { return dynamic_shared; }

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Two floats, rounded to bf16, `low` in the low half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__device__ __forceinline__ uint32_t bits_of(float v) { return __float_as_uint(v); }

// 16 bytes, aligned to 16.
__device__ __forceinline__ uint4 load16(const void* from) { return *static_cast<const uint4*>(from); }
__device__ __forceinline__ void store16(void* to, uint4 v) { *static_cast<uint4*>(to) = v; }

// Loads four 8×8 matrices of bf16. Lane l gives the address of row l % 8 of matrix l / 8, which is aligned to 16 bytes.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// C[16,8] += A[16,16] · B[16,8] with bf16 factors and fp32 sums.
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Waits until `threads` threads of the block, whole warps, have called this with the same number from 1 to 15.
__device__ __forceinline__ void barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Starts to bring the line of an address of global memory into the L2 cache. Changes nothing else.
__device__ __forceinline__ void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// The most blocks of a cluster. GPUs before sm_90 have none.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr int kMostBlocks = 8;
#else
constexpr int kMostBlocks = 1;
#endif

// Waits until all threads of the cluster have called this. What they stored before is then visible to all.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of the same place in the shared memory of block `block` of the cluster.
__device__ __forceinline__ unsigned address_in_block(const void* p, int block) {
  unsigned r;
  // Volatile, so that the compiler computes an address beside its store instead of keeping it in a register.
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared_address(p)), "r"(block));
  return r;
}

// Store at the same place in the shared memory of block `block` of the cluster. All its blocks must have started, and none may end before
// the next barrier of the cluster.
__device__ __forceinline__ void store4_in_block(void* to, int block, uint32_t v) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address_in_block(to, block)), "r"(v) : "memory");
}
__device__ __forceinline__ void store16_in_block(void* to, int block, uint4 v) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address_in_block(to, block)), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Starts to copy 16 bytes from global to shared memory.
__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups of copies are unfinished.
template <int N>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace gpu
#endif
