#include "fused_kernels.h"

#include "fused.h"

namespace {

using fused::kThreads;
using gpu::bf16;

// Numbers in memory as a kernel sees them, aligned to 16 bytes, between two lines of numbers that no kernel may write. Numbers that a
// kernel does not write are NaN.
template <class T>
class Memory {
 public:
  explicit Memory(size_t count) : count_(count), bytes_(16 + 2 * kGuard + count * sizeof(T), char(0xff)) {}
  explicit Memory(const Numbers& from) : Memory(from.size()) {
    for (size_t i = 0; i < from.size(); ++i) fused::put(data()[i], float(from[i]));
  }

  T* data() {
    const auto begin = reinterpret_cast<uintptr_t>(bytes_.data());
    return reinterpret_cast<T*>((begin + 15) / 16 * 16 + kGuard);
  }

  Numbers numbers() {
    const char* begin = reinterpret_cast<const char*>(data());
    const char* end = begin + count_ * sizeof(T);
    for (const char* at : {begin - kGuard, end}) {
      for (size_t i = 0; i < kGuard; ++i) {
        if (at[i] != char(0xff)) emulator::fail("a kernel wrote outside of a tensor");
      }
    }
    Numbers all;
    for (size_t i = 0; i < count_; ++i) all.push_back(fused::value(data()[i]));
    return all;
  }

 private:
  static constexpr size_t kGuard = 512;
  size_t count_;
  std::vector<char> bytes_;
};

unsigned blocks_of(int64_t threads) { return unsigned((threads + kThreads - 1) / kThreads); }

struct Launcher {
  const Sizes& sizes;
  fused::Rows rows{sizes.samples, sizes.length, sizes.split, sizes.width};

  int64_t count() const { return int64_t(sizes.samples) * sizes.length; }
  size_t vector_size() const { return size_t(sizes.shared_vectors ? 1 : sizes.samples) * sizes.width; }

  void operator()(unsigned x, unsigned y, size_t shared, const std::function<void()>& kernel) const {
    emulator::launch({x, y, 1}, kThreads, shared, sizes.seed, kernel);
  }

