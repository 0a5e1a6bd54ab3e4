// Implements the functions of ../gpu.h on a CPU, for tests.
//
// * Every thread of a cluster is a fiber. Clusters, which are single blocks unless the launch asks for more, run one after the other.
// * An instruction of a whole warp runs when its 32nd lane arrives, on the fragment layouts of the PTX manual, with bf16
//   factors rounded to nearest even and fp32 sums.
// * These end the program: lanes of a warp at different instructions, a barrier that some threads never reach, an
//   address that is not aligned to 16 bytes, a store to another block before the first barrier of the cluster or after the last.
// * Shared memory starts as NaN.
// * A seed shuffles the order in which threads run. With an even seed, an asynchronous copy takes effect when its thread waits
//   for it, and with an odd seed at once: a GPU may do either.
//
// The compiler's option -fsanitize=thread makes it call a function for every load and store; races.cpp defines those
// functions and finds races in shared memory. This file reports barriers, and accesses by instructions, to it.

#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// The emulator's own loads and stores are not those of a kernel.
#define UNSEEN __attribute__((no_sanitize("thread")))

extern "C" {
// races.cpp: a new cluster of `blocks` blocks whose shared memories of `size` bytes are `apart` bytes apart and whose threads are numbered
// through, threads that have met at a barrier, and accesses by instructions, to the thread's own block or to any.
void race_cluster(const void* shared, size_t size, size_t apart, int blocks, int threads_of_block, const int* current);
void race_join(const int* threads, int count);
void race_access(const void* at, int size, bool write);
void race_access_of_any_block(const void* at, int size, bool write);
}

