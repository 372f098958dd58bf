// From the public vocabulary to the lists: which rule of update, which codec, which block.
// SPDX-License-Identifier: MIT
#pragma once

#include "core/descriptions.h"
#include "cpu/kernels.h"
#include "formula/step_args.h"

#include <octavo/codec.h>
#include <octavo/formats.h>

#include <algorithm>
#include <vector>

namespace octavo {

// A GroupConfig as an index into Algorithms; Algorithms::kSize for one that check_config refuses.
inline std::size_t algorithm_index(const GroupConfig& config) {
  return rule_index(config.algorithm, switches_of(config));
}

struct SlotList {
  int count;
  std::array<Moment, kMaxSlots> moment;
};
inline SlotList slots_of(std::size_t algorithm) {
  const RuleFacts& rule = kRuleFacts[algorithm];
  return {rule.slots, formula::moments_of(rule.state)};
}

// What follows REQUIRES a known format.
inline StateFormat stored_format(StateFormat format, int ndim) {
  return ndim < 2 ? describe(format)->of_vectors : format;
}
inline const MomentFormat& describe(StateFormat stored, Moment moment) {
  return describe(stored)->moment[static_cast<std::size_t>(moment)];
}
inline bool has_axis_scales(StateFormat stored, Moment moment) {
  return describe(stored, moment).scale == ScalePolicy::axis;
}
inline bool has_axis_scales(StateFormat stored) {
  return has_axis_scales(stored, Moment::first) || has_axis_scales(stored, Moment::second);
}
inline std::int64_t block_of(StateFormat format, std::int64_t asked) {
  return asked != 0 ? asked : default_block_size(format);
}
// Of the codes of both moments: whole elements, or any byte for eight bits and fewer.
inline std::int64_t code_alignment(StateFormat format) {
  const auto& moments = describe(format)->moment;
  return std::max({1, moments[0].bits / 8, moments[1].bits / 8});
}

// REQUIRES: a checked spec.
SlotLayout slot_layout(StateFormat stored, Moment moment, std::int64_t block, std::int64_t numel,
                       cpu::Shape shape);

// The checks of specs and arguments; `where` begins the message, as in "[name] tensors[3]".
Status check_config(const GroupConfig& config);
Status check_format(const std::string& where, StateFormat format, std::int64_t block, std::int64_t numel,
                    const std::array<std::int64_t, kMaxDims>& shape, int ndim);
Status check_spec(const std::string& where, const TensorSpec& spec);
Status check_format_taken(const std::string& where, Algorithm algorithm, StateFormat format);
Status check_tensors(const GroupConfig& config, std::span<const TensorArgs> tensors);
// A buffer, by which overlap is found.
struct BufferRange {
  std::uintptr_t begin, end;
  bool written;
  std::size_t tensor;
  const char* field;
};
// A tensor without regard to others. Adds its buffers to `ranges`. REQUIRES: a checked config.
Status check_tensor(const std::string& where, const GroupConfig& config, const TensorArgs& t,
                    std::size_t number, bool with_grad, std::vector<BufferRange>& ranges);
Status check_step(const GroupConfig& config, const StepArgs& args, std::int64_t workspace_bytes);
// Null, misaligned or wrapping buffers.
Status check_buffer(const std::string& where, const void* data, std::int64_t bytes, std::int64_t alignment);

// What a NormGroup or grad_norm is given; check_apart: a buffer that is written and the gradients.
Status check_grads(std::span<const GradView> grads);
Status check_apart(const char* field, std::span<const std::byte> bytes, std::span<const GradView> grads);
Status check_device(const std::string& where, Device device);
Status check_stream(const std::string& where, Device device, const void* stream);
Status check_threads(const std::string& where, int threads);
// `source`: the function that gives the number of bytes.
Status check_workspace(const std::string& where, std::span<const std::byte> workspace, std::int64_t needed,
                       const char* source);

bool shares_bytes(std::span<const std::byte> a, std::span<const std::byte> b);
// The name of a tensor's buffer that shares bytes with `other`, or null.
const char* overlapping(const TensorArgs& t, const TensorLayout& size, std::span<const std::byte> other);

std::string tag(const GroupConfig& config);

}  // namespace octavo
