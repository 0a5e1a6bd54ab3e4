// Launches the kernels of the TTT scan. No call waits for the GPU.

#include "ttt.h"

#include "ttt_backward.h"
#include "ttt_forward.h"

namespace ttt {

namespace {

// Bytes of shared memory of a kernel. The layouts compute addresses from their base, so null is enough for the sizes.
template <class Layout>
__host__ size_t shared_size(int tokens) { return Layout(nullptr, tokens).size; }

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared, cudaStream_t stream,
                   const Arguments&... arguments) {
  const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
  if (set != cudaSuccess) return set;
  kernel<<<grid, threads, shared, stream>>>(arguments...);
  return cudaGetLastError();
}

// Calls f with the sizes of a kind and a width; `otherwise` for widths without kernels.
template <class F, class Result>
Result with_sizes(Kind kind, int width, Result otherwise, F f) {
  const bool mlp = kind == Kind::Mlp;
  switch (width) {
    case 16: return mlp ? f(Sizes<16, true>()) : f(Sizes<16, false>());
    case 32: return mlp ? f(Sizes<32, true>()) : f(Sizes<32, false>());
    case 48: return mlp ? f(Sizes<48, true>()) : f(Sizes<48, false>());
    case 64: return mlp ? f(Sizes<64, true>()) : f(Sizes<64, false>());
    default: return otherwise;
  }
}

int batches_of(const Shape& shape) { return shape.length / shape.mini_batch; }
int groups_of(const Shape& shape) { return (batches_of(shape) + shape.group - 1) / shape.group; }

}  // namespace

bool supports(Kind kind, int width, int mini_batch, int device) {
  if (mini_batch % 16 != 0 || mini_batch < 16 || mini_batch > kMostTokens) return false;
  int shared = 0, major = 0;
  if (cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) return false;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major < 8) return false;
  return with_sizes(kind, width, false, [&](auto sizes) {
    using S = decltype(sizes);
    return shared_size<ForwardShared<S>>(mini_batch) <= size_t(shared) &&
           shared_size<ChainShared<S>>(mini_batch) <= size_t(shared);
  });
}

int64_t saved_size(Kind kind, int width, const Shape& shape) {
  return with_sizes(kind, width, int64_t(0), [&](auto sizes) {
    return int64_t(shape.sequences) * groups_of(shape) * decltype(sizes)::kState;
  });
}

WorkspaceSize workspace_size(Kind kind, int width, const Shape& shape, int groups) {
  return with_sizes(kind, width, WorkspaceSize(), [&](auto sizes) {
    using S = decltype(sizes);
    const int64_t chunk = int64_t(shape.sequences) * groups;
    return WorkspaceSize{chunk * shape.group * int64_t(Kept<S>(shape.mini_batch).size), chunk * 2 * S::F,
                         int64_t(shape.sequences) * S::kState};
  });
}

cudaError_t forward(Kind kind, int width, const Shape& shape, const Inputs& in, bf16* out, float* saved, cudaStream_t stream) {
  if (saved != nullptr && shape.group < 1) return cudaErrorInvalidValue;
  return with_sizes(kind, width, cudaErrorInvalidValue, [&](auto sizes) {
    using S = decltype(sizes);
    const size_t shared = shared_size<ForwardShared<S>>(shape.mini_batch);
    return launch(ttt_scan<S, ForwardResults>, dim3(shape.sequences), S::kThreads, shared, stream, shape, in,
                  ForwardResults{out, saved});
  });
}

cudaError_t backward(Kind kind, int width, const Shape& shape, const Inputs& in, const bf16* grad_out, const Workspace& work,
                     int groups, const Grads& grads, cudaStream_t stream) {
  if (groups < 1 || shape.group < 1) return cudaErrorInvalidValue;
  return with_sizes(kind, width, cudaErrorInvalidValue, [&](auto sizes) {
    using S = decltype(sizes);
    const int tokens = shape.mini_batch;
    cudaError_t error = cudaSuccess;
    for (int end = groups_of(shape); end > 0 && error == cudaSuccess; end -= groups) {
      const int begin = end > groups ? end - groups : 0;
      const Chunk chunk{begin, end - begin};
      error = launch(ttt_scan<S, ReplayResults>, dim3(shape.sequences, chunk.groups), S::kThreads,
                     shared_size<ForwardShared<S>>(tokens), stream, shape, in, ReplayResults{work, chunk, grad_out, grads});
      if (error != cudaSuccess) return error;
      error = launch(ttt_chain<S>, dim3(shape.sequences), S::kThreads, shared_size<ChainShared<S>>(tokens), stream, shape, in,
                     work, chunk, grads);
      if constexpr (S::kMlp) {
        if (error != cudaSuccess) return error;
        const int last = end * shape.group < batches_of(shape) ? end * shape.group : batches_of(shape);
        error = launch(ttt_keys<S>, dim3(shape.sequences, last - begin * shape.group), kKeysThreads,
                       shared_size<KeysShared<S>>(tokens), stream, shape, work, chunk, grads);
      }
    }
    return error;
  });
}

}  // namespace ttt
