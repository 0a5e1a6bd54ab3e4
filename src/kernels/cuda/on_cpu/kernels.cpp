// Compiled with macros: WIDTH, the head width, and BLOCKS, the blocks of a cluster for TTT-MLP.

#include "kernels.h"

#include "ttt_backward.h"
#include "ttt_forward.h"

namespace {

using ttt::bf16;

std::vector<bf16> rounded(const std::vector<double>& from) {
  std::vector<bf16> to;
  for (double v : from) to.push_back(emulator::to_bf16(float(v)));
  return to;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// Aligned to 16 bytes, and full of NaN, so that what a kernel does not write is found.
template <class T>
std::vector<T> unwritten(size_t count) {
  std::vector<T> v(count);
  memset(static_cast<void*>(v.data()), 0xff, count * sizeof(T));
  return v;
}

std::vector<double> part(const std::vector<float>& from, size_t index, size_t count) {
  return std::vector<double>(from.begin() + index * count, from.begin() + (index + 1) * count);
}
std::vector<double> part(const std::vector<bf16>& from, size_t index, size_t count) {
  std::vector<double> out;
  for (size_t i = 0; i < count; ++i) out.push_back(emulator::from_bf16(from[index * count + i]));
  return out;
}

// `S` for the kernels that clusters may run, and `One` for those of single blocks.
template <class S, class One = S>
Results run(const std::vector<Problem>& problems, const std::vector<Output>& grad_out, const Launch& how) {
  const Problem& p = problems[0];
  const int sequences = int(problems.size()), length = p.length, F = S::F, U = S::U;
  std::vector<bf16> q, k, target, dout;
  std::vector<float> eta, gamma, beta, w1, b1, w2, b2;
  const auto floats = [](std::vector<float>& to, const std::vector<double>& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (int s = 0; s < sequences; ++s) {
    const Problem& one = problems[s];
    append(q, rounded(one.q));
    append(k, rounded(one.k));
    append(target, rounded(one.target));
    append(dout, rounded(grad_out[s]));
    floats(eta, one.eta);
    if (s >= how.heads) continue;
    floats(gamma, one.gamma);
    floats(beta, one.beta);
    floats(w1, one.inner_weight);
    floats(b1, one.inner_bias);
    floats(w2, one.outer_weight);
    floats(b2, one.outer_bias);
  }
  const ttt::Shape shape{sequences, how.heads, length, p.mini_batch, how.group, float(p.eps)};
  const ttt::Inputs in{q.data(), k.data(), target.data(), eta.data(), gamma.data(), beta.data(), w1.data(), b1.data(), w2.data(), b2.data()};
  const int batches = length / p.mini_batch, groups = (batches + how.group - 1) / how.group;
  std::vector<float> saved = unwritten<float>(size_t(sequences) * groups * S::kState);
  std::vector<bf16> out = unwritten<bf16>(q.size()), out_alone = unwritten<bf16>(q.size());
  const ttt::ForwardShared<S> forward_shared(nullptr, p.mini_batch);
  const ttt::ChainShared<S> chain_shared(nullptr, p.mini_batch);
  const auto launch = [&](unsigned y, int threads, size_t shared, const std::function<void()>& kernel) {
    emulator::launch({unsigned(sequences), y, 1}, threads, shared, how.seed, kernel);
  };
  const auto launch_clusters = [&](size_t shared, const std::function<void()>& kernel) {
    emulator::launch({unsigned(sequences * S::kBlocks), 1, 1}, S::kThreads, shared, how.seed, kernel, S::kBlocks);
  };
  launch_clusters(forward_shared.size, [&] { ttt::ttt_scan<S>(shape, in, ttt::ForwardResults{out.data(), saved.data()}); });

  std::vector<bf16> dq = unwritten<bf16>(q.size()), dk = dq, dtarget = dq;
  std::vector<float> deta = unwritten<float>(eta.size()), dgamma = unwritten<float>(size_t(sequences) * F), dbeta = dgamma;
  std::vector<float> dw1 = unwritten<float>(S::kMlp ? size_t(sequences) * U * F : 0), db1 = unwritten<float>(S::kMlp ? size_t(sequences) * U : 0);
  std::vector<float> dw2 = unwritten<float>(size_t(sequences) * U * F), db2 = unwritten<float>(size_t(sequences) * F);
  const ttt::Grads grads{dq.data(), dk.data(), dtarget.data(), deta.data(), dgamma.data(), dbeta.data(), dw1.data(), db1.data(), dw2.data(), db2.data()};
  std::vector<float> carried = unwritten<float>(size_t(sequences) * S::kState);
  for (int end = groups; end > 0; end -= how.groups_in_chunk) {
    const int begin = end > how.groups_in_chunk ? end - how.groups_in_chunk : 0;
    const ttt::Chunk chunk{begin, end - begin};
    const ttt::Kept<One> layout(p.mini_batch);
    std::vector<char> kept = unwritten<char>(size_t(sequences) * chunk.groups * how.group * layout.size);
    std::vector<float> norm = unwritten<float>(size_t(sequences) * chunk.groups * 2 * F);
    const ttt::Workspace work{saved.data(), kept.data(), norm.data(), carried.data()};
    const size_t replay_shared = ttt::ForwardShared<One>(nullptr, p.mini_batch).size;
    launch(chunk.groups, One::kThreads, replay_shared, [&] { ttt::ttt_scan<One>(shape, in, ttt::ReplayResults{work, chunk, dout.data(), grads}); });
    launch_clusters(chain_shared.size, [&] { ttt::ttt_chain<S>(shape, in, work, chunk, grads); });
    if constexpr (S::kMlp) {
      const int first = begin * how.group, last = std::min(end * how.group, batches);
      const size_t shared = ttt::KeysShared<One>(nullptr, p.mini_batch).size;
      launch(last - first, ttt::kKeysThreads, shared, [&] { ttt::ttt_keys<One>(shape, work, chunk, grads); });
    }
  }

  Results results;
  const size_t span = size_t(length) * F;
  for (int s = 0; s < sequences; ++s) {
    results.out.push_back(part(out, s, span));
    Gradient g = p;
    g.q = part(dq, s, span);
    g.k = part(dk, s, span);
    g.target = part(dtarget, s, span);
    g.eta = part(deta, s, length);
    g.gamma = part(dgamma, s, F);
    g.beta = part(dbeta, s, F);
    g.inner_weight = part(dw1, s, S::kMlp ? F * U : 0);
    g.inner_bias = part(db1, s, S::kMlp ? U : 0);
    g.outer_weight = part(dw2, s, U * F);
    g.outer_bias = part(db2, s, F);
    results.grads.push_back(g);
  }
  return results;
}

}  // namespace

int kernel_width() { return WIDTH; }

double gelu_error() {
  const auto gelu = [](double z) { return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z))); };
  double most = 0;
  for (int i = -40; i <= 40; ++i) {
    const double z = 0.1 * i, h = 1e-4;
    const ttt::Gelu got{float(z)};
    const double slope = (gelu(z + h) - gelu(z - h)) / (2 * h), curve = (gelu(z + h) - 2 * gelu(z) + gelu(z - h)) / (h * h);
    for (double error : {got.value - gelu(z), got.slope - slope, got.curve - curve}) most = std::max(most, std::abs(error));
  }
  return most;
}

Results run_kernels(const std::vector<Problem>& problems, const std::vector<Output>& grad_out, const Launch& launch) {
  if (problems[0].mlp) return run<ttt::Sizes<WIDTH, true, BLOCKS>, ttt::Sizes<WIDTH, true>>(problems, grad_out, launch);
#if BLOCKS == 1
  return run<ttt::Sizes<WIDTH, false>>(problems, grad_out, launch);
#else
  fprintf(stderr, "clusters are for TTT-MLP\n");
  exit(4);
#endif
}
