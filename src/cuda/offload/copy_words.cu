// SPDX-License-Identifier: MIT
#include "cuda/offload/copy_words.h"

namespace octavo::cuda {
namespace {

__global__ void copy_words_kernel(const __grid_constant__ WordCopies copies) {
  const auto word = static_cast<std::int32_t>(threadIdx.x);
  for (std::int32_t i = 0; i < copies.count; ++i) {
    const WordCopies::One& one = copies.of[i];
    if (word < one.words)
      static_cast<std::uint32_t*>(one.to)[word] = static_cast<const std::uint32_t*>(one.from)[word];
  }
}

}  // namespace

cudaError_t copy_words(const WordCopies& copies, cudaStream_t stream) {
  copy_words_kernel<<<1, 32, 0, stream>>>(copies);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
