// Copies of a few words in device memory by one small kernel.
// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// At most 32 words are copied from each source.
struct WordCopies {
  struct One {
    void* to;
    const void* from;
    std::int32_t words;
  };
  static constexpr std::int32_t kMost = 4;
  One of[kMost];
  std::int32_t count;
};
cudaError_t copy_words(const WordCopies& copies, cudaStream_t stream);

}  // namespace octavo::cuda
