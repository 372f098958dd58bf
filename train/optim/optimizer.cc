// Chooses the optimizer of a run, names it and computes the memory of its states.
// SPDX-License-Identifier: MIT
#include "train/optim/optimizer.h"

#include "train/config/options.h"
#include "train/config/recipe.h"
#include "train/nn/fake.h"
#include "train/optim/optimizer_factories.h"
#include "train/optim/shard_layout.h"

#include <octavo/describe.h>
#include <octavo/offload.h>
#include <octavo/optimizer.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

namespace octavo_train {
namespace {

octavo::DType dtype_of(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kBFloat16 ? octavo::DType::bf16 : octavo::DType::f32;
}

// Returns the spec of a complete parameter: its types, state format and master weights.
octavo::TensorSpec spec_of(const ParameterGroups& groups, std::size_t number,
                           const TrainingSettings& training) {
  const torch::Tensor& param = groups.parameters[number].second;
  octavo::TensorSpec spec;
  spec.numel = param.numel();
  if (param.dim() <= octavo::kMaxDims) {
    spec.ndim = static_cast<int>(param.dim());
    std::copy(param.sizes().begin(), param.sizes().end(), spec.shape.begin());
  }
  spec.param_dtype = dtype_of(param);
  spec.grad_dtype = spec.param_dtype;
  if (spec.param_dtype == octavo::DType::bf16) spec.store = weight_store(training);
  spec.format = octavo::format_for(groups.options[groups.group[number]].state, spec.numel).value();
  return spec;
}

// Returns where offloaded states live. `on_cpu`: the parameters are on the CPU.
octavo::Residence wanted(const TrainingSettings& training, bool on_cpu) {
  switch (training.offload) {
    case Offload::host:
      return octavo::Residence::host;
    case Offload::stream:
      return octavo::Residence::stream;
    case Offload::automatic:
      return on_cpu ? octavo::Residence::device : octavo::Residence::stream;
    case Offload::none:
      break;
  }
  return octavo::Residence::device;
}

// The layout of a tensor's state, and where it lives.
struct PlacedState {
  octavo::TensorLayout layout;
  octavo::Residence residence;
  std::int64_t copies = 0;  // bytes of the weight and its gradient in host memory, which the engine keeps
};
// Returns the bytes of the copies that the engine keeps in host memory. An update on the CPU needs a copy of
// the weight and of the gradient. Offloaded gradients need a copy too, in fp32 if they are summed over
// micro-batches.
std::int64_t copies_of(const octavo::TensorSpec& spec, octavo::Residence residence,
                       const TrainingSettings& training) {
  if (residence == octavo::Residence::device) return 0;
  const bool on_cpu = residence == octavo::Residence::host;
  const bool sums = training.offload_gradients && training.gradient_accumulation_steps > 1;
  const bool taken = on_cpu || training.offload_gradients;
  const std::int64_t weight = on_cpu ? octavo::dtype_bytes(spec.param_dtype) : 0;
  const std::int64_t gradient = taken ? octavo::dtype_bytes(sums ? octavo::DType::f32 : spec.grad_dtype) : 0;
  return spec.numel * (weight + gradient);
}
// Places states in the order of the groups, as the optimizer does.
std::vector<PlacedState> place_states(const OptimizerChoice& plan, const TrainingSettings& training,
                                      const ParameterGroups& groups,
                                      const std::vector<octavo::TensorSpec>& specs) {
  std::vector<octavo::TensorLayout> layouts;
  std::vector<const octavo::TensorSpec*> placed;
  std::vector<octavo::ResidenceTensor> tensors;
  for (std::size_t g = 0; g < groups.options.size(); ++g) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (groups.group[i] != g) continue;
      layouts.push_back(layout(group_config(training, plan.name.algorithm), specs[i]).value());
      placed.push_back(&specs[i]);
      tensors.push_back({specs[i].numel, layouts.back().state_bytes() + layouts.back().residual_bytes});
    }
  }
  octavo::ResidenceOptions options;
  const bool on_cpu = !groups.parameters.empty() && (groups.parameters.front().second.is_cpu() ||
                                                     is_fake_cpu(groups.parameters.front().second));
  if (plan.native) options.wanted = wanted(training, on_cpu);
  options.ratio = training.offload_ratio;
  options.budget = training.gpu_state_budget.value_or(-1);
  const std::vector<octavo::Residence> residences = octavo::choose_residences(tensors, options).value();
  std::vector<PlacedState> out;
  for (std::size_t i = 0; i < layouts.size(); ++i)
    out.push_back({layouts[i], residences[i], copies_of(*placed[i], residences[i], training)});
  return out;
}

