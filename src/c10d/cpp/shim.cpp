// The C interface of PyTorch's distributed engine and of the optimizer step that tch does not bind.
//
// No exception crosses into Rust: see torch_error.h. Tensors are passed as `at::Tensor*`, the type of tch's pointers; this file creates
// and frees the handles.

#include "shim.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace {

// Collectives in flight that complete together, and the objects that must live until then.
struct WorkHandle {
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::intrusive_ptr<Tally> tally;
  at::Device device{at::kCPU};
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  // The timeout of wait(); kNoTimeout selects the backend's own.
  Milliseconds timeout = kNoTimeout;
};

// Locked while a collective starts. libtorch keeps one record of collectives per process, and adds a group to it
// without a lock: two threads that started the first collectives of their groups at the same time crashed (2.11,
// FlightRecorder). Starting never waits for a peer.
std::mutex& starting() {
  static std::mutex one_at_a_time;
  return one_at_a_time;
}

template <typename F>
TorchError* start(GroupHandle* group, WorkHandle** out, F&& body) noexcept {
  return guarded([&] {
    const std::lock_guard<std::mutex> lock(starting());
    // Collectives are not part of an autograd graph, even if their tensors require gradients.
    at::NoGradGuard no_grad;
    auto handle = std::make_unique<WorkHandle>();
    handle->backend = group->backend;
    group->tally->launches += 1;
    handle->tally = group->tally;
    if (group->device) handle->device = *group->device;
    body(*group->backend, handle->works);
    *out = handle.release();
  });
}

// Starts `count` collectives of a kind: NCCL's in one launch, gloo's one after another. `one` starts one of them.
template <typename F>
void start_together(c10d::Backend& backend, std::vector<c10::intrusive_ptr<c10d::Work>>& works, size_t count, F&& one) {
  const bool coalesced = count > 1 && backend.supportsCoalescing();
  if (coalesced) backend.startCoalescing();
  for (size_t i = 0; i < count; ++i) {
    auto work = one(i);
    if (!coalesced) works.push_back(std::move(work));
  }
  if (coalesced) works.push_back(backend.endCoalescing());
}

c10d::ReduceOp reduce_op(int op) {
  return op == 1 ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

// The bytes that a rank of a ring sends: all parts but one in an all-gather or reduce-scatter, and twice that in an
// all-reduce, which is a reduce-scatter and an all-gather.
uint64_t ring_part(const c10d::Backend& backend, const at::Tensor& part) {
  return static_cast<uint64_t>(backend.getSize() - 1) * part.nbytes();
}

uint64_t ring_sum(const c10d::Backend& backend, const at::Tensor& whole) {
  return 2 * static_cast<uint64_t>(backend.getSize() - 1) * whole.nbytes() / static_cast<uint64_t>(backend.getSize());
}

// ---- differentiable collectives, with Megatron's names

// The part of a group that a collective in an autograd graph needs.
struct Group {
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::intrusive_ptr<Tally> tally;
};

template <typename F>
c10::intrusive_ptr<c10d::Work> begin(const Group& group, F&& collective) {
  group.tally->launches += 1;
  const std::lock_guard<std::mutex> lock(starting());
  return collective();
}

template <typename F>
void run_now(const Group& group, at::Device device, F&& collective) {
  const auto work = begin(group, collective);
  group.tally->waited.during(device, [&] { work->wait(); });
}

at::Tensor sum_over(const Group& group, const at::Tensor& x) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> sum{x.detach().clone(at::MemoryFormat::Contiguous)};
  group.tally->summed += ring_sum(*group.backend, sum[0]);
  run_now(group, x.device(), [&] { return group.backend->allreduce(sum); });
  return sum[0];
}

