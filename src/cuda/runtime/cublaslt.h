// Products of matrices by cuBLASLt, which is loaded when the first product is asked for. All matrices are by
// rows; sums are in fp32. The result of a product depends on its operands, its shape and the GPU alone.
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

// An FP8 operand: its type, and which codes share an inverse scale.
struct Fp8Operand {
  fp8::Element element = fp8::Element::e4m3;
  fp8::Tiling tiling = fp8::Tiling::tensor;

  auto operator<=>(const Fp8Operand&) const = default;
};
struct Fp8Operands {
  Fp8Operand a, b;
  bool fast = false;  // sums are less precise than fp32's

  auto operator<=>(const Fp8Operands&) const = default;
};

// to[rows, columns] = a[rows, inner] · b[inner, columns], plus bias[columns], plus what `to` was. A turned
// operand lies transposed in memory. A pitch is the elements from a row to the next in memory.
struct Product {
  DType from = DType::f32;  // of a and b
  DType to = DType::f32;    // that of a and b, or f32; a bias has it too
  // Instead of `from`. Hopper has this product for an a that is not turned and a turned b alone.
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
  const float* a_inverse = nullptr;  // fp8 alone
  const float* b_inverse = nullptr;
};

// What a product may use besides its operands: with less, some shapes are slower.
inline constexpr std::size_t kProductWorkspace = fp8::workspace_bytes({DeviceKind::cuda, 0});

// Loads the library where that has not been done. An error says what was looked for and how to get it.
Status load_products();

// Queues a product on the stream. `workspace`: kProductWorkspace bytes that no other work uses meanwhile,
// aligned to 256. Pitches are multiples of 16 bytes, and so are the addresses of FP8 matrices. The algorithm
// is chosen for the alignment of the addresses, up to 256.
Status multiply(const Product& product, const ProductMemory& memory, void* workspace, cudaStream_t stream);

}  // namespace octavo::cuda
