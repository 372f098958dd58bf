// The public cast: checks its arguments and calls the device's implementation.
// SPDX-License-Identifier: MIT
#include "formula/describe.h"
#include "fp8/backend.h"
#include "fp8/buffers.h"
#include "fp8/column_sums.h"
#include "fp8/limits.h"
#include "fp8/tiles.h"
#include "status/first_error.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace octavo::fp8 {
namespace {

Status check_sizes(const CastArgs& args) {
  if (args.groups < 0 || args.groups > kMostGroups) return invalid("groups", args.groups, "0 to 65535");
  if (args.rows < 0) return invalid("rows", args.rows, "at least 0");
  if (args.columns < 0) return invalid("columns", args.columns, "at least 0");
  for (const auto& [field, size] : {std::pair("rows", args.rows), std::pair("columns", args.columns)}) {
    if (size > kMostElements) return invalid(field, size, "at most 2^48");
  }
  const std::int64_t most = kMostElements / std::max<std::int64_t>(args.groups, 1);
  if (args.rows > 0 && padded(args.columns) > most / padded(args.rows))
    return invalid("columns", args.columns, "groups * rows * columns of at most 2^48");
  return {};
}

Status check_enums(const CastArgs& args) {
  if (args.dtype > DType::f16)
    return invalid("dtype", static_cast<std::int64_t>(args.dtype), "0 (f32), 1 (bf16) or 2 (f16)");
  Status bad = first_error({check_enum("recipe", args.recipe), check_enum("operand", args.operand),
                            check_enum("activation", args.activation),
                            check_enum("by_rows.element", args.by_rows.element),
                            check_enum("transposed.element", args.transposed.element)});
  if (!bad.ok()) return bad;
  if (args.bias_grad != nullptr && args.activation != Activation::none) {
    return invalid("bias_grad", "a buffer together with the activation " + std::string(name(args.activation)),
                   "one of them: a gradient is cast as it is");
  }
  if (args.bias_grad != nullptr && args.groups > 1)
    return invalid("bias_grad", "a buffer together with " + std::to_string(args.groups) + " groups",
                   "one group");
  if (args.by_rows.data == nullptr && args.transposed.data == nullptr)
    return invalid("by_rows.data", "null, like transposed.data", "a buffer for one of them or both");
  return {};
}

// The names of the buffers of one matrix of codes in messages.
struct Fields {
  const char *data, *inverse, *scale;
};
void add_codes(const CastArgs& args, const Codes& out, std::int64_t rows, std::int64_t inner,
               const Fields& fields, std::vector<Buffer>& buffers) {
  if (out.data == nullptr) return;
  const Tiling shared = tiling(args.recipe, args.operand);
  const std::int64_t scales = group_scales(shared, scale_count(shared, rows, inner), args.groups);
  buffers.push_back({fields.data, out.data, args.groups * rows * inner, 1, true});
  buffers.push_back({fields.inverse, out.inverse, 4 * scales, 4, true});
  if (args.recipe == Recipe::delayed) buffers.push_back({fields.scale, out.scale, 4, 4, false});
}

std::int64_t workspace_of(const CastArgs& args) {
  return args.bias_grad == nullptr ? 0 : cast_workspace_bytes(args.device, args.rows, args.columns);
}

Status check_memory(const CastArgs& args) {
  const std::int64_t rows = padded(args.rows), columns = padded(args.columns);
  const std::int64_t size = dtype_bytes(args.dtype);
  std::vector<Buffer> buffers = {
      {"from", args.from, args.groups * args.rows * args.columns * size, size, false}};
  add_codes(args, args.by_rows, rows, columns, {"by_rows.data", "by_rows.inverse", "by_rows.scale"}, buffers);
  add_codes(args, args.transposed, columns, rows,
            {"transposed.data", "transposed.inverse", "transposed.scale"}, buffers);
  if (args.amax != nullptr) buffers.push_back({"amax", args.amax, 4, 4, true});
  if (args.bias_grad != nullptr) buffers.push_back({"bias_grad", args.bias_grad, 4 * args.columns, 4, true});
  if (const std::int64_t bytes = workspace_of(args); bytes > 0) {
    if (args.workspace == nullptr || args.workspace_bytes < bytes) {
      return invalid("workspace",
                     args.workspace == nullptr ? "null" : std::to_string(args.workspace_bytes) + " bytes",
                     "a buffer of " + std::to_string(bytes) + " bytes for bias_grad on a GPU");
    }
    buffers.push_back({"workspace", args.workspace, bytes, 4, true});
  }
  return check_buffers(buffers);
}

// On the CPU the value of a scale can be checked.
Status check_scale(const CastArgs& args, const Codes& out, const char* field) {
  if (args.recipe != Recipe::delayed || out.data == nullptr) return {};
  if (std::isfinite(*out.scale) && *out.scale > 0.0F) return {};
  return invalid(field, formula::shown(static_cast<double>(*out.scale)),
                 "a finite number above 0 (a new history begins with 1)");
}

}  // namespace

std::int64_t cast_workspace_bytes(Device device, std::int64_t rows, std::int64_t columns) {
  if (device.kind != DeviceKind::cuda || rows <= 0 || columns <= 0) return 0;
  return 4 * columns * rows_of_levels(tiles_in(rows));
}

Status cast(const CastArgs& args) {
  if (Status bad = check_call(args.device, args.stream, args.threads); !bad.ok()) return bad;
  if (Status bad = check_sizes(args); !bad.ok()) return bad;
  if (Status bad = check_enums(args); !bad.ok()) return bad;
  if (args.groups == 0 || args.rows == 0 || args.columns == 0) return {};
  if (Status bad = check_memory(args); !bad.ok()) return bad;
  if (args.device.kind == DeviceKind::cuda) return cast_cuda(args);
  if (Status bad = check_scale(args, args.by_rows, "by_rows.scale"); !bad.ok()) return bad;
  if (Status bad = check_scale(args, args.transposed, "transposed.scale"); !bad.ok()) return bad;
  cast_cpu(args);
  return {};
}

}  // namespace octavo::fp8
