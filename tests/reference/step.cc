// See step.h.
// SPDX-License-Identifier: MIT
#include "reference/step.h"

#include "reference/formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace reference {
namespace {

using octavo::Algorithm;
using octavo::GroupConfig;
using octavo::HyperParams;
using octavo::Moment;
using octavo::StepArgs;
using octavo::TensorArgs;
using octavo::WeightStore;

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double power(double base, std::int64_t exponent) {
  double result = 1.0;
  while (exponent > 0) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
    exponent /= 2;
  }
  return result;
}

bool is_adam(const GroupConfig& config) {
  return config.algorithm == Algorithm::adam || config.algorithm == Algorithm::adamw;
}

bool is_coupled(const GroupConfig& config, const HyperParams& hyper) {
  if (hyper.decay != octavo::Decay::by_name) return hyper.decay == octavo::Decay::coupled;
  return config.algorithm == Algorithm::adam || config.algorithm == Algorithm::sgd;
}

int slots_of(const GroupConfig& config) {
  if (is_adam(config)) return config.amsgrad ? 3 : 2;
  return config.algorithm == Algorithm::sgd && !config.momentum ? 0 : 1;
}

// The parameter at full precision: with its residual where it has one.
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

// New moments in `s`, new parameter returned.
float update(const GroupConfig& config, const StepArgs& args, float grad, float p, float* s) {
  const HyperParams& h = args.hyper;
  const auto lr = static_cast<float>(h.lr);
  const auto decay = static_cast<float>(h.weight_decay);
  const auto factor = static_cast<float>(args.grad_factor) * (h.maximize ? -1.0f : 1.0f);
  const auto beta1 = static_cast<float>(h.beta1);
  const auto beta2 = static_cast<float>(h.beta2);
  const auto rest1 = static_cast<float>(1.0 - h.beta1);
  const auto rest2 = static_cast<float>(1.0 - h.beta2);
  const bool coupled = is_coupled(config, h);
  const float keep = coupled ? 1.0f : static_cast<float>(1.0 - static_cast<double>(lr) * h.weight_decay);

  float g = grad * factor;
  if (coupled && h.weight_decay != 0.0) g = std::fma(decay, p, g);
  const float kept = p * keep;

  if (is_adam(config)) {
    s[0] = std::fma(beta1, s[0], rest1 * g);
    s[1] = std::fma(beta2, s[1], rest2 * (g * g));
    float variance = s[1];
    if (config.amsgrad) {
      if (s[1] > s[2] || std::isnan(s[1])) s[2] = s[1];
      variance = s[2];
    }
    const auto step_size = static_cast<float>(static_cast<double>(lr) / (1.0 - power(h.beta1, args.step)));
    const auto root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - power(h.beta2, args.step)));
    const float denominator = std::fma(std::sqrt(variance), root_scale, static_cast<float>(h.eps));
    return std::fma(-step_size, s[0] / denominator, kept);
  }
  if (config.algorithm == Algorithm::lion) {
    const float blend = std::fma(beta1, s[0], rest1 * g);
    const float sign = blend > 0.0f ? 1.0f : blend < 0.0f ? -1.0f : blend;
    s[0] = std::fma(beta2, s[0], rest2 * g);
    return std::fma(-lr, sign, kept);
  }
  if (!config.momentum) return std::fma(-lr, g, kept);
  const auto momentum = static_cast<float>(h.momentum);
  s[0] = args.step == 1 ? g : std::fma(momentum, s[0], static_cast<float>(1.0 - h.dampening) * g);
  return std::fma(-lr, h.nesterov ? std::fma(momentum, s[0], g) : s[0], kept);
}

void step_tensor(const GroupConfig& config, const TensorArgs& t, const StepArgs& args) {
  const int slots = slots_of(config);
  std::vector<std::vector<float>> state;
  for (int slot = 0; slot < slots; ++slot) {
    const auto spec = slot_spec(t.spec, slot);
    const auto& buffers = t.state[static_cast<std::size_t>(slot)];
    state.push_back(decode(
        spec, {static_cast<const std::uint8_t*>(buffers.codes), static_cast<std::size_t>(codes_bytes(spec))},
        {buffers.scales, static_cast<std::size_t>(scale_count(spec))}));
  }
  for (std::int64_t i = 0; i < t.spec.numel; ++i) {
    float s[octavo::kMaxSlots] = {};
    for (int slot = 0; slot < slots; ++slot)
      s[slot] = state[static_cast<std::size_t>(slot)][static_cast<std::size_t>(i)];
    store_param(t, args, i, update(config, args, load(t.spec.grad_dtype, t.grad, i), load_param(t, i), s));
    for (int slot = 0; slot < slots; ++slot)
      state[static_cast<std::size_t>(slot)][static_cast<std::size_t>(i)] = s[slot];
  }
  for (int slot = 0; slot < slots; ++slot) {
    const auto noise = [&](std::int64_t i) {
      return random16(args.seed, static_cast<std::uint64_t>(args.step), t.id,
                      static_cast<std::uint32_t>(1 + slot), static_cast<std::uint64_t>(t.offset + i));
    };
    const Encoded encoded = encode(slot_spec(t.spec, slot), state[static_cast<std::size_t>(slot)], noise);
    const auto& buffers = t.state[static_cast<std::size_t>(slot)];
    if (!encoded.codes.empty()) std::memcpy(buffers.codes, encoded.codes.data(), encoded.codes.size());
    if (!encoded.scales.empty())
      std::memcpy(buffers.scales, encoded.scales.data(), 4 * encoded.scales.size());
  }
}

}  // namespace

std::uint32_t random16(std::uint64_t seed, std::uint64_t step, std::uint64_t id, std::uint32_t stream,
                       std::uint64_t index) {
  const std::uint64_t key = mix(mix(mix(seed + kGolden) ^ (step + kGolden)) ^ (id * kGolden + stream));
  const std::uint64_t high_part = (index >> 32) << 32;
  const auto high = static_cast<std::uint32_t>(mix((key >> 32) ^ high_part));
  std::uint32_t x = static_cast<std::uint32_t>(index) ^ static_cast<std::uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x21F0AAADu;
  x = x ^ (x >> 15) ^ high;
  x = x * 0x735A2D97u;
  return (x ^ (x >> 15)) >> 16;
}

octavo::MomentSpec slot_spec(const octavo::TensorSpec& tensor, int slot) {
  octavo::MomentSpec spec;
  spec.moment = slot == 0 ? Moment::first : Moment::second;
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
