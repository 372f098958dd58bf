// Kernels for sums over rows by a fixed tree (bias gradients), and for the update of delayed scales.
// SPDX-License-Identifier: MIT
#include "cuda/fp8/tile.cuh"

#include <algorithm>

namespace octavo::cuda {
namespace {

using namespace fp8_tile;  // NOLINT(google-build-using-namespace)

// --- sums over rows ---

// Returns the sum of up to 2^kLevel rows from `row` on. Earlier rows are the left operand.
template <int kLevel>
__device__ inline float tree(const float* from, std::int64_t row, std::int64_t rows, std::int64_t columns) {
  if constexpr (kLevel == 0) {
    return from[row * columns];
  } else {
    constexpr std::int64_t kHalf = std::int64_t{1} << (kLevel - 1);
    const float left = tree<kLevel - 1>(from, row, rows, columns);
    if (row + kHalf >= rows) return left;
    return left + tree<kLevel - 1>(from, row + kHalf, rows, columns);
  }
}
constexpr int kLevels = 5;
static_assert(1 << kLevels == kSumRows);

__global__ void __launch_bounds__(kThreads)
    sum_rows_kernel(const float* from, std::int64_t rows, std::int64_t columns, float* to, bool last) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  for (std::int64_t i = blockIdx.y; i * kSumRows < rows; i += gridDim.y) {
    const float sum = tree<kLevels>(from + column, i * kSumRows, rows, columns);
    to[i * columns + column] = last ? sum + 0.0F : sum;
  }
}

// --- delayed scaling ---

// One block updates one tensor.
__global__ void __launch_bounds__(kThreads)
    update_kernel(float* states, std::int64_t length, fp8::AmaxAlgo algo, int margin) {
  const fp8::DelayedTensor tensor = fp8::DelayedTensor::at(states, length, blockIdx.x);
  const float recent = tensor.history[0];
  if (recent == 0.0F) return;  // the tensor was not used: all threads return
  float most = 0.0F;
  // Slots move down by one, and slot 0 moves to the end.
  for (std::int64_t first = 0; first < length; first += kThreads) {
    const std::int64_t i = first + threadIdx.x;
    const float next = i + 1 < length ? tensor.history[i + 1] : recent;
    __syncthreads();  // all reads of these slots are done
    if (i >= length) continue;
    most = next > most ? next : most;  // NaN is ignored
    tensor.history[i] = i == 0 ? 0.0F : next;
  }
  const float all = block_maximum(most);
  if (threadIdx.x != 0) return;
  const float amax = algo == fp8::AmaxAlgo::max ? all : recent;
  for (const fp8::Element element : {fp8::Element::e4m3, fp8::Element::e5m2}) {
    float& scale = tensor.scales[static_cast<int>(element)];
    scale = formula::delayed_scale(amax, ldexpf(largest_of(element), -margin), scale);
  }
}

}  // namespace

cudaError_t sum_rows(const float* from, std::int64_t rows, std::int64_t columns, float* to, bool last,
                     cudaStream_t stream) {
  const auto down = static_cast<unsigned>(std::min<std::int64_t>((rows + kSumRows - 1) / kSumRows, 65535));
  const dim3 grid(static_cast<unsigned>((columns + kThreads - 1) / kThreads), down);
  sum_rows_kernel<<<grid, kThreads, 0, stream>>>(from, rows, columns, to, last);
  return cudaGetLastError();
}

cudaError_t update_fp8_scales(const fp8::ScaleUpdate& update, cudaStream_t stream) {
  update_kernel<<<static_cast<unsigned>(update.tensors), kThreads, 0, stream>>>(update.states, update.length,
                                                                                update.algo, update.margin);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
