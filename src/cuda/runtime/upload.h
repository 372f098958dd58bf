// Copies host bytes to the device in stream order. The bytes travel as kernel arguments, so the caller need
// not keep them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

namespace octavo::cuda {

// Kernel arguments may have 4 KB, and 32 KB since CUDA 12.1.
#if CUDART_VERSION >= 12010
inline constexpr int kPiece = 28 * 1024;
#else
inline constexpr int kPiece = 3584;
#endif

cudaError_t upload(std::span<const std::byte> from, void* to, cudaStream_t stream);

}  // namespace octavo::cuda