at::Tensor gather_last(const Group& group, const at::Tensor& x) {
  at::NoGradGuard no_grad;
  at::Tensor part = x.detach().contiguous();
  std::vector<int64_t> size = part.sizes().vec();
  const int64_t ranks = group.backend->getSize();
  size.insert(size.begin(), ranks);
  at::Tensor all = at::empty({ranks * part.numel()}, part.options()), flat = part.view(-1);
  group.tally->gathered += ring_part(*group.backend, flat);
  run_now(group, x.device(), [&] { return group.backend->_allgather_base(all, flat); });
  return at::cat(all.view(size).unbind(0), -1);
}

at::Tensor slice_last(const Group& group, const at::Tensor& x) {
  const int64_t len = x.size(-1) / group.backend->getSize();
  return x.narrow(-1, group.backend->getRank() * len, len).contiguous();
}

enum class Parallel { CopyTo, GatherFrom };

template <Parallel kind>
struct Blocking : torch::autograd::Function<Blocking<kind>> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const Group& group) {
    // The graph keeps the group alive.
    ctx->saved_data["group"] = c10::IValue::make_capsule(group.backend);
    ctx->saved_data["tally"] = c10::IValue::make_capsule(group.tally);
    return kind == Parallel::CopyTo ? x.detach() : gather_last(group, x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const Group group{c10::static_intrusive_pointer_cast<c10d::Backend>(ctx->saved_data["group"].toCapsule()),
                      c10::static_intrusive_pointer_cast<Tally>(ctx->saved_data["tally"].toCapsule())};
    return {kind == Parallel::CopyTo ? sum_over(group, grads[0]) : slice_last(group, grads[0]), at::Tensor()};
  }
};

// A collective over the tokens of a TP group in flight, and its kind in the forward pass. In the backward pass, the other kind runs in
// the other direction: what waited starts, and what started waits. So a collective that overlaps with computation in the forward pass
// also does in the backward pass.
struct Tokens : torch::CustomClassHolder {
  enum class Kind { Gather, Reduce };

  Group group;
  Kind kind;
  int64_t len;  // tokens of the whole sequence

  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor from, to;  // kept until the end of the wait

  Tokens(Group group, Kind kind, int64_t len) : group(std::move(group)), kind(kind), len(len) {}

  int64_t ranks() const { return group.backend->getSize(); }

  void start(Kind now, const at::Tensor& x) {
    at::NoGradGuard no_grad;
    now == Kind::Gather ? start_gather(x.detach()) : start_reduce(x.detach());
  }

  at::Tensor wait(Kind now) {
    at::NoGradGuard no_grad;
    group.tally->waited.during(to.device(), [&] { work->wait(); });
    work.reset();
    from.reset();
    at::Tensor all = std::move(to);
    // The parts of the ranks, one after another, without the rows after the last token.
    return now == Kind::Gather ? all.transpose(0, 1).flatten(1, 2).narrow(1, 0, len) : all;
  }

 private:
  // Gathers the ranks' parts of the tokens, `[B, len / ranks rounded up, ...]`.
  void start_gather(const at::Tensor& x) {
    from = x.contiguous();
    std::vector<int64_t> size = from.sizes().vec();
    size.insert(size.begin(), ranks());
    to = at::empty(size, from.options());
    at::Tensor all = to.view(-1), own = from.view(-1);
    group.tally->gathered += ring_part(*group.backend, own);
    work = begin(group, [&] { return group.backend->_allgather_base(all, own); });
  }

  // Sums the tokens `[B, len, ...]` of all ranks for this rank's part, `[B, len / ranks rounded up, ...]`. Rows after `len` are zero.
  void start_reduce(const at::Tensor& x) {
    const int64_t part_len = (x.size(1) + ranks() - 1) / ranks();
    at::Tensor all = x;
    if (part_len * ranks() > x.size(1)) {
      std::vector<int64_t> missing = x.sizes().vec();
      missing[1] = part_len * ranks() - x.size(1);
      all = at::cat({all, at::zeros(missing, x.options())}, 1);
    }
    // Rank by rank; a view for one sample.
    from = all.unflatten(1, {ranks(), part_len}).transpose(0, 1).contiguous();
    to = at::empty_like(from[0]);
    at::Tensor part = to.view(-1), flat = from.view(-1);
    group.tally->scattered += ring_part(*group.backend, part);
    work = begin(group, [&] { return group.backend->_reduce_scatter_base(part, flat, {}); });
  }
};

