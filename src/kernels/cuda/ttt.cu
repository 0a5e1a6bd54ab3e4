// Launches the kernels of the TTT scan. No call waits for the GPU.

#include "ttt.h"

#include "ttt_backward.h"
#include "ttt_forward.h"

namespace ttt {

namespace {

// Bytes of shared memory of a kernel. The layouts compute addresses from their base, so null is enough for the sizes.
template <class Layout>
__host__ size_t shared_size(int tokens) { return Layout(nullptr, tokens).size; }

// A launch in clusters of `blocks` blocks, or of single blocks.
struct Launch {
  cudaLaunchAttribute cluster;
  cudaLaunchConfig_t config;

  Launch(dim3 grid, int threads, size_t shared, int blocks, cudaStream_t stream) : cluster(), config() {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = unsigned(blocks);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = blocks > 1 ? 1 : 0;
  }
  Launch(const Launch&) = delete;
};

template <class Kernel>
cudaError_t allow_shared(Kernel kernel, size_t shared) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
}

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared, int blocks, cudaStream_t stream,
                   const Arguments&... arguments) {
  const cudaError_t set = allow_shared(kernel, shared);
  if (set != cudaSuccess) return set;
  const Launch how(grid, threads, shared, blocks, stream);
  return cudaLaunchKernelEx(&how.config, kernel, arguments...);
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

// Calls f with the sizes of single blocks of TTT-MLP, and those of a cluster of `blocks` blocks; `otherwise` for clusters without kernels.
template <class S, class Result, class F>
Result with_clusters(S single, int blocks, Result otherwise, F f) {
  if (blocks == 1) return f(single);
  if constexpr (S::kMlp && S::F == 64) {
    switch (blocks) {
      case 2: return f(Sizes<S::F, S::kMlp, 2>());
      case 4: return f(Sizes<S::F, S::kMlp, 4>());
    }
  }
  return otherwise;
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

bool supports_clusters(Kind kind, int width, int blocks, int device) {
  int clusters = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
  return error == cudaSuccess && clusters != 0 && blocks > 1 && with_sizes(kind, width, false, [&](auto single) {
    return with_clusters(single, blocks, false, [](auto) { return true; });
  });
}

int blocks_for(Kind kind, int width, const Shape& shape, int device) {
  int processors = 0;
  if (cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  const int blocks = 2;
  // The rest of the multiprocessors is for collectives, which run beside the scan.
  if (shape.sequences * blocks > processors * 3 / 4 || !supports_clusters(kind, width, blocks, device)) return 1;
  const bool fits = with_sizes(kind, width, false, [&](auto single) {
    return with_clusters(single, blocks, false, [&](auto sizes) {
      using S = decltype(sizes);
      const auto all_run = [&](auto kernel, size_t shared) {
        const Launch how(dim3(shape.sequences * S::kBlocks), S::kThreads, shared, S::kBlocks, nullptr);
        int at_once = 0;
        return allow_shared(kernel, shared) == cudaSuccess &&
               cudaOccupancyMaxActiveClusters(&at_once, kernel, &how.config) == cudaSuccess && at_once >= shape.sequences;
      };
      return all_run(ttt_scan<S, ForwardResults>, shared_size<ForwardShared<S>>(shape.mini_batch)) &&
             all_run(ttt_chain<S>, shared_size<ChainShared<S>>(shape.mini_batch));
    });
  });
  if (fits) return blocks;
  cudaGetLastError();  // An error of a query is not an error of the next launch.
  return 1;
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

cudaError_t forward(Kind kind, int width, int blocks, const Shape& shape, const Inputs& in, bf16* out, float* saved,
                    cudaStream_t stream) {
  if (saved != nullptr && shape.group < 1) return cudaErrorInvalidValue;
  return with_sizes(kind, width, cudaErrorInvalidValue, [&](auto single) {
    return with_clusters(single, blocks, cudaErrorInvalidValue, [&](auto sizes) {
      using S = decltype(sizes);
      const size_t shared = shared_size<ForwardShared<S>>(shape.mini_batch);
      return launch(ttt_scan<S, ForwardResults>, dim3(shape.sequences * S::kBlocks), S::kThreads, shared, S::kBlocks, stream, shape,
                    in, ForwardResults{out, saved});
    });
  });
}

cudaError_t backward(Kind kind, int width, int blocks, const Shape& shape, const Inputs& in, const bf16* grad_out,
                     const Workspace& work, int groups, const Grads& grads, cudaStream_t stream) {
  if (groups < 1 || shape.group < 1) return cudaErrorInvalidValue;
  return with_sizes(kind, width, cudaErrorInvalidValue, [&](auto sizes) {
    using S = decltype(sizes);
    const int tokens = shape.mini_batch;
    cudaError_t error = cudaSuccess;
    for (int end = groups_of(shape); end > 0 && error == cudaSuccess; end -= groups) {
      const int begin = end > groups ? end - groups : 0;
      const Chunk chunk{begin, end - begin};
      error = launch(ttt_scan<S, ReplayResults>, dim3(shape.sequences, chunk.groups), S::kThreads,
                     shared_size<ForwardShared<S>>(tokens), 1, stream, shape, in, ReplayResults{work, chunk, grad_out, grads});
      if (error != cudaSuccess) return error;
      error = with_clusters(sizes, blocks, cudaErrorInvalidValue, [&](auto clustered) {
        using C = decltype(clustered);
        return launch(ttt_chain<C>, dim3(shape.sequences * C::kBlocks), C::kThreads, shared_size<ChainShared<C>>(tokens), C::kBlocks,
                      stream, shape, in, work, chunk, grads);
      });
      if constexpr (S::kMlp) {
        if (error != cudaSuccess) return error;
        const int last = end * shape.group < batches_of(shape) ? end * shape.group : batches_of(shape);
        error = launch(ttt_keys<S>, dim3(shape.sequences, last - begin * shape.group), kKeysThreads,
                       shared_size<KeysShared<S>>(tokens), 1, stream, shape, work, chunk, grads);
      }
    }
    return error;
  });
}

}  // namespace ttt
