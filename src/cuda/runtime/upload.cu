// SPDX-License-Identifier: MIT
#include "cuda/runtime/upload.h"

#include <algorithm>
#include <cstring>

namespace octavo::cuda {
namespace {

struct Piece {
  alignas(16) std::byte bytes[kPiece];
};

__global__ void upload_kernel(const __grid_constant__ Piece piece, void* to, int words) {
  const auto* from = reinterpret_cast<const uint4*>(piece.bytes);
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x))
    static_cast<uint4*>(to)[i] = from[i];
}

}  // namespace

cudaError_t upload(std::span<const std::byte> from, void* to, cudaStream_t stream) {
  for (std::size_t at = 0; at < from.size(); at += kPiece) {
    Piece piece;
    const std::size_t size = std::min<std::size_t>(kPiece, from.size() - at);
    memcpy(piece.bytes, from.data() + at, size);
    upload_kernel<<<1, 256, 0, stream>>>(piece, static_cast<std::byte*>(to) + at,
                                         static_cast<int>((size + 15) / 16));
  }
  return cudaGetLastError();
}

}  // namespace octavo::cuda
