// Benchmark configurations of the algorithms, derived from their descriptions; see algorithm.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/algorithm.h"

#include <algorithm>
#include <iterator>

namespace octavo::cli {
namespace {

constexpr double kDecay = 0.01;    // nonzero, so that weight decay is measured and in the checksum
constexpr double kSwitched = 0.9;  // value of a switch that is a number, such as momentum

bool is_on(const GroupConfig& config, const Option& option) {
  const int bit = option.switches ? switch_bit(config.algorithm, option.name) : -1;
  return bit >= 0 && ((config.switches >> bit) & 1U) != 0;
}

}  // namespace

GroupConfig usual_config(Algorithm algorithm) {
  GroupConfig config;
  config.algorithm = algorithm;
  config.momentum = false;  // a switch like the others
  const bool keeps_nothing = slots(algorithm, 0).empty();
  config.switches = keeps_nothing && !slots(algorithm, 1).empty() ? 1U : 0U;
  return config;
}

std::vector<std::string_view> switch_names(const GroupConfig& config) {
  std::vector<std::string_view> out;
  for (const Option& option : describe(config.algorithm)->options) {
    if (is_on(config, option)) out.push_back(option.name);
  }
  return out;
}

std::vector<std::string_view> all_switches(std::span<const Algorithm> among) {
  std::vector<std::string_view> out;
  for (const Algorithm algorithm : among) {
    for (const Option& option : describe(algorithm)->options) {
      if (option.switches && std::ranges::find(out, option.name) == out.end()) out.push_back(option.name);
    }
  }
  return out;
}

std::string algorithm_label(const GroupConfig& config) {
  GroupConfig beyond = config;
  beyond.switches &= ~usual_config(config.algorithm).switches;
  std::string out(name(config.algorithm));
  for (const std::string_view each : switch_names(beyond)) out.append(" ").append(each);
  return out;
}

HyperParams usual_hyper(const GroupConfig& config) {
  HyperParams hyper = defaults(config.algorithm);
  for (const Option& option : describe(config.algorithm)->options) {
    if (option.name == "weight_decay") set(hyper, option, kDecay);
    if (option.switches) set(hyper, option, is_on(config, option) ? kSwitched : 0.0);
  }
  return hyper;
}

octavo_step_args usual_options(const GroupConfig& config) {
  const HyperParams hyper = usual_hyper(config);
  auto out = make<octavo_step_args>();
  out.lr = hyper.lr;
  out.beta1 = hyper.beta1;
  out.beta2 = hyper.beta2;
  out.eps = hyper.eps;
  out.weight_decay = hyper.weight_decay;
  out.momentum = hyper.momentum;
  out.dampening = hyper.dampening;
  out.nesterov = hyper.nesterov ? 1 : 0;
  out.maximize = hyper.maximize ? 1 : 0;
  std::copy(std::begin(hyper.own), std::end(hyper.own), out.own);
  return out;
}

octavo_engine_tensor engine_tensor(const TensorSpec& spec, Device device) {
  auto out = make<octavo_engine_tensor>();
  out.param_dtype = static_cast<std::uint32_t>(spec.param_dtype);
  out.store = static_cast<std::uint32_t>(spec.store);
  out.format = static_cast<std::uint32_t>(spec.format);
  out.block_size = spec.block_size;
  out.numel = spec.numel;
  out.ndim = spec.ndim;
  std::ranges::copy(spec.shape, out.shape);
  out.param_device_kind = out.state_device_kind = static_cast<std::uint32_t>(device.kind);
  out.param_device_index = out.state_device_index = device.index;
  return out;
}

}  // namespace octavo::cli
