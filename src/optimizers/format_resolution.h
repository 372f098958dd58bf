// Finds what a configuration means: the rule of update, the codec of each moment, the block and the layout.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include "core/descriptions.h"
#include "cpu/kernels.h"

#include <octavo/codec.h>
#include <octavo/formats.h>

#include <algorithm>

namespace octavo {

// Returns the index of a configuration in Algorithms, or Algorithms::kSize if check_config rejects it.
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

// The functions below REQUIRE a registered format.
inline StateFormat stored_format(StateFormat format, int ndim) {
  return ndim < 2 ? describe(format)->format_for_1d : format;
}
inline const MomentFormat& describe(StateFormat stored, Moment moment) {
  return describe(stored)->moment[static_cast<std::size_t>(moment)];
}
inline bool has_rank1_scales(StateFormat stored, Moment moment) {
  return describe(stored, moment).scale == ScalePolicy::axis;
}
inline bool has_rank1_scales(StateFormat stored) {
  return has_rank1_scales(stored, Moment::first) || has_rank1_scales(stored, Moment::second);
}
inline std::int64_t block_of(StateFormat format, std::int64_t asked) {
  return asked != 0 ? asked : default_block_size(format);
}
// Returns the alignment of both moments' codes: that of the element, or 1 for eight bits and fewer.
inline std::int64_t code_alignment(StateFormat format) {
  const auto& moments = describe(format)->moment;
  return std::max({1, moments[0].bits / 8, moments[1].bits / 8});
}

// REQUIRES: a checked spec.
SlotLayout slot_layout(StateFormat stored, Moment moment, std::int64_t block, std::int64_t numel,
                       cpu::Shape shape);

}  // namespace octavo
