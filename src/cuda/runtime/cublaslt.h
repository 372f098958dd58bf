// Matmuls by cuBLASLt, which is loaded at the first matmul. All matrices are row-major, and sums are in fp32.
// The result of a matmul depends only on its operands, its shape and the GPU.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>
#include <octavo/types.h>

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace octavo::cuda {

// An FP8 operand: its type, and the codes that share an inverse scale.
struct Fp8Operand {
  fp8::Element element = fp8::Element::e4m3;
  fp8::Tiling tiling = fp8::Tiling::tensor;

  auto operator<=>(const Fp8Operand&) const = default;
};
struct Fp8Operands {
  Fp8Operand a, b;
  bool fast = false;  // sums are less precise than in fp32

  auto operator<=>(const Fp8Operands&) const = default;
};

// to[rows, columns] = a[rows, inner] · b[inner, columns], plus bias[columns], plus the previous `to`. A
// turned operand is stored transposed. A pitch is the number of elements from one row to the next.
struct Product {
  DType from = DType::f32;  // the type of a and b
  DType to = DType::f32;    // the type of a and b, or f32; a bias has it too
  // Replaces `from`. Hopper supports FP8 only for an a that is not transposed and a transposed b.
  std::optional<Fp8Operands> fp8;
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool a_turned = false, b_turned = false;
  std::int64_t a_pitch = 0, b_pitch = 0, to_pitch = 0;
  bool bias = false;
  bool add = false;

  auto operator<=>(const Product&) const = default;
};

struct ProductMemory {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* to = nullptr;
  const float* a_inverse = nullptr;  // for fp8 only
  const float* b_inverse = nullptr;
};

// The workspace of a matmul: with less, some shapes are slower.
inline constexpr std::size_t kProductWorkspace = fp8::workspace_bytes({DeviceKind::cuda, 0});

// Loads the library if it is not loaded. An error lists the names that were tried and how to install it.
Status load_products();

// Queues a matmul on the stream. `workspace` has kProductWorkspace bytes that no concurrent work uses,
// aligned to 256. Pitches are multiples of 16 bytes, and so are the addresses of FP8 matrices. The algorithm
// is chosen for the alignment of the addresses, up to 256.
Status multiply(const Product& product, const ProductMemory& memory, void* workspace, cudaStream_t stream);

}  // namespace octavo::cuda