StepOptimizer::Bytes bytes_of(const std::vector<PlacedState>& states) {
  StepOptimizer::Bytes total;
  for (const auto& [layout, residence, copies] : states) {
    const bool here = residence == octavo::Residence::device;
    total.host_copies += copies;
    (here ? total.states : total.host_states) += layout.state_bytes();
    (here ? total.master : total.host_master) += layout.residual_bytes;
  }
  return total;
}

PlannedStates planned(const std::vector<PlacedState>& states) {
  PlannedStates out;
  out.bytes = bytes_of(states);
  for (const auto& [layout, residence, copies] : states) {
    if (residence != octavo::Residence::device) continue;
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(layout.slots); ++slot) {
      out.buffers.push_back(layout.slot[slot].codes_bytes);
      out.buffers.push_back(4 * layout.slot[slot].scales);
    }
    out.masters.push_back(layout.residual_bytes);
  }
  return out;
}

// Returns true if a parameter group has a state format other than fp32, which plain LibTorch does not
// support.
bool asks_for_low_bits(const TrainingSettings& training) {
  return std::ranges::any_of(training.groups, [](const GroupSettings& each) {
    return each.state.value_or(octavo::StateFormat::fp32) != octavo::StateFormat::fp32;
  });
}

// Returns why the optimizer cannot run on the device; empty: it can.
std::string reason_against(const OptimizerName& name, const TrainingSettings& training,
                           const torch::Device& device, bool has_backend) {
  if (has_backend) return {};
  const std::string where = "there is no Octavo code for " + device.str() + " in this build";
  if (name.state != octavo::StateFormat::fp32) return where + ", and plain LibTorch has fp32 states alone";
  if (!plain_has(name.algorithm)) {
    return where + ", and plain LibTorch has no " + std::string(describe(name.algorithm)->title);
  }
  const MasterWeights master = training.master_weights;
  if (training.compute_dtype == ComputeType::bfloat16 && master != MasterWeights::automatic &&
      master != MasterWeights::bits32) {
    return where + ", and plain LibTorch trains fp32 weights (master_weights: 32)";
  }
  return {};
}

}  // namespace

Result<OptimizerChoice> choose_optimizer(const TrainingSettings& training, const torch::Device& device,
                                         bool has_backend) {
  OptimizerChoice plan{training.optimizer, has_backend, {}, false};
  std::string against = reason_against(plan.name, training, device, has_backend);
  if (!against.empty()) {
    if (!training.optimizer_fallback) {
      return Status::unsupported(
          "training.optimizer: " + optimizer_text(plan.name) + " cannot run here: " + against +
          "; set optimizer_fallback: " + std::string(recipe::kWithFp32) + ", or another device");
    }
    plan.name = *training.optimizer_fallback;
    plan.warning = optimizer_text(plan.name) + " is used instead of " + optimizer_text(training.optimizer) +
                   " (optimizer_fallback): " + against;
    against = reason_against(plan.name, training, device, has_backend);
    if (!against.empty()) {
      return Status::unsupported("training.optimizer_fallback: " + optimizer_text(plan.name) +
                                 " cannot run here either: " + against);
    }
  }
  if (!plan.native && asks_for_low_bits(training)) {
    if (plan.warning.empty()) {
      return Status::unsupported(
          "training.groups: their state formats cannot be used here: there is no Octavo "
          "code for " +
          device.str() +
          " in this build, and plain LibTorch has fp32 "
          "states alone; remove `state` from the groups, or use another device");
    }
    plan.warning += "; the states of training.groups are fp32, too";
  }
  if (!plan.native && training.offload != Offload::none && training.offload != Offload::automatic) {
    return Status::unsupported(
        "training.offload: states cannot live in host memory here: there is no Octavo code for " +
        device.str() + " in this build; use offload: none, or another device");
  }
  plan.bf16_weights = plan.native && training.compute_dtype == ComputeType::bfloat16;
  return plan;
}

