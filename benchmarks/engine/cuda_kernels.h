// The kernels that benchmarks need besides the library's: reproducible data, and a reference copy.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/data.h"

#include <octavo/types.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace octavo::cli {

// Writes the first `numel` elements, like fill() in data.h.
cudaError_t launch_fill(void* data, DType dtype, std::uint64_t stream_of_data, int shift, std::int64_t numel,
                        const RowMask& mask, cudaStream_t stream);

// REQUIRES: `to` and `from` are aligned to 16 bytes, and `bytes` is a multiple of 16.
cudaError_t launch_copy(std::byte* to, const std::byte* from, std::int64_t bytes, cudaStream_t stream);

}  // namespace octavo::cli
