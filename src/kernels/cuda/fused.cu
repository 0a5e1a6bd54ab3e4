// Launches the kernels of the fused operators. No call waits for the GPU.

#include "fused.h"

#include "fused_launch.h"

#include <type_traits>

namespace fused {

namespace {

// Calls f(a number of the type).
template <class F>
cudaError_t with_type(Type type, F f) {
  return type == Type::Bf16 ? f(bf16()) : f(float());
}

// Calls f(the pieces of a row that a lane keeps, as a constant).
template <class T, class F>
cudaError_t with_pieces(int width, F f) {
  const int numbers = (width + 31) / 32;
  if (numbers <= 32) return f(std::integral_constant<int, 32 / kPiece<T>>());
  if (numbers <= 64) return f(std::integral_constant<int, 64 / kPiece<T>>());
  return f(std::integral_constant<int, 96 / kPiece<T>>());
}

unsigned blocks_of(int64_t threads) { return unsigned((threads + kThreads - 1) / kThreads); }
int64_t count_of(const Rows& rows) { return int64_t(rows.samples) * rows.length; }

template <class T>
cudaError_t gradients_of_vectors(const Rows& rows, const Norm& in, const void* grad, const void* x, const Statistics& kept, float* sums,
                                 const VectorGrads& grads, cudaStream_t stream) {
  constexpr int kColumns = 32 * kPiece<T>;
  const dim3 blocks((rows.width + kColumns - 1) / kColumns, rows.samples * Chunks(rows).of_sample());
  column_sums<T><<<blocks, kThreads, kSumsShared<T>, stream>>>(rows, grad, x, kept, sums);
  vector_gradients<T><<<blocks_of(rows.width), kThreads, 0, stream>>>(rows, in, sums, grads);
  return cudaGetLastError();
}

}  // namespace

bool runs_on(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 8;
}

bool fits(Type type, int width) { return width > 0 && width % (type == Type::Bf16 ? kPiece<bf16> : kPiece<float>) == 0; }

cudaError_t modulated_norm(Type type, const Rows& rows, const Norm& in, void* out, const Statistics& kept, cudaStream_t stream) {
  return with_type(type, [&](auto number) {
    using T = decltype(number);
    return with_pieces<T>(rows.width, [&](auto pieces) {
      norm_forward<T, decltype(pieces)::value><<<blocks_of(count_of(rows) * 32), kThreads, 0, stream>>>(rows, in, out, kept);
      return cudaGetLastError();
    });
  });
}

cudaError_t modulated_norm_backward(Type type, const Rows& rows, const Norm& in, const Statistics& kept, const void* grad, void* grad_x,
                                    float* sums, const VectorGrads& grads, cudaStream_t stream) {
  return with_type(type, [&](auto number) {
    using T = decltype(number);
    if (grad_x != nullptr) {
      const cudaError_t error = with_pieces<T>(rows.width, [&](auto pieces) {
        norm_backward<T, decltype(pieces)::value><<<blocks_of(count_of(rows) * 32), kThreads, 0, stream>>>(rows, in, kept, grad, grad_x);
        return cudaGetLastError();
      });
      if (error != cudaSuccess) return error;
    }
    return sums == nullptr ? cudaSuccess : gradients_of_vectors<T>(rows, in, grad, in.x, kept, sums, grads, stream);
  });
}

cudaError_t gated_add(Type type, const Rows& rows, const void* x, const void* update, const Vector (&gates)[2], void* out,
                      cudaStream_t stream) {
  return with_type(type, [&](auto number) {
    using T = decltype(number);
    const int64_t pieces = count_of(rows) * rows.width / kPiece<T>;
    gated<T><<<blocks_of(pieces), kThreads, 0, stream>>>(rows, x, update, gates[0], gates[1], out);
    return cudaGetLastError();
  });
}

cudaError_t gated_add_backward(Type type, const Rows& rows, const void* update, const Vector (&gates)[2], const void* grad,
                               void* grad_update, float* sums, const VectorGrads& grads, cudaStream_t stream) {
  if (grad_update != nullptr) {
    const cudaError_t error = gated_add(type, rows, nullptr, grad, gates, grad_update, stream);
    if (error != cudaSuccess) return error;
  }
  if (sums == nullptr) return cudaSuccess;
  const Norm in{nullptr, nullptr, nullptr, {{nullptr, 0}, {nullptr, 0}}, {gates[0], gates[1]}, 0};
  return with_type(type, [&](auto number) {
    return gradients_of_vectors<decltype(number)>(rows, in, grad, update, Statistics{nullptr, nullptr}, sums, grads, stream);
  });
}

bool fits_head(Type type, int width) {
  const int pieces = fits(type, width) ? width / (type == Type::Bf16 ? kPiece<bf16> : kPiece<float>) : 0;
  return pieces > 0 && pieces <= 32 && (pieces & (pieces - 1)) == 0;
}

cudaError_t head_norm(Type type, const Rows& rows, const HeadNorm& in, void* out, cudaStream_t stream) {
  return with_type(type, [&](auto number) {
    using T = decltype(number);
    head_norm_forward<T><<<blocks_of(count_of(rows) * rows.width / kPiece<T>), kThreads, 0, stream>>>(rows, in, out);
    return cudaGetLastError();
  });
}

int64_t head_sums_size(int width) { return int64_t(kMostHeadBlocks) * 2 * width; }

cudaError_t head_norm_gradients(Type type, const Rows& rows, const HeadNorm& in, const void* grad, void* grad_x, float* sums, void* gain,
                                void* bias, cudaStream_t stream) {
  return with_type(type, [&](auto number) {
    using T = decltype(number);
    const int64_t heads = count_of(rows) * (rows.width / in.width), at_a_time = kThreads / (in.width / kPiece<T>);
    const int64_t rounds = (heads + at_a_time - 1) / at_a_time, chunk = (rounds + kMostHeadBlocks - 1) / kMostHeadBlocks * at_a_time;
    const unsigned blocks = unsigned((heads + chunk - 1) / chunk);
    head_norm_backward<T><<<blocks, kThreads, kHeadSumsShared<T>, stream>>>(rows, in, chunk, grad, grad_x, sums);
    if (sums != nullptr) {
      head_vector_gradients<T><<<blocks_of(2 * in.width * 32), kThreads, 0, stream>>>(in.width, int(blocks), sums, gain, bias);
    }
    return cudaGetLastError();
  });
}

cudaError_t rotate(Type type, const Rows& rows, int head_width, const void* x, const float* factors, float sign, void* out,
                   cudaStream_t stream) {
  return with_type(type, [&](auto number) {
    using T = decltype(number);
    const int64_t pieces = count_of(rows) * rows.width / kPiece<T>;
    rotated<T><<<blocks_of(pieces), kThreads, 0, stream>>>(rows, head_width, x, factors, sign, out);
    return cudaGetLastError();
  });
}

}  // namespace fused