struct uint4 { uint32_t x, y, z, w; };
UNSEEN inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace emulator {

struct Dim { unsigned x = 1, y = 1, z = 1; };
enum class Instruction { Load, LoadTransposed, Mma, Shuffle, SyncWarp };
struct Operands { Instruction kind; const void *a, *b; void* out; int mask; };
struct Copy { void* to; const void* from; };

// Threads wait until `turn` reaches the number that they expect.
struct Gate { uint64_t turn = 0; int arrived = 0; };

struct Fiber {
  jmp_buf at;
  ucontext_t start;
  Dim index;
  bool begun = false, done = false;
  bool stored = false;  // in another block, since the last barrier of the cluster
  const Gate* gate = nullptr;
  uint64_t wanted = 0;
  std::vector<std::vector<Copy>> copies{1};  // the last group is open
};

struct Warp { Gate gate; Operands lanes[32]; };
struct Named { Gate gate; std::vector<int> arrived; };

struct Block {
  int first = 0, threads = 0;  // fibers of the cluster
  std::vector<Warp> warps;
  Gate barrier;
  Named named[16];
  char* shared = nullptr;
  Dim index;
};

struct Cluster {
  std::vector<Block> blocks;
  std::vector<Fiber> fibers;
  std::vector<char> memory;
  size_t shared = 0, apart = 0;  // bytes of the memory of a block, and from there to that of the next
  Gate barrier;
  jmp_buf home;
  Fiber* now = nullptr;
  const std::function<void()>* kernel = nullptr;
};

inline Cluster* cluster;
inline Block* block;  // of the fiber that runs
inline int current;   // its number in the cluster
inline bool copies_at_once;

[[noreturn]] inline void fail(const char* what) {
  fprintf(stderr, "emulator: %s (block %u %u, thread %d)\n", what, block->index.x, block->index.y, current - block->first);
  exit(3);
}

UNSEEN inline void wait(const Gate& gate, uint64_t wanted) {
  Fiber& f = *cluster->now;
  if (gate.turn >= wanted) return;
  f.gate = &gate;
  f.wanted = wanted;
  if (!_setjmp(f.at)) _longjmp(cluster->home, 1);
  f.gate = nullptr;
}

UNSEEN inline void join(int first, int count) {
  std::vector<int> ids(count);
  for (int i = 0; i < count; ++i) ids[i] = first + i;
  race_join(ids.data(), count);
}

// A barrier of `threads` threads from number `first` on.
UNSEEN inline void barrier(Gate& g, int first, int threads) {
  const uint64_t turn = g.turn + 1;
  if (++g.arrived == threads) {
    join(first, threads);
    g.arrived = 0;
    g.turn = turn;
  }
  wait(g, turn);
}

UNSEEN inline void named_barrier(int number, int threads) {
  if (number < 1 || number > 15 || threads % 32) fail("a named barrier does not exist, or is not for whole warps");
  Named& n = block->named[number];
  const uint64_t turn = n.gate.turn + 1;
  n.arrived.push_back(current);
  if (int(n.arrived.size()) == threads) {
    race_join(n.arrived.data(), threads);
    n.arrived.clear();
    n.gate.turn = turn;
  }
  wait(n.gate, turn);
}

UNSEEN inline float from_bf16(uint16_t h) {
  const uint32_t bits = uint32_t(h) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
UNSEEN inline uint16_t to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if (f != f) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

UNSEEN __attribute__((optimize("O3"), noinline)) inline void run_mma(Warp& w) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Operands& o = w.lanes[lane];
    const auto *ra = static_cast<const uint32_t*>(o.a), *rb = static_cast<const uint32_t*>(o.b);
    const auto* rc = static_cast<const float*>(o.out);
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i)
      for (int h = 0; h < 2; ++h) a[g + i % 2 * 8][t + h + i / 2 * 8] = from_bf16(uint16_t(ra[i] >> 16 * h));
    for (int i = 0; i < 2; ++i)
      for (int h = 0; h < 2; ++h) b[t + h + i * 8][g] = from_bf16(uint16_t(rb[i] >> 16 * h));
    for (int i = 0; i < 4; ++i) c[g + i / 2 * 8][t + i % 2] = rc[i];
  }
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * b[k][n];
  for (int lane = 0; lane < 32; ++lane) {
    auto* rc = static_cast<float*>(w.lanes[lane].out);
    for (int i = 0; i < 4; ++i) rc[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

UNSEEN inline void run_load(Warp& w, bool transposed) {
  uint32_t loaded[32][4];
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int lane = 0; lane < 32; ++lane) {
      uint32_t pair = 0;
      for (int h = 0; h < 2; ++h) {
        int row = lane / 4, column = lane % 4 * 2 + h;
        if (transposed) std::swap(row, column);
        const auto* from = static_cast<const uint16_t*>(w.lanes[matrix * 8 + row].a);
        if (uintptr_t(from) % 16) fail("a row of ldmatrix is not aligned to 16 bytes");
        pair |= uint32_t(from[column]) << 16 * h;
      }
      loaded[lane][matrix] = pair;
    }
  for (int lane = 0; lane < 32; ++lane) memcpy(w.lanes[lane].out, loaded[lane], 16);
}

UNSEEN inline void run_shuffle(Warp& w) {
  uint32_t values[32];
  for (int lane = 0; lane < 32; ++lane) memcpy(&values[lane], w.lanes[lane ^ w.lanes[lane].mask].a, 4);
  for (int lane = 0; lane < 32; ++lane) memcpy(w.lanes[lane].out, &values[lane], 4);
}

// An instruction of the whole warp.
UNSEEN inline void together(const Operands& mine) {
  Warp& w = block->warps[(current - block->first) / 32];
  w.lanes[current % 32] = mine;
  const uint64_t turn = w.gate.turn + 1;
  if (++w.gate.arrived == 32) {
    for (const Operands& o : w.lanes)
      if (o.kind != mine.kind) fail("the lanes of a warp are at different instructions");
    switch (mine.kind) {
      case Instruction::Load: run_load(w, false); break;
      case Instruction::LoadTransposed: run_load(w, true); break;
      case Instruction::Mma: run_mma(w); break;
      case Instruction::Shuffle: run_shuffle(w); break;
      case Instruction::SyncWarp: join(current / 32 * 32, 32); break;
    }
    w.gate.arrived = 0;
    w.gate.turn = turn;
  }
  wait(w.gate, turn);
}

UNSEEN inline void entry() {
  (*cluster->kernel)();
  for (const auto& group : cluster->now->copies)
    if (!group.empty()) fail("a thread ended before its copies");
  if (cluster->now->stored) fail("a thread ended after a store to another block, which may have ended before");
  cluster->now->done = true;
  _longjmp(cluster->home, 1);
}

// Runs the blocks from `index` on along x.
UNSEEN inline void run_cluster(Dim index, int blocks, int threads_of_block, size_t shared, const std::function<void()>& kernel,
                               std::mt19937* order_by) {
  constexpr size_t kStack = 256 << 10;
  static std::vector<char*> stacks;
  const int threads = blocks * threads_of_block;
  Cluster c;
  cluster = &c;
  c.kernel = &kernel;
  c.blocks.resize(blocks);
  c.fibers.resize(threads);
  c.shared = shared;
  c.apart = (shared + 127) / 128 * 128;
  c.memory.assign(blocks * c.apart + 128, char(0xff));
  char* base = reinterpret_cast<char*>((uintptr_t(c.memory.data()) + 127) / 128 * 128);
  for (int i = 0; i < blocks; ++i) {
    Block& b = c.blocks[i];
    b.first = i * threads_of_block;
    b.threads = threads_of_block;
    b.warps.resize(threads_of_block / 32);
    b.shared = base + i * c.apart;
    b.index = {index.x + unsigned(i), index.y, index.z};
  }
  while (int(stacks.size()) < threads) {
    void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) fail("no memory for a stack");
    stacks.push_back(static_cast<char*>(stack));
  }
  race_cluster(base, shared, c.apart, blocks, threads_of_block, &current);
  std::vector<int> order(threads);
  for (int i = 0; i < threads; ++i) {
    order[i] = i;
    c.fibers[i].index = {unsigned(i % threads_of_block), 0, 0};
  }
  for (int left = threads; left > 0;) {
    if (order_by) std::shuffle(order.begin(), order.end(), *order_by);
    bool any = false;
    for (int i : order) {
      Fiber& f = c.fibers[i];
      if (f.done || (f.gate && f.gate->turn < f.wanted)) continue;
      any = true;
      c.now = &f;
      block = &c.blocks[i / threads_of_block];
      current = i;
      if (!_setjmp(c.home)) {
        if (f.begun) _longjmp(f.at, 1);
        f.begun = true;
        getcontext(&f.start);
        f.start.uc_stack.ss_sp = stacks[i];
        f.start.uc_stack.ss_size = kStack;
        f.start.uc_link = nullptr;
        makecontext(&f.start, entry, 0);
        setcontext(&f.start);
      }
      left -= f.done;
    }
    if (!any) fail("every thread waits at a barrier that another thread never reaches");
  }
  race_cluster(nullptr, 0, 0, 0, 0, &current);  // The memory may be used again, by the program.
}

