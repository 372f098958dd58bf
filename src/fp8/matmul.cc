// The public matmul: checks its arguments and calls the device's implementation.
// SPDX-License-Identifier: MIT
#include "fp8/backend.h"
#include "fp8/buffers.h"
#include "fp8/limits.h"
#include "status/first_error.h"

#include <array>

namespace octavo::fp8 {
namespace {

Status check_side(const std::string& field, std::int64_t size) {
  if (size >= 0 && size <= kMostSide && size % kSide == 0) return {};
  return invalid(
      field, size,
      "a multiple of 16 from 0 to 2^24 (cast() fills matrices up with zeros; padded() is the size)");
}

Status check_matrix(const std::string& field, const Matrix& matrix) {
  return first_error({check_side(field + ".rows", matrix.rows), check_side(field + ".inner", matrix.inner),
                      check_enum(field + ".element", matrix.element),
                      check_enum(field + ".tiling", matrix.tiling)});
}

// Checks that cuBLASLt supports the combination of operands. REQUIRES: checked matrices.
Status check_operands(const Matrix& a, const Matrix& b) {
  if (a.inner != b.inner)
    return invalid("b.inner", b.inner, std::to_string(a.inner) + ", that of a: sums are over it");
  if (a.element == Element::e5m2 && b.element == Element::e5m2)
    return invalid("b.element", "e5m2 like a.element", "e4m3 in one of them (no GPU multiplies two e5m2)");
  const auto blocks = [](Tiling t) { return t == Tiling::tile_1x128 || t == Tiling::tile_128x128; };
  const bool fit = blocks(a.tiling) ? blocks(b.tiling) &&
                                          (a.tiling == Tiling::tile_1x128 || b.tiling == Tiling::tile_1x128)
                                    : a.tiling == b.tiling;
  if (fit) return {};
  return invalid("b.tiling",
                 std::string(name(b.tiling)) + " with an a.tiling of " + std::string(name(a.tiling)),
                 "tensor with tensor, row with row, or tile_1x128 with tile_1x128 or tile_128x128");
}

Status check_memory(const MatmulArgs& args) {
  const Matrix &a = args.a, &b = args.b;
  const std::int64_t size = dtype_bytes(args.dtype);
  const std::array<Buffer, 5> buffers = {{
      {"a.data", a.data, a.rows * a.inner, 1, false},
      {"a.inverse", a.inverse, 4 * scale_count(a.tiling, a.rows, a.inner), 4, false},
      {"b.data", b.data, b.rows * b.inner, 1, false},
      {"b.inverse", b.inverse, 4 * scale_count(b.tiling, b.rows, b.inner), 4, false},
      {"to", args.to, a.rows * b.rows * size, size, true},
  }};
  return check_buffers(buffers);
}

}  // namespace

Status matmul(const MatmulArgs& args) {
  if (Status bad = check_call(args.device, args.stream, args.threads); !bad.ok()) return bad;
  if (args.dtype > DType::f16)
    return invalid("dtype", static_cast<std::int64_t>(args.dtype), "0 (f32), 1 (bf16) or 2 (f16)");
  if (Status bad = first_error({check_matrix("a", args.a), check_matrix("b", args.b)}); !bad.ok()) return bad;
  if (Status bad = check_operands(args.a, args.b); !bad.ok()) return bad;
  if (args.a.rows == 0 || args.b.rows == 0) return {};
  if (Status bad = check_memory(args); !bad.ok()) return bad;
  if (args.device.kind == DeviceKind::cuda) return matmul_cuda(args);
  matmul_cpu(args);
  return {};
}

}  // namespace octavo::fp8
