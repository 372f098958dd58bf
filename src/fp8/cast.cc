// The public cast: checks what it is given and leaves the work to the backend of its device.
// SPDX-License-Identifier: MIT
#include "core/first_error.h"
#include "formula/describe.h"
#include "fp8/backend.h"
#include "fp8/buffers.h"

#include <cmath>
#include <vector>

namespace octavo::fp8 {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

Status check_sizes(const CastArgs& args) {
  if (args.rows < 0) return refuse("rows", args.rows, "at least 0");
  if (args.columns < 0) return refuse("columns", args.columns, "at least 0");
  for (const auto& [field, size] : {std::pair("rows", args.rows), std::pair("columns", args.columns)}) {
    if (size > kMostElements) return refuse(field, size, "at most 2^48");
  }
  if (args.rows > 0 && padded(args.columns) > kMostElements / padded(args.rows))
    return refuse("columns", args.columns, "rows * columns of at most 2^48");
  return {};
}

Status check_enums(const CastArgs& args) {
  if (args.dtype > DType::f16)
    return refuse("dtype", static_cast<std::int64_t>(args.dtype), "0 (f32), 1 (bf16) or 2 (f16)");
  Status bad = first_error({check_enum("recipe", args.recipe), check_enum("operand", args.operand),
                            check_enum("activation", args.activation),
                            check_enum("by_rows.element", args.by_rows.element),
                            check_enum("turned.element", args.turned.element)});
  if (!bad.ok()) return bad;
  if (args.bias_grad != nullptr && args.activation != Activation::none) {
    return refuse("bias_grad", "a buffer together with the activation " + std::string(name(args.activation)),
                  "one of them: a gradient is cast as it is");
  }
  if (args.by_rows.data == nullptr && args.turned.data == nullptr)
    return refuse("by_rows.data", "null, like turned.data", "a buffer for one of them or both");
  return {};
}

// What is written for one matrix of codes, and its scale.
struct Fields {
  const char *data, *inverse, *scale;
};
void add_codes(const CastArgs& args, const Codes& out, std::int64_t rows, std::int64_t inner,
               const Fields& fields, std::vector<Buffer>& buffers) {
  if (out.data == nullptr) return;
  const std::int64_t scales = scale_count(tiling(args.recipe, args.operand), rows, inner);
  buffers.push_back({fields.data, out.data, rows * inner, 1, true});
  buffers.push_back({fields.inverse, out.inverse, 4 * scales, 4, true});
  if (args.recipe == Recipe::delayed) buffers.push_back({fields.scale, out.scale, 4, 4, false});
}

Status check_memory(const CastArgs& args) {
  const std::int64_t rows = padded(args.rows), columns = padded(args.columns);
  const std::int64_t size = dtype_bytes(args.dtype);
  std::vector<Buffer> buffers = {{"from", args.from, args.rows * args.columns * size, size, false}};
  add_codes(args, args.by_rows, rows, columns, {"by_rows.data", "by_rows.inverse", "by_rows.scale"}, buffers);
  add_codes(args, args.turned, columns, rows, {"turned.data", "turned.inverse", "turned.scale"}, buffers);
  if (args.amax != nullptr) buffers.push_back({"amax", args.amax, 4, 4, true});
  if (args.bias_grad != nullptr) buffers.push_back({"bias_grad", args.bias_grad, 4 * args.columns, 4, true});
  return check_buffers(buffers);
}

// On the CPU a scale can be looked at.
Status check_scale(const CastArgs& args, const Codes& out, const char* field) {
  if (args.recipe != Recipe::delayed || out.data == nullptr) return {};
  if (std::isfinite(*out.scale) && *out.scale > 0.0F) return {};
  return refuse(field, formula::shown(static_cast<double>(*out.scale)),
                "a finite number above 0 (a new history begins with 1)");
}

}  // namespace

Status cast(const CastArgs& args) {
  if (Status bad = check_call(args.device, args.stream, args.threads); !bad.ok()) return bad;
  if (Status bad = check_sizes(args); !bad.ok()) return bad;
  if (Status bad = check_enums(args); !bad.ok()) return bad;
  if (args.rows == 0 || args.columns == 0) return {};
  if (Status bad = check_memory(args); !bad.ok()) return bad;
  if (Status bad = check_scale(args, args.by_rows, "by_rows.scale"); !bad.ok()) return bad;
  if (Status bad = check_scale(args, args.turned, "turned.scale"); !bad.ok()) return bad;
  cast_cpu(args);
  return {};
}

}  // namespace octavo::fp8