const char* offload_name(Offload offload) {
  switch (offload) {
    case Offload::host:
      return "host";
    case Offload::stream:
      return "stream";
    case Offload::automatic:
      return "auto";
    case Offload::none:
      break;
  }
  return "none";
}

const char* master_name(octavo::WeightStore store) {
  switch (store) {
    case octavo::WeightStore::residual8:
      return "24";
    case octavo::WeightStore::residual16:
      return "32";
    case octavo::WeightStore::stochastic:
      return "stochastic";
    default:
      return "none";
  }
}

std::string optimizer_text(const OptimizerName& optimizer) {
  const octavo::AlgorithmInfo* const info = describe(optimizer.algorithm);
  const std::string algorithm(info == nullptr ? "unknown" : info->title);
  const std::string state(name(optimizer.state));
  const std::size_t digits = state.find_first_not_of("0123456789");  // 8bit: 8-bit
  return algorithm + " " + state.substr(0, digits) + (digits > 0 ? "-" : "") + state.substr(digits);
}

Status check_algorithm(const nlohmann::ordered_json& state, const std::string& parameter,
                       octavo::Algorithm algorithm) {
  const auto said = state.find("algorithm");
  if (said == state.end()) return {};
  const auto saved = said->get<std::string>();
  const auto known = octavo::parse_algorithm(saved);
  if (known.ok() && octavo::family_of(*known) == octavo::family_of(algorithm)) return {};
  return Status::invalid(parameter + ": its optimizer states are those of " + saved + ", expected " +
                         std::string(name(algorithm)) +
                         "; use the optimizer that it was saved with, or start in another output_dir");
}

PlannedStates planned_states(const OptimizerChoice& plan, const TrainingSettings& training,
                             const ParameterGroups& groups) {
  std::vector<octavo::TensorSpec> specs;
  for (std::size_t i = 0; i < groups.parameters.size(); ++i) specs.push_back(spec_of(groups, i, training));
  return planned(place_states(plan, training, groups, specs));
}

StepOptimizer::Bytes planned_bytes(const OptimizerChoice& plan, const TrainingSettings& training,
                                   const ParameterGroups& groups) {
  return planned_states(plan, training, groups).bytes;
}

PlannedStates planned_states(const OptimizerChoice& plan, const TrainingSettings& training,
                             const ParameterGroups& groups, const ParallelLayout& layout, int rank) {
  std::vector<octavo::TensorSpec> specs;
  for (std::size_t i = 0; i < groups.parameters.size(); ++i) {
    octavo::TensorSpec& spec = specs.emplace_back(spec_of(groups, i, training));
    const std::int64_t here = layout.piece(i, rank).elements();
    if (here != spec.numel) spec.numel = here, spec.ndim = 0;
  }
  return planned(place_states(plan, training, groups, specs));
}

StepOptimizer::Bytes planned_bytes(const OptimizerChoice& plan, const TrainingSettings& training,
                                   const ParameterGroups& groups, const ParallelLayout& layout, int rank) {
  return planned_states(plan, training, groups, layout, rank).bytes;
}

StepOptimizer::Bytes planned_bytes(const OptimizerChoice& plan, const TrainingSettings& training,
                                   const NamedTensors& parameters) {
  return planned_bytes(plan, training, one_group(plan.name, training, parameters));
}

std::unique_ptr<StepOptimizer> make_optimizer(const OptimizerChoice& plan, const TrainingSettings& training,
                                              ParameterGroups groups, const ShardedWeights* shards) {
  TORCH_CHECK(plan.native || shards == nullptr, "plain LibTorch's optimizers step whole parameters");
  return plan.native ? make_native_optimizer(plan.name, training, std::move(groups), shards)
                     : make_plain_optimizer(plan.name, training, std::move(groups));
}

std::unique_ptr<StepOptimizer> make_optimizer(const OptimizerChoice& plan, const TrainingSettings& training,
                                              NamedTensors parameters) {
  return make_optimizer(plan, training, one_group(plan.name, training, std::move(parameters)));
}

}  // namespace octavo_train
