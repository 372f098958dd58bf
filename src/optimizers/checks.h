// Checks of specs and arguments. `where` begins the message, for example "[name] tensors[3]".
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace octavo {

Status check_config(const GroupConfig& config);
Status check_format(const std::string& where, StateFormat format, std::int64_t block, std::int64_t numel,
                    const std::array<std::int64_t, kMaxDims>& shape, int ndim);
Status check_spec(const std::string& where, const TensorSpec& spec);
Status check_format_taken(const std::string& where, Algorithm algorithm, StateFormat format);
Status check_tensors(const GroupConfig& config, std::span<const TensorArgs> tensors);
// A buffer's address range, for the search for overlaps.
struct BufferRange {
  std::uintptr_t begin, end;
  bool written;
  std::size_t tensor;
  const char* field;
};
// Checks one tensor without regard to others and adds its buffers to `ranges`. REQUIRES: a checked config.
Status check_tensor(const std::string& where, const GroupConfig& config, const TensorArgs& t,
                    std::size_t number, bool with_grad, std::vector<BufferRange>& ranges);
Status check_step(const GroupConfig& config, const StepArgs& args, std::int64_t workspace_bytes);
// Rejects a buffer that is null, misaligned or wraps around the address space.
Status check_buffer(const std::string& where, const void* data, std::int64_t bytes, std::int64_t alignment);

// check_grads checks the gradients of a NormGroup or grad_norm. check_apart rejects a written buffer that
// overlaps with gradients.
Status check_grads(std::span<const GradView> grads);
Status check_apart(const char* field, std::span<const std::byte> bytes, std::span<const GradView> grads);
Status check_device(const std::string& where, Device device);
Status check_stream(const std::string& where, Device device, const void* stream);
Status check_threads(const std::string& where, int threads);
// `source` is the name of the function that returns the number of bytes.
Status check_workspace(const std::string& where, std::span<const std::byte> workspace, std::int64_t needed,
                       const char* source);

bool shares_bytes(std::span<const std::byte> a, std::span<const std::byte> b);
// Returns the name of a tensor's buffer that shares bytes with `other`, or null.
const char* overlapping(const TensorArgs& t, const TensorLayout& size, std::span<const std::byte> other);

std::string tag(const GroupConfig& config);

}  // namespace octavo
