// The public dropout function: checks its arguments and calls the backend of the device.
// SPDX-License-Identifier: MIT
#include "dropout/backend.h"
#include "optimizers/checks.h"
#include "status/first_error.h"

#include <string>

namespace octavo {
namespace {

constexpr const char* kWhere = "[dropout]";

// Returns the number of elements.
Result<std::int64_t> check_sizes(const DropoutArgs& args) {
  std::int64_t numel = 1;
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"outer", args.outer}, {"batch", args.batch}, {"inner", args.inner}};
  for (const auto& [name, size] : sizes) {
    if (size < 0) {
      return Status::invalid(kWhere, " ", name, ": got ", size, ", expected at least 0");
    }
  }
  for (const auto& [name, size] : sizes) {
    constexpr std::int64_t kMost = std::int64_t{1} << 60;
    if (size != 0 && numel > kMost / size) {
      return Status::invalid(kWhere, " ", name, ": got ", size,
                             ", expected outer * batch * inner of at most 2^60");
    }
    numel *= size;
  }
  return numel;
}

// REQUIRES: checked sizes.
Status check_rows(const DropoutArgs& args) {
  const std::string where = kWhere;
  if (args.row == 0 && args.pitch == 0) return {};
  if (args.row < 1 || args.inner % args.row != 0) {
    return Status::invalid(where, " row: got ", args.row, ", expected a divisor of inner, ", args.inner,
                           ", or 0 with a pitch of 0");
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  const std::int64_t rows = args.outer * (args.inner / args.row);
  if (args.pitch < args.row || (rows != 0 && args.pitch > kMost / rows)) {
    return Status::invalid(where, " pitch: got ", args.pitch, ", expected at least row, ", args.row,
                           ", and at most 2^60 for all rows of a sample, ", rows);
  }
  return {};
}

Status check_buffers(const DropoutArgs& args, std::int64_t numel) {
  const std::string where = kWhere;
  const std::int64_t size = dtype_bytes(args.dtype), bytes = numel * size;
  OCTAVO_TRY(check_buffer(where + " from", args.from, bytes, size));
  OCTAVO_TRY(check_buffer(where + " to", args.to, bytes, size));
  OCTAVO_TRY(check_buffer(where + " samples", args.samples, 8 * args.batch, 8));
  const auto span = [](const void* data, std::int64_t count) {
    return std::span(static_cast<const std::byte*>(data), static_cast<std::size_t>(count));
  };
  if (args.to != args.from && shares_bytes(span(args.from, bytes), span(args.to, bytes))) {
    return Status::invalid(where + " to: overlaps from; it must be from itself or share no memory with it");
  }
  if (shares_bytes(span(args.samples, 8 * args.batch), span(args.to, bytes)))
    return Status::invalid(where + " to: overlaps samples; it must not share memory with them");
  return {};
}

}  // namespace

Status dropout(const DropoutArgs& args) {
  const std::string where = kWhere;
  OCTAVO_TRY(check_device(where, args.device));
  if (args.dtype > DType::f16) {
    return Status::invalid(where, " dtype: got ", static_cast<std::uint32_t>(args.dtype),
                           ", expected 0 (f32), 1 (bf16) or 2 (f16)");
  }
  if (!(args.probability >= 0.0 && args.probability < 1.0)) {
    return Status::invalid(where, " probability: got ", args.probability,
                           ", expected at least 0 and below 1");
  }
  const auto numel = check_sizes(args);
  if (!numel.ok()) return numel.status();
  OCTAVO_TRY(check_rows(args));
  OCTAVO_TRY(check_stream(where, args.device, args.stream));
  OCTAVO_TRY(check_threads(where, args.threads));
  if (*numel == 0) return {};
  OCTAVO_TRY(check_buffers(args, *numel));
  return args.device.kind == DeviceKind::cuda ? dropout_cuda(args) : dropout_cpu(args);
}

}  // namespace octavo