using TokensPtr = c10::intrusive_ptr<Tokens>;

Tokens::Kind other(Tokens::Kind kind) { return kind == Tokens::Kind::Gather ? Tokens::Kind::Reduce : Tokens::Kind::Gather; }

TokensPtr tokens_of(const torch::autograd::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Tokens>(ctx->saved_data.at("tokens").toCapsule());
}

// Starts the collective. The result stays in `tokens`: autograd would need its shape, which is not that of its gradient. The empty tensor
// that is returned joins the two halves in the graph.
struct StartTokens : torch::autograd::Function<StartTokens> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const TokensPtr& tokens) {
    ctx->saved_data["tokens"] = c10::IValue::make_capsule(tokens);
    tokens->start(tokens->kind, x);
    return at::empty({0}, x.options());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list&) {
    const TokensPtr tokens = tokens_of(ctx);
    return {tokens->wait(other(tokens->kind)), at::Tensor()};
  }
};

struct WaitForTokens : torch::autograd::Function<WaitForTokens> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor&, const TokensPtr& tokens) {
    ctx->saved_data["tokens"] = c10::IValue::make_capsule(tokens);
    return tokens->wait(tokens->kind);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const TokensPtr tokens = tokens_of(ctx);
    tokens->start(other(tokens->kind), grads[0]);
    return {at::empty({0}, grads[0].options()), at::Tensor()};
  }
};

// A collective that Rust waits for.
struct TokensHandle {
  TokensPtr tokens;
  at::Tensor started;
};

// The coefficients of one AdamW step.
struct AdamW {
  float scale, keep, b1, a1, b2, a2, rate, root, eps;
};

// Takes coefficients by value and pointers that do not alias; otherwise the compiler cannot vectorize the loop.
void adamw_range(const AdamW c, int64_t n, float* __restrict__ p, const float* __restrict__ g, float* __restrict__ m,
                 float* __restrict__ v) {
  for (int64_t i = 0; i < n; ++i) {
    const float gi = g[i] * c.scale;
    const float mi = c.b1 * m[i] + c.a1 * gi;
    const float vi = c.b2 * v[i] + c.a2 * (gi * gi);
    m[i] = mi;
    v[i] = vi;
    p[i] = c.keep * p[i] - c.rate * (mi / (std::sqrt(vi) * c.root + c.eps));
  }
}

}  // namespace

extern "C" {

// ---- store

TorchError* vidtui_store_tcp(const char* host, uint16_t port, size_t world_size, int is_server, int64_t timeout_ms,
                       StoreHandle** out) {
  return guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server != 0;
    options.numWorkers = world_size;
    options.timeout = Milliseconds(timeout_ms);
    auto store = c10::make_intrusive<c10d::TCPStore>(std::string(host), options);
    const uint16_t bound = store->getPort();
    *out = new StoreHandle{std::move(store), bound};
  });
}

TorchError* vidtui_store_file(const char* path, int world_size, int64_t timeout_ms, StoreHandle** out) {
  return guarded([&] {
    auto store = c10::make_intrusive<c10d::FileStore>(std::string(path), world_size);
    store->setTimeout(Milliseconds(timeout_ms));
    *out = new StoreHandle{std::move(store), 0};
  });
}

void vidtui_store_drop(StoreHandle* store) {
  drop_error(guarded([&] { delete store; }));
}

uint16_t vidtui_store_port(const StoreHandle* store) {
  return store->port;
}

TorchError* vidtui_store_set(StoreHandle* store, const char* key, const uint8_t* bytes, size_t len) {
  return guarded([&] { store->store->set(key, std::vector<uint8_t>(bytes, bytes + len)); });
}

