// Computes the sizes of a tensor's buffers.
// SPDX-License-Identifier: MIT
#include "optimizers/checks.h"
#include "optimizers/format_resolution.h"
#include "status/first_error.h"

namespace octavo {

SlotLayout slot_layout(StateFormat stored, Moment moment, std::int64_t block, std::int64_t numel,
                       cpu::Shape shape) {
  SlotLayout slot;
  slot.codes_bytes = (numel * describe(stored, moment).bits + 7) / 8;
  if (has_rank1_scales(stored, moment)) {
    slot.scales = cpu::rank1_maxima_count(shape);
  } else if (block > 0) {
    slot.scales = (numel + block - 1) / block;
  }
  return slot;
}

Result<TensorLayout> layout(const GroupConfig& config, const TensorSpec& spec) {
  OCTAVO_TRY(check_config(config));
  OCTAVO_TRY(check_spec(tag(config) + " spec", spec));
  OCTAVO_TRY(check_format_taken(tag(config) + " spec", config.algorithm, spec.format));
  const SlotList slots = slots_of(algorithm_index(config));
  const StateFormat stored = stored_format(spec.format, spec.ndim);
  const std::int64_t block = block_of(spec.format, spec.block_size);
  TensorLayout out;
  out.slots = slots.count;
  for (std::size_t i = 0; i < static_cast<std::size_t>(slots.count); ++i) {
    out.slot[i] = slot_layout(stored, slots.moment[i], block, spec.numel, {spec.shape.data(), spec.ndim});
    if (has_rank1_scales(stored, slots.moment[i])) out.workspace_bytes += 4 * out.slot[i].scales;
  }
  out.residual_bytes = residual_bytes(spec.store, spec.numel);
  return out;
}

Result<StateFormat> format_for(StateFormat wanted, std::int64_t whole_numel, std::int64_t min_quantized_size,
                               bool sharded) {
  OCTAVO_TRY(check_format("[format_for]", wanted, 0, whole_numel, {}, 0));
  if (default_block_size(wanted) > 0 && whole_numel < min_quantized_size) return StateFormat::fp32;
  if (sharded && has_rank1_scales(wanted)) {
    return Status::invalid("[format_for] a sharded parameter cannot have '", name(wanted), "' states: use '",
                           name(stored_format(wanted, 1)), "'");
  }
  return wanted;
}

}  // namespace octavo
