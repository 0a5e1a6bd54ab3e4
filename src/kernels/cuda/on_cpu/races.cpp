// Finds races in shared memory. With -fsanitize=thread, GCC calls a function for every load and store; this file takes the
// place of the sanitizer's own library, which does not support fibers.
//
// Each thread of a cluster has a vector clock, which barriers join. Each two bytes of shared memory remember their last write and the
// reads since then.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <unordered_set>
#include <vector>

namespace {

struct Access {
  int thread = -1;
  uint32_t clock = 0;
};
struct Cell {
  Access write;
  std::vector<Access> reads;
};

uintptr_t base, limit;
size_t block_size, block_apart;
int threads, block_threads;
const int* current;
std::vector<std::vector<uint32_t>> clocks;
std::vector<Cell> cells;
std::unordered_set<void*> reported;

bool before(const Access& a, int me) { return a.thread < 0 || a.thread == me || a.clock <= clocks[me][a.thread]; }

void report(const char* what, size_t offset, int other, void* code) {
  if (reported.insert(code).second) {
    fprintf(stderr, "race: %s at shared + %zu between threads %d and %d\n", what, offset, other, *current);
  }
}

// Accesses reach the memory of the thread's own block, and some instructions that of any.
void access(const void* address, int size, bool write, bool any_block, void* code) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at < base || at >= limit) return;
  const size_t own = (any_block ? (at - base) / block_apart : *current / block_threads) * block_apart;
  if (at - base < own || at - base + size > own + block_size) {
    report("an access beyond the end", at - base, *current, code);
    return;
  }
  const int me = *current;
  const Access mine{me, clocks[me][me]};
  for (size_t i = (at - base) / 2; i <= (at + size - 1 - base) / 2; ++i) {
    Cell& cell = cells[i];
    if (!before(cell.write, me)) report(write ? "two writes" : "a read after a write", 2 * i, cell.write.thread, code);
    if (write) {
      for (const Access& read : cell.reads) {
        if (!before(read, me)) report("a write after a read", 2 * i, read.thread, code);
      }
      cell.reads.clear();
      cell.write = mine;
    } else {
      size_t place = 0;
      while (place < cell.reads.size() && !before(cell.reads[place], me)) ++place;
      if (place == cell.reads.size()) cell.reads.emplace_back();
      cell.reads[place] = mine;
    }
  }
}

}  // namespace

extern "C" {
size_t race_count() { return reported.size(); }

void race_cluster(const void* shared, size_t size, size_t apart, int blocks, int threads_of_block, const int* now) {
  const int count = blocks * threads_of_block;
  base = reinterpret_cast<uintptr_t>(shared);
  limit = base + blocks * apart;
  block_size = size;
  block_apart = apart;
  threads = count;
  block_threads = threads_of_block;
  current = now;
  clocks.assign(count, std::vector<uint32_t>(count, 0));
  for (int i = 0; i < count; ++i) clocks[i][i] = 1;
  cells.assign(blocks * apart / 2 + 1, Cell());
}

void race_join(const int* ids, int count) {
  std::vector<uint32_t> all(threads, 0);
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < threads; ++k)
      if (clocks[ids[i]][k] > all[k]) all[k] = clocks[ids[i]][k];
  for (int i = 0; i < count; ++i) {
    clocks[ids[i]] = all;
    ++clocks[ids[i]][ids[i]];
  }
}

void race_access(const void* at, int size, bool write) { access(at, size, write, false, __builtin_return_address(0)); }
void race_access_of_any_block(const void* at, int size, bool write) { access(at, size, write, true, __builtin_return_address(0)); }

#define HOOKS(n)                                                                                          \
  void __tsan_read##n(void* p) { access(p, n, false, false, __builtin_return_address(0)); }                      \
  void __tsan_write##n(void* p) { access(p, n, true, false, __builtin_return_address(0)); }                      \
  void __tsan_unaligned_read##n(void* p) { access(p, n, false, false, __builtin_return_address(0)); }            \
  void __tsan_unaligned_write##n(void* p) { access(p, n, true, false, __builtin_return_address(0)); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* p, size_t n) { access(p, int(n), false, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { access(p, int(n), true, false, __builtin_return_address(0)); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