  template <class T>
  void vector_gradients(const fused::Norm& in, const void* dy, const void* h, const fused::Statistics& kept,
                        const fused::VectorGrads& grads) const {
    constexpr int kColumns = 32 * fused::kPiece<T>;
    Memory<float> sums(fused::sums_size(rows));
    (*this)((sizes.width + kColumns - 1) / kColumns, sizes.samples * fused::Chunks(rows).of_sample(), fused::kSumsShared<T>,
            [&] { fused::column_sums<T>(rows, dy, h, kept, sums.data()); });
    (*this)(blocks_of(sizes.width), 1, 0, [&] { fused::vector_gradients<T>(rows, in, sums.data(), grads); });
    sums.numbers();
  }
};

// A lane keeps kNumbers numbers of a row.
template <class T, int kNumbers>
Outcome norm(const Sizes& sizes, const Tensors& t, double eps) {
  constexpr int kPieces = kNumbers / fused::kPiece<T>;
  const Launcher launch{sizes};
  Memory<T> x(t.x), gain(t.gain), bias(t.bias), dy(t.dy), out(t.x.size()), dx(t.x.size()), dgain(sizes.width), dbias(sizes.width);
  Memory<T> shift0(t.first[0]), shift1(t.first[1]), scale0(t.second[0]), scale1(t.second[1]);
  Memory<float> mean(launch.count()), inverse(launch.count());
  const int64_t stride = sizes.shared_vectors ? 0 : sizes.width;
  const fused::Norm in{x.data(), gain.data(), bias.data(), {{shift0.data(), stride}, {shift1.data(), stride}},
                       {{scale0.data(), stride}, {scale1.data(), stride}}, float(eps)};
  const fused::Statistics kept{mean.data(), inverse.data()};
  const unsigned blocks = blocks_of(launch.count() * 32);
  launch(blocks, 1, 0, [&] { fused::norm_forward<T, kPieces>(launch.rows, in, out.data(), kept); });
  launch(blocks, 1, 0, [&] { fused::norm_backward<T, kPieces>(launch.rows, in, kept, dy.data(), dx.data()); });
  const size_t size = launch.vector_size();
  Memory<T> dshift0(size), dshift1(size), dscale0(size), dscale1(size);
  launch.vector_gradients<T>(in, dy.data(), x.data(), kept,
                             {dgain.data(), dbias.data(), {dshift0.data(), dshift1.data()}, {dscale0.data(), dscale1.data()}});
  mean.numbers();
  inverse.numbers();
  return {out.numbers(), dx.numbers(), {}, dgain.numbers(), dbias.numbers(), {dshift0.numbers(), dshift1.numbers()},
          {dscale0.numbers(), dscale1.numbers()}};
}

template <class T>
Outcome heads(const Sizes& sizes, const Tensors& t, double eps) {
  const Launcher launch{sizes};
  const int head = sizes.width / sizes.heads;
  const auto first = [&](const Numbers& all) { return Numbers(all.begin(), all.begin() + head); };
  Memory<T> x(t.x), gain(first(t.gain)), bias(first(t.bias)), dy(t.dy), out(t.x.size()), dx(t.x.size()), dgain(head), dbias(head);
  Memory<float> factors(t.factors);
  const fused::HeadNorm in{x.data(), gain.data(), bias.data(), sizes.shared_vectors ? nullptr : factors.data(), head, float(eps)};
  const int64_t count = launch.count() * sizes.heads, at_a_time = kThreads / (head / fused::kPiece<T>);
  // Two rounds for each block, so that a block adds several heads.
  const int64_t chunk = 2 * at_a_time;
  const unsigned blocks = unsigned((count + chunk - 1) / chunk);
  Memory<float> sums(size_t(blocks) * 2 * head);
  launch(blocks_of(int64_t(t.x.size()) / fused::kPiece<T>), 1, 0, [&] { fused::head_norm_forward<T>(launch.rows, in, out.data()); });
  launch(blocks, 1, fused::kHeadSumsShared<T>,
         [&] { fused::head_norm_backward<T>(launch.rows, in, chunk, dy.data(), dx.data(), sums.data()); });
  launch(blocks_of(2 * head * 32), 1, 0,
         [&] { fused::head_vector_gradients<T>(head, int(blocks), sums.data(), dgain.data(), dbias.data()); });
  sums.numbers();
  const auto padded = [&](Numbers v) {
    v.resize(sizes.width, 0.0);
    return v;
  };
  return {out.numbers(), dx.numbers(), {}, padded(dgain.numbers()), padded(dbias.numbers()), {}, {}};
}

template <class T>
Outcome gate(const Sizes& sizes, const Tensors& t) {
  const Launcher launch{sizes};
  Memory<T> x(t.x), u(t.u), dy(t.dy), out(t.x.size()), du(t.x.size()), gate0(t.second[0]), gate1(t.second[1]);
  const int64_t stride = sizes.shared_vectors ? 0 : sizes.width;
  const fused::Vector gates[2] = {{gate0.data(), stride}, {gate1.data(), stride}};
  const unsigned blocks = blocks_of(launch.count() * sizes.width / fused::kPiece<T>);
  launch(blocks, 1, 0, [&] { fused::gated<T>(launch.rows, x.data(), u.data(), gates[0], gates[1], out.data()); });
  launch(blocks, 1, 0, [&] { fused::gated<T>(launch.rows, nullptr, dy.data(), gates[0], gates[1], du.data()); });
  Memory<T> dgate0(launch.vector_size()), dgate1(launch.vector_size());
  const fused::Norm in{nullptr, nullptr, nullptr, {{nullptr, 0}, {nullptr, 0}}, {gates[0], gates[1]}, 0};
  launch.vector_gradients<T>(in, dy.data(), u.data(), {nullptr, nullptr},
                             {nullptr, nullptr, {nullptr, nullptr}, {dgate0.data(), dgate1.data()}});
  return {out.numbers(), {}, du.numbers(), {}, {}, {}, {dgate0.numbers(), dgate1.numbers()}};
}

template <class T>
Outcome rotation(const Sizes& sizes, const Tensors& t) {
  const Launcher launch{sizes};
  Memory<T> x(t.x), dy(t.dy), out(t.x.size()), dx(t.x.size());
  Memory<float> factors(t.factors);
  const unsigned blocks = blocks_of(launch.count() * sizes.width / fused::kPiece<T>);
  const int head = sizes.width / sizes.heads;
  launch(blocks, 1, 0, [&] { fused::rotated<T>(launch.rows, head, x.data(), factors.data(), 1, out.data()); });
  launch(blocks, 1, 0, [&] { fused::rotated<T>(launch.rows, head, dy.data(), factors.data(), -1, dx.data()); });
  return {out.numbers(), dx.numbers(), {}, {}, {}, {}, {}};
}

}  // namespace

Outcome run_norm(Type type, const Sizes& sizes, const Tensors& tensors, double eps) {
  if (sizes.width > 32 * 32) {
    return type == Type::Bf16 ? norm<bf16, 96>(sizes, tensors, eps) : norm<float, 96>(sizes, tensors, eps);
  }
  return type == Type::Bf16 ? norm<bf16, 32>(sizes, tensors, eps) : norm<float, 32>(sizes, tensors, eps);
}
Outcome run_heads(Type type, const Sizes& sizes, const Tensors& tensors, double eps) {
  return type == Type::Bf16 ? heads<bf16>(sizes, tensors, eps) : heads<float>(sizes, tensors, eps);
}
Outcome run_gate(Type type, const Sizes& sizes, const Tensors& tensors) {
  return type == Type::Bf16 ? gate<bf16>(sizes, tensors) : gate<float>(sizes, tensors);
}
Outcome run_rotation(Type type, const Sizes& sizes, const Tensors& tensors) {
  return type == Type::Bf16 ? rotation<bf16>(sizes, tensors) : rotation<float>(sizes, tensors);
}