// Writes a malloc'ed buffer to `out` (freed with free(3)) and its length to `len`.
TorchError* vidtui_store_get(StoreHandle* store, const char* key, char** out, size_t* len) {
  return guarded([&] {
    const std::vector<uint8_t> value = store->store->get(key);
    // One byte more, because malloc(0) may return nullptr.
    char* bytes = static_cast<char*>(std::malloc(value.size() + 1));
    if (bytes == nullptr) throw std::bad_alloc();
    std::memcpy(bytes, value.data(), value.size());
    *out = bytes;
    *len = value.size();
  });
}

TorchError* vidtui_store_add(StoreHandle* store, const char* key, int64_t value, int64_t* out) {
  return guarded([&] { *out = store->store->add(key, value); });
}

// ---- group

TorchError* vidtui_group_gloo(StoreHandle* store, const char* prefix, int rank, int size, int64_t timeout_ms,
                        const char* interface, GroupHandle** out) {
  return guarded([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(Milliseconds(timeout_ms));
    options->devices.push_back(interface != nullptr
                                   ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                   : c10d::ProcessGroupGloo::createDefaultDevice());
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store->store);
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank, size, options);
    // The name of the group in libtorch's record of collectives.
    backend->setGroupUid(prefix);
    *out = new GroupHandle{std::move(backend), 0, std::nullopt};
  });
}

// Sets the timeout of the collectives that start later.
TorchError* vidtui_group_set_timeout(GroupHandle* group, int64_t timeout_ms) {
  return guarded([&] { group->backend->setTimeout(Milliseconds(timeout_ms)); });
}

// Returns libtorch's record of the last collectives of CPU groups as JSON.
TorchError* vidtui_collectives(char** out) {
  return guarded([&] { *out = copy_text(c10d::dump_fr_trace_json(true, false).c_str()); });
}

void vidtui_group_drop(GroupHandle* group) {
  drop_error(guarded([&] {
    const std::unique_ptr<GroupHandle> owned(group);
    // NCCL's threads must end before the objects that they watch; gloo's threads end by themselves.
    if (owned->device) owned->backend->shutdown();
  }));
}

TorchError* vidtui_group_all_reduce(GroupHandle* group, const at::Tensor* const* tensors, size_t count, int op,
                              WorkHandle** out) {
  return start(group, out, [&](c10d::Backend& backend, auto& works) {
    start_together(backend, works, count, [&](size_t i) {
      std::vector<at::Tensor> tensor{*tensors[i]};
      c10d::AllreduceOptions options;
      options.reduceOp = reduce_op(op);
      group->tally->summed += ring_sum(backend, tensor[0]);
      return backend.allreduce(tensor, options);
    });
  });
}

TorchError* vidtui_group_all_gather_into(GroupHandle* group, const at::Tensor* const* outputs,
                                   const at::Tensor* const* inputs, size_t count, WorkHandle** out) {
  return start(group, out, [&](c10d::Backend& backend, auto& works) {
    start_together(backend, works, count, [&](size_t i) {
      at::Tensor to = *outputs[i], from = *inputs[i];
      group->tally->gathered += ring_part(backend, from);
      return backend._allgather_base(to, from);
    });
  });
}

// Writes this rank's part of the reduced `input` to `output`. For NCCL only: gloo's takes longer than an exchange.
TorchError* vidtui_group_reduce_scatter(GroupHandle* group, const at::Tensor* output, const at::Tensor* input, int op,
                                  WorkHandle** out) {
  return start(group, out, [&](c10d::Backend& backend, auto& works) {
    at::Tensor to = *output, from = *input;
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(op);
    group->tally->scattered += ring_part(backend, to);
    works.push_back(backend._reduce_scatter_base(to, from, options));
  });
}

