// The C ABI of the descriptions.
// SPDX-License-Identifier: MIT
#include "abi/c_common.h"

#include <octavo/describe.h>
#include <octavo/formats.h>

static_assert(sizeof octavo_step_args{}.own == sizeof octavo::HyperParams{}.own);

namespace {

using octavo::Status;
using octavo::c::guarded;
using octavo::c::refuse;
using octavo::c::value_or;
using octavo::c::write_struct;

void check_index(const char* name, int64_t index, std::size_t count) {
  if (index < 0 || index >= static_cast<int64_t>(count)) {
    refuse(std::string(name) + ": got " + std::to_string(index) + ", expected 0 to " +
           std::to_string(static_cast<int64_t>(count) - 1));
  }
}
const octavo::AlgorithmInfo& algorithm_at(int32_t index) {
  check_index("index", index, octavo::algorithms().size());
  return octavo::algorithms()[static_cast<std::size_t>(index)];
}

// Texts of descriptions are literals, so a zero follows them; an empty one may have no bytes.
const char* text_of(std::string_view text) { return text.empty() ? "" : text.data(); }

// Returns the offset of an option in octavo_step_args; -1 for an option that only switches.
int32_t place_in_args(const octavo::Option& option) {
  using H = octavo::HyperParams;
  using A = octavo_step_args;
  struct Pair {
    std::size_t from, to;
  };
  static constexpr Pair kPairs[] = {{offsetof(H, lr), offsetof(A, lr)},
                                    {offsetof(H, beta1), offsetof(A, beta1)},
                                    {offsetof(H, beta2), offsetof(A, beta2)},
                                    {offsetof(H, eps), offsetof(A, eps)},
                                    {offsetof(H, weight_decay), offsetof(A, weight_decay)},
                                    {offsetof(H, momentum), offsetof(A, momentum)},
                                    {offsetof(H, dampening), offsetof(A, dampening)},
                                    {offsetof(H, nesterov), offsetof(A, nesterov)},
                                    {offsetof(H, maximize), offsetof(A, maximize)}};
  for (const Pair& pair : kPairs) {
    if (option.at == static_cast<int32_t>(pair.from)) return static_cast<int32_t>(pair.to);
  }
  if (option.at < static_cast<int32_t>(offsetof(H, own))) return -1;
  return option.at - static_cast<int32_t>(offsetof(H, own)) + static_cast<int32_t>(offsetof(A, own));
}

}  // namespace

extern "C" {

int32_t octavo_algorithm_count(void) {
  return value_or(0, [] { return static_cast<int32_t>(octavo::algorithms().size()); });
}

octavo_status octavo_algorithm(int32_t index, octavo_algorithm_info* out) {
  return guarded([&]() -> Status {
    const octavo::AlgorithmInfo& info = algorithm_at(index);
    octavo_algorithm_info result{};
    result.number = static_cast<uint32_t>(info.number);
    result.name = text_of(info.name);
    result.title = text_of(info.title);
    result.family = static_cast<uint32_t>(octavo::family_of(info.number));
    result.decay = static_cast<uint32_t>(info.decay);
    result.options = static_cast<int32_t>(info.options.size());
    result.update_is_rate = info.update_is_rate ? 1 : 0;
    result.first_step_fills = info.first_step_fills ? 1 : 0;
    result.excluded_formats = info.excluded_formats;
    return write_struct("out", result, out);
  });
}

octavo_status octavo_algorithm_option(int32_t index, int32_t option, octavo_option_info* out) {
  return guarded([&]() -> Status {
    const octavo::AlgorithmInfo& info = algorithm_at(index);
    check_index("option", option, info.options.size());
    const octavo::Option& from = info.options[static_cast<std::size_t>(option)];
    octavo_option_info result{};
    result.range = static_cast<uint32_t>(from.range);
    result.name = text_of(from.name);
    result.tuple = text_of(from.tuple);
    result.value = from.value;
    result.offset = place_in_args(from);
    result.switch_bit = from.switches ? octavo::switch_bit(info.number, from.name) : -1;
    result.optional = from.optional ? 1 : 0;
    return write_struct("out", result, out);
  });
}

int32_t octavo_algorithm_slots(int32_t index, uint32_t switches) {
  const int32_t passes = octavo_algorithm_passes(index, switches);
  if (passes <= 0) return -1;
  return value_or(-1, [&] {
    const auto number = octavo::algorithms()[static_cast<std::size_t>(index)].number;
    return static_cast<int32_t>(octavo::slots(number, switches).size());
  });
}

int32_t octavo_algorithm_passes(int32_t index, uint32_t switches) {
  if (index < 0 || index >= octavo_algorithm_count()) return -1;
  return value_or(-1, [&] {
    const int passes = octavo::passes(octavo::algorithms()[static_cast<std::size_t>(index)].number, switches);
    return passes > 0 ? passes : -1;
  });
}

octavo_status octavo_algorithm_slot(int32_t index, uint32_t switches, int32_t slot, octavo_slot_info* out) {
  return guarded([&]() -> Status {
    const auto all = octavo::slots(algorithm_at(index).number, switches);
    check_index("slot", slot, all.size());
    const octavo::Slot& from = all[static_cast<std::size_t>(slot)];
    octavo_slot_info result{};
    result.moment = static_cast<uint32_t>(from.moment);
    result.name = text_of(from.name);
    result.peer = text_of(from.peer);
    return write_struct("out", result, out);
  });
}

int32_t octavo_format_count(void) {
  return value_or(0, [] { return static_cast<int32_t>(octavo::formats().size()); });
}

octavo_status octavo_format(int32_t index, octavo_format_info* out) {
  return guarded([&]() -> Status {
    check_index("index", index, octavo::formats().size());
    const octavo::FormatInfo& info = octavo::formats()[static_cast<std::size_t>(index)];
    octavo_format_info result{};
    result.number = static_cast<uint32_t>(info.number);
    result.name = text_of(info.name);
    result.default_block = info.default_block;
    for (std::size_t m = 0; m < info.moment.size(); ++m) {
      const octavo::MomentFormat& from = info.moment[m];
      result.moment[m] = {static_cast<uint32_t>(from.bits), static_cast<uint32_t>(from.scale),
                          static_cast<uint32_t>(from.rounding), from.zero_code, text_of(from.element)};
    }
    result.of_vectors = static_cast<uint32_t>(info.format_for_1d);
    return write_struct("out", result, out);
  });
}

}  // extern "C"
