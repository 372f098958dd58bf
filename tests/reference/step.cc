// See step.h.
// SPDX-License-Identifier: MIT
#include "tests/reference/step.h"

#include "tests/reference/formats.h"
#include "tests/reference/rules.h"

#include <cstring>
#include <utility>
#include <vector>

namespace reference {
namespace {

using octavo::GroupConfig;
using octavo::StepArgs;
using octavo::TensorArgs;
using octavo::WeightStore;

// Returns the parameter at full precision: with its residual if it has one.
float load_param(const TensorArgs& t, std::int64_t i) {
  if (t.spec.store != WeightStore::residual8 && t.spec.store != WeightStore::residual16) {
    return load(t.spec.param_dtype, t.param, i);
  }
  std::uint16_t high;
  std::memcpy(&high, static_cast<const char*>(t.param) + 2 * i, 2);
  std::int32_t residual = 0;
  if (t.spec.store == WeightStore::residual8) {
    residual = static_cast<const std::int8_t*>(t.residual)[i] * 256;
  } else {
    std::int16_t low;
    std::memcpy(&low, static_cast<const char*>(t.residual) + 2 * i, 2);
    residual = low;
  }
  if ((high & 0x7FFFu) == 0 && residual < 0) residual = 0;  // the weight was set to zero from outside
  return from_bits((static_cast<std::uint32_t>(high) << 16) + static_cast<std::uint32_t>(residual));
}

void store_param(const TensorArgs& t, const StepArgs& args, std::int64_t i, float value) {
  char* high_at = static_cast<char*>(t.param) + 2 * i;
  const std::uint32_t bits = bits_of(canonical(value));
  switch (t.spec.store) {
    case WeightStore::nearest:
      store_nearest(t.spec.param_dtype, t.param, i, value);
      return;
    case WeightStore::stochastic: {
      const std::uint32_t noise = random16(args.seed, static_cast<std::uint64_t>(args.step), t.id, 0,
                                           static_cast<std::uint64_t>(t.offset + i));
      const std::uint16_t code = bf16_stochastic(value, noise);
      std::memcpy(high_at, &code, 2);
      return;
    }
    case WeightStore::residual16: {
      const auto high = static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
      const auto low = static_cast<std::int16_t>(bits - (static_cast<std::uint32_t>(high) << 16));
      std::memcpy(high_at, &high, 2);
      std::memcpy(static_cast<char*>(t.residual) + 2 * i, &low, 2);
      return;
    }
    case WeightStore::residual8: {
      const std::uint32_t master = (bits + 0x80u) & ~0xFFu;  // 24 bits
      const auto high = static_cast<std::uint16_t>((master + 0x8000u) >> 16);
      const auto rest = static_cast<std::int32_t>(master - (static_cast<std::uint32_t>(high) << 16));
      std::memcpy(high_at, &high, 2);
      static_cast<std::int8_t*>(t.residual)[i] = static_cast<std::int8_t>(rest / 256);
      return;
    }
  }
}

using States = std::vector<std::vector<float>>;

// Calls f(element, its moments) for every element of a tensor.
template <class F>
void for_elements(const TensorArgs& t, const States& state, F f) {
  for (std::int64_t i = 0; i < t.spec.numel; ++i) {
    float s[octavo::kMaxSlots] = {};
    for (std::size_t slot = 0; slot < state.size(); ++slot)
      s[slot] = state[slot][static_cast<std::size_t>(i)];
    f(i, s);
  }
}

float tensor_ratio(const GroupConfig& config, const TensorArgs& t, const StepArgs& args,
                   const States& state) {
  std::vector<double> weights;
  std::vector<double> updates;
  for_elements(t, state, [&](std::int64_t i, float* s) {
    const double w = load_param(t, i);
    const double u = unscaled_update(config, args, load(t.spec.grad_dtype, t.grad, i), load_param(t, i), s);
    weights.push_back(w * w);
    updates.push_back(u * u);
  });
  return ratio(config, args, tree_sum(std::move(weights)), tree_sum(std::move(updates)));
}

void step_tensor(const GroupConfig& config, const TensorArgs& t, const StepArgs& args) {
  const int slots = static_cast<int>(moments_of(config).size());
  States state;
  for (int slot = 0; slot < slots; ++slot) {
    const auto spec = slot_spec(config, t.spec, slot);
    const auto& buffers = t.state[static_cast<std::size_t>(slot)];
    state.push_back(decode(
        spec, {static_cast<const std::uint8_t*>(buffers.codes), static_cast<std::size_t>(codes_bytes(spec))},
        {buffers.scales, static_cast<std::size_t>(scale_count(spec))}));
  }
  const float factor = has_trust_ratio(config) ? tensor_ratio(config, t, args, state) : 1.0f;
  for_elements(t, state, [&](std::int64_t i, float* s) {
    const float grad = load(t.spec.grad_dtype, t.grad, i);
    store_param(t, args, i, update(config, args, grad, load_param(t, i), s, factor));
    for (std::size_t slot = 0; slot < state.size(); ++slot)
      state[slot][static_cast<std::size_t>(i)] = s[slot];
  });
  for (int slot = 0; slot < slots; ++slot) {
    const auto noise = [&](std::int64_t i) {
      const auto step = static_cast<std::uint64_t>(args.step);
      const auto index = static_cast<std::uint64_t>(t.offset + i);
      if (is_small_float(t.spec.format)) return code_random16(args.seed, step, t.id, slot, index);
      return random16(args.seed, step, t.id, static_cast<std::uint32_t>(1 + slot), index);
    };
    const Encoded encoded =
        encode(slot_spec(config, t.spec, slot), state[static_cast<std::size_t>(slot)], noise);
    const auto& buffers = t.state[static_cast<std::size_t>(slot)];
    if (!encoded.codes.empty()) std::memcpy(buffers.codes, encoded.codes.data(), encoded.codes.size());
    if (!encoded.scales.empty())
      std::memcpy(buffers.scales, encoded.scales.data(), 4 * encoded.scales.size());
  }
}

}  // namespace

octavo::MomentSpec slot_spec(const GroupConfig& config, const octavo::TensorSpec& tensor, int slot) {
  octavo::MomentSpec spec;
  spec.moment = moments_of(config)[static_cast<std::size_t>(slot)];
  spec.format = tensor.format;
  spec.block_size = tensor.block_size;
  spec.numel = tensor.numel;
  spec.shape = tensor.shape;
  spec.ndim = tensor.ndim;
  return spec;
}

void step(const GroupConfig& config, std::span<const TensorArgs> tensors, const StepArgs& args) {
  for (const TensorArgs& t : tensors) step_tensor(config, t, args);
}

}  // namespace reference