// Sends part `r` of `input` to rank `r` and receives the other ranks' parts for this rank, in rank order, into `parts`.
TorchError* vidtui_group_exchange(GroupHandle* group, const at::Tensor* input, const at::Tensor* parts, WorkHandle** out) {
  TorchError* error = start(group, out, [&](c10d::Backend& backend, auto& works) {
    const int64_t size = backend.getSize(), rank = backend.getRank(), len = input->numel() / size;
    const int tag = static_cast<int>(group->next_tag++ & 0x7fffffff);
    for (int64_t step = 1; step < size; ++step) {
      // The order of targets is rotated by rank, so that no rank is the first target of all others.
      const int64_t from = (rank + size - step) % size, slot = from < rank ? from : from - 1;
      std::vector<at::Tensor> part{parts->narrow(0, slot * len, len)};
      works.push_back(backend.recv(part, static_cast<int>(from), tag));
    }
    for (int64_t step = 1; step < size; ++step) {
      const int64_t to = (rank + step) % size;
      std::vector<at::Tensor> part{input->narrow(0, to * len, len)};
      group->tally->scattered += part[0].nbytes();
      works.push_back(backend.send(part, static_cast<int>(to), tag));
    }
  });
  // gloo's sends and receives keep the timeout of the group's start. setTimeout changes only that of collectives.
  if (error == nullptr && !group->device) (*out)->timeout = group->backend->getBackendOptions()->timeout;
  return error;
}

TorchError* vidtui_group_broadcast(GroupHandle* group, const at::Tensor* tensor, int root, WorkHandle** out) {
  return start(group, out, [&](c10d::Backend& backend, auto& works) {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    works.push_back(backend.broadcast(tensors, options));
  });
}

TorchError* vidtui_group_barrier(GroupHandle* group, WorkHandle** out) {
  return start(group, out, [&](c10d::Backend& backend, auto& works) {
    c10d::BarrierOptions options;
    options.device = group->device;
    works.push_back(backend.barrier(options));
  });
}

// The bytes sent since the group was joined (all-gather, reduce-scatter, all-reduce), and the collectives started.
void vidtui_group_sent(const GroupHandle* group, uint64_t* sent) {
  sent[0] = group->tally->gathered;
  sent[1] = group->tally->scattered;
  sent[2] = group->tally->summed;
  sent[3] = group->tally->launches;
}

// The seconds that this rank waited for collectives of the group since the last call. On a GPU the waits must be over, or the host
// waits for them.
TorchError* vidtui_group_take_waited(GroupHandle* group, double* seconds) {
  return guarded([&] { *seconds = group->tally->waited.take(); });
}

void vidtui_group_drop_waited(GroupHandle* group) {
  drop_error(guarded([&] { group->tally->waited.drop(); }));
}

// Waits, then frees the handle, also after an error.
TorchError* vidtui_work_wait(WorkHandle* work) {
  return guarded([&] {
    std::unique_ptr<WorkHandle> owned(work);
    owned->tally->waited.during(owned->device, [&] {
      for (auto& part : owned->works) part->wait(owned->timeout);
    });
  });
}

// `kind` is 0 copy to, 1 gather from; the result is a new tensor.
TorchError* vidtui_group_parallel(GroupHandle* group, const at::Tensor* x, int kind, at::Tensor** out) {
  return guarded([&] {
    const Group ranks{group->backend, group->tally};
    *out = new at::Tensor(static_cast<Parallel>(kind) == Parallel::CopyTo ? Blocking<Parallel::CopyTo>::apply(*x, ranks)
                                                                         : Blocking<Parallel::GatherFrom>::apply(*x, ranks));
  });
}

