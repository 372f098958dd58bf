// The public product: checks what it is given and leaves the work to the backend of its device.
// SPDX-License-Identifier: MIT
#include "core/first_error.h"
#include "fp8/backend.h"
#include "fp8/buffers.h"

#include <array>

namespace octavo::fp8 {
namespace {

constexpr std::int64_t kMostSide = std::int64_t{1} << 24;

Status check_side(const char* field, std::int64_t size) {
  if (size >= 0 && size <= kMostSide && size % kSide == 0) return {};
  return refuse(
      field, size,
      "a multiple of 16 from 0 to 2^24 (cast() fills matrices up with zeros; padded() is the size)");
}

// What cuBLASLt can multiply.
Status check_operands(const Matrix& a, const Matrix& b) {
  Status bad = first_error({check_enum("a.element", a.element), check_enum("b.element", b.element),
                            check_enum("a.tiling", a.tiling), check_enum("b.tiling", b.tiling)});
  if (!bad.ok()) return bad;
  if (a.element == Element::e5m2 && b.element == Element::e5m2)
    return refuse("b.element", "e5m2 like a.element", "e4m3 in one of them (no GPU multiplies two e5m2)");
  const auto blocks = [](Tiling t) { return t == Tiling::line || t == Tiling::square; };
  const bool fit = blocks(a.tiling)
                       ? blocks(b.tiling) && (a.tiling == Tiling::line || b.tiling == Tiling::line)
                       : a.tiling == b.tiling;
  if (fit) return {};
  return refuse("b.tiling",
                std::string(name(b.tiling)) + " with an a.tiling of " + std::string(name(a.tiling)),
                "tensor with tensor, row with row, or line with line or square");
}

Status check_memory(const ProductArgs& args) {
  const std::int64_t size = dtype_bytes(args.dtype);
  const std::array<Buffer, 5> buffers = {{
      {"a.data", args.a.data, args.rows * args.inner, 1, false},
      {"a.inverse", args.a.inverse, 4 * scale_count(args.a.tiling, args.rows, args.inner), 4, false},
      {"b.data", args.b.data, args.columns * args.inner, 1, false},
      {"b.inverse", args.b.inverse, 4 * scale_count(args.b.tiling, args.columns, args.inner), 4, false},
      {"to", args.to, args.rows * args.columns * size, size, true},
  }};
  return check_buffers(buffers);
}

}  // namespace

Status product(const ProductArgs& args) {
  if (Status bad = check_call(args.device, args.stream, args.threads); !bad.ok()) return bad;
  if (args.dtype > DType::f16)
    return refuse("dtype", static_cast<std::int64_t>(args.dtype), "0 (f32), 1 (bf16) or 2 (f16)");
  Status bad = first_error({check_side("rows", args.rows), check_side("columns", args.columns),
                            check_side("inner", args.inner), check_operands(args.a, args.b)});
  if (!bad.ok()) return bad;
  if (args.rows == 0 || args.columns == 0) return {};
  if (bad = check_memory(args); !bad.ok()) return bad;
  product_cpu(args);
  return {};
}

}  // namespace octavo::fp8