// Runs a kernel in clusters of `blocks` blocks along x; `seed` 0 keeps the threads in order.
inline void launch(Dim grid, int threads, size_t shared, unsigned seed, const std::function<void()>& kernel, int blocks = 1) {
  std::mt19937 random(seed);
  copies_at_once = seed % 2 == 1;
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; x += blocks) run_cluster({x, y, 0}, blocks, threads, shared, kernel, seed ? &random : nullptr);
}

}  // namespace emulator

#define threadIdx (emulator::cluster->now->index)
#define blockIdx (emulator::block->index)

UNSEEN inline void __syncthreads() {
  emulator::Block& b = *emulator::block;
  emulator::barrier(b.barrier, b.first, b.threads);
}
UNSEEN inline void __syncwarp() { emulator::together({emulator::Instruction::SyncWarp, nullptr, nullptr, nullptr, 0}); }
UNSEEN inline float __shfl_xor_sync(unsigned, float v, int mask) {
  float out;
  emulator::together({emulator::Instruction::Shuffle, &v, nullptr, &out, mask});
  return out;
}
UNSEEN inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

namespace gpu {

constexpr int kMostBlocks = 8;

UNSEEN inline char* shared_memory() { return emulator::block->shared; }
UNSEEN inline uint32_t pack(float low, float high) {
  return emulator::to_bf16(low) | uint32_t(emulator::to_bf16(high)) << 16;
}
UNSEEN inline uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}
UNSEEN inline uint4 load16(const void* from) {
  if (uintptr_t(from) % 16) emulator::fail("an address of a load is not aligned to 16 bytes");
  race_access(from, 16, false);
  uint4 v;
  memcpy(&v, from, 16);
  return v;
}
UNSEEN inline void store16(void* to, uint4 v) {
  if (uintptr_t(to) % 16) emulator::fail("an address of a store is not aligned to 16 bytes");
  race_access(to, 16, true);
  memcpy(to, &v, 16);
}
UNSEEN inline void cluster_barrier() {
  emulator::Cluster& c = *emulator::cluster;
  c.now->stored = false;
  emulator::barrier(c.barrier, 0, int(c.fibers.size()));
}
UNSEEN inline void store_in_block(void* to, int number, const void* from, int size) {
  emulator::Cluster& c = *emulator::cluster;
  const intptr_t offset = static_cast<char*>(to) - emulator::block->shared;
  if (offset < 0 || offset + size > intptr_t(c.shared) || offset % size) emulator::fail("a store to another block is outside of its memory");
  if (number < 0 || number >= int(c.blocks.size())) emulator::fail("a store to a block that the cluster does not have");
  if (c.barrier.turn == 0) emulator::fail("a store to another block, which may not have started");
  c.now->stored = true;
  char* there = c.blocks[number].shared + offset;
  race_access_of_any_block(there, size, true);
  memcpy(there, from, size);
}
UNSEEN inline void store4_in_block(void* to, int number, uint32_t v) { store_in_block(to, number, &v, 4); }
UNSEEN inline void store16_in_block(void* to, int number, uint4 v) { store_in_block(to, number, &v, 16); }
UNSEEN inline void load_matrices(uint32_t (&r)[4], const void* row) {
  race_access(row, 16, false);
  emulator::together({emulator::Instruction::Load, row, nullptr, r, 0});
}
UNSEEN inline void load_transposed(uint32_t (&r)[4], const void* row) {
  race_access(row, 16, false);
  emulator::together({emulator::Instruction::LoadTransposed, row, nullptr, r, 0});
}
UNSEEN inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  emulator::together({emulator::Instruction::Mma, a, b, c, 0});
}
UNSEEN inline void barrier(int number, int threads) { emulator::named_barrier(number, threads); }
UNSEEN inline float tanh_fast(float x) { return std::tanh(x); }
UNSEEN inline void prefetch(const void*) {}
UNSEEN inline void copy16(void* to, const void* from) {
  if (uintptr_t(to) % 16 || uintptr_t(from) % 16) emulator::fail("an address of a copy is not aligned to 16 bytes");
  if (emulator::copies_at_once) {
    race_access(to, 16, true);
    memcpy(to, from, 16);
  } else {
    emulator::cluster->now->copies.back().push_back({to, from});
  }
}
UNSEEN inline void copy_commit() { emulator::cluster->now->copies.emplace_back(); }
template <int N>
UNSEEN inline void copy_wait() {
  auto& groups = emulator::cluster->now->copies;
  while (int(groups.size()) - 1 > N) {
    for (const auto& copy : groups.front()) {
      race_access(copy.to, 16, true);
      memcpy(copy.to, copy.from, 16);
    }
    groups.erase(groups.begin());
  }
}

}  // namespace gpu