// `kind` is 0 gather `len` tokens, 1 reduce tokens.
TorchError* vidtui_tokens_start(GroupHandle* group, const at::Tensor* x, int kind, int64_t len, TokensHandle** out) {
  return guarded([&] {
    const auto of = static_cast<Tokens::Kind>(kind);
    auto handle = std::make_unique<TokensHandle>();
    const int64_t all = of == Tokens::Kind::Gather ? len : x->size(1);
    handle->tokens = c10::make_intrusive<Tokens>(Group{group->backend, group->tally}, of, all);
    handle->started = StartTokens::apply(*x, handle->tokens);
    *out = handle.release();
  });
}

// Waits and returns the result as a new tensor; then frees the handle, also after an error.
TorchError* vidtui_tokens_wait(TokensHandle* handle, at::Tensor** out) {
  return guarded([&] {
    const std::unique_ptr<TokensHandle> owned(handle);
    *out = new at::Tensor(WaitForTokens::apply(owned->started, owned->tokens));
  });
}

// Frees a handle whose collective nobody waits for. libtorch keeps its tensors until it ends.
void vidtui_tokens_drop(TokensHandle* handle) {
  drop_error(guarded([&] { delete handle; }));
}

// ---- optimizer

// One AdamW step over contiguous fp32 tensors of `n` elements on the CPU, in one pass over memory.
//
// at::_fused_adamw_ is as fast, but rounds the elements after its last full vector differently, so its results depend
// on the sharding. Here each element goes through the same IEEE operations at every position (the build disables
// contraction into fused multiply-adds).
TorchError* vidtui_adamw(const at::Tensor* param, const at::Tensor* grad, const at::Tensor* exp_avg,
                   const at::Tensor* exp_avg_sq, double grad_scale, double lr, double beta1, double beta2,
                   double weight_decay, double eps, double step) {
  return guarded([&] {
    const AdamW adamw{
        static_cast<float>(grad_scale),
        static_cast<float>(1 - lr * weight_decay),
        static_cast<float>(beta1),
        static_cast<float>(1 - beta1),
        static_cast<float>(beta2),
        static_cast<float>(1 - beta2),
        static_cast<float>(lr / (1 - std::pow(beta1, step))),
        static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step))),
        static_cast<float>(eps),
    };
    float* const p = static_cast<float*>(param->data_ptr());
    const float* const g = static_cast<const float*>(grad->data_ptr());
    float* const m = static_cast<float*>(exp_avg->data_ptr());
    float* const v = static_cast<float*>(exp_avg_sq->data_ptr());
    // 32 Ki elements are half a megabyte of the four tensors: enough work to justify another thread.
    at::parallel_for(0, param->numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      adamw_range(adamw, end - begin, p + begin, g + begin, m + begin, v + begin);
    });
  });
}

// Copies each tensor to another one of its shape on the same device, in few launches on a GPU.
TorchError* vidtui_copy_each(const at::Tensor* const* to, const at::Tensor* const* from, size_t count) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const auto list = [&](const at::Tensor* const* all) {
      std::vector<at::Tensor> tensors;
      for (size_t i = 0; i < count; ++i) tensors.push_back(*all[i]);
      return tensors;
    };
    at::_foreach_copy_(list(to), list(from));
  });
}

// One AdamW step of many tensors on any other device, with libtorch's fused kernel in few launches. `tensors` has a parameter, gradient,
// exp_avg and exp_avg_sq for each. Does not synchronize.
TorchError* vidtui_adamw_fused(const at::Tensor* const* tensors, size_t count, double grad_scale, double lr, double beta1, double beta2,
                         double weight_decay, double eps, double step) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> lists[4];
    for (size_t i = 0; i < 4 * count; ++i) lists[i % 4].push_back(*tensors[i]);
    const auto number = [&](double value) { return at::full({}, value, tensors[0]->options()); };
    // The kernel divides the gradient by the scale. It only reads the steps.
    const std::vector<at::Tensor> steps(count, number(step));
    at::_fused_adamw_(lists[0], lists[1], lists[2], lists[3], {}, steps, lr, beta1, beta2, weight_decay, eps, false, false,
                      number(1 / grad_scale), {});
  });
}

}  // extern "C"
