// SPDX-License-Identifier: MIT
#include "train/optim/optimizer.h"

#include "train/config/options.h"
#include "train/config/recipe.h"
#include "train/nn/fake.h"
#include "train/nn/recompute.h"
#include "train/optim/shards.h"

#include <octavo/describe.h>
#include <octavo/layout.h>
#include <octavo/offload.h>
#include <torch/torch.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace octavo_train {
namespace {

using octavo::torch::ParamState;

std::vector<torch::optim::OptimizerParamGroup> torch_groups(const octavo::AlgorithmInfo& info,
                                                            const ParameterGroups& groups) {
  std::vector<torch::optim::OptimizerParamGroup> out;
  for (std::size_t g = 0; g < groups.options.size(); ++g) {
    const GroupOptions& own = groups.options[g];
    auto options = std::make_unique<octavo::torch::AnyOptions>(std::string(info.name));
    options->lr(own.learning_rate).state(std::string(name(own.state)));
    if (const std::string decay(recipe::kDecay); options->has(decay)) options->set(decay, own.weight_decay);
    out.emplace_back(groups.tensors_of(g), std::move(options));
  }
  return out;
}

std::unique_ptr<octavo::torch::Optimizer> make_native(const TrainingSettings& training,
                                                      const ParameterGroups& groups) {
  const octavo::AlgorithmInfo* const info = describe(training.optimizer.algorithm);
  TORCH_CHECK(info != nullptr, "there is no optimizer with the number ",
              static_cast<std::uint32_t>(training.optimizer.algorithm));
  octavo::torch::AnyOptions options{std::string(info->name)};
  for (const octavo::Option& option : info->options) {
    options.set(std::string(option.name), option_value(training, info->number, option));
  }
  // The guard against non-finite gradients is on, because the trainer needs the gradient norm anyway.
  options.state(std::string(name(training.optimizer.state)))
      .master(master_name(weight_store(training)))
      .seed(training.seed)
      .clip_grad_norm(training.max_grad_norm)
      .skip_nonfinite(true)
      .offload(offload_name(training.offload))
      .offload_gradients(training.offload_gradients)
      .accumulate_in_fp32(training.offload_gradients && training.gradient_accumulation_steps > 1)
      .offload_ratio(training.offload_ratio)
      .gpu_state_budget(training.gpu_state_budget.value_or(-1));
  return octavo::torch::make_optimizer(torch_groups(*info, groups), options);
}

// Returns the tensors that the optimizer steps: the parameters, or this rank's pieces of them.
NamedTensors stepped_tensors(const NamedTensors& parameters, const ShardedWeights* shards) {
  NamedTensors out = parameters;
  for (std::size_t i = 0; shards != nullptr && i < out.size(); ++i) out[i].second = shards->pieces()[i];
  return out;
}

std::unique_ptr<ParamState> copy_of(const ParamState& state) {
  auto out = std::make_unique<ParamState>(state);
  ParamState::each(*out, [](const std::string&, torch::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.clone();
  });
  return out;
}

std::int64_t tensor_bytes(const torch::Tensor& t) {
  return t.defined() ? static_cast<std::int64_t>(t.nbytes()) : 0;
}

bool is_of(const ParamState& state, const octavo::torch::Kind& kind) {
  bool same = tensor_bytes(state.master) == kind.layout.residual_bytes;
  // A state without moments has no format.
  if (kind.layout.slots > 0)
    same = same && state.format == kind.format && state.block_size == kind.block_size;
  for (std::size_t slot = 0; slot < octavo::torch::kSlots; ++slot) {
    const bool used = slot < static_cast<std::size_t>(kind.layout.slots);
    same = same && tensor_bytes(state.codes[slot]) == (used ? kind.layout.codes_bytes[slot] : 0) &&
           tensor_bytes(state.scales[slot]) == (used ? 4 * kind.layout.scales[slot] : 0);
  }
  return same;
}

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
octavo::Residence wanted_residence(const TrainingSettings& training, bool on_cpu) {
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
}  // namespace

StepOptimizer::StepOptimizer(const TrainingSettings& training, ParameterGroups groups,
                             const ShardedWeights* shards)
    : algorithm_(training.optimizer.algorithm),
      parameters_(std::move(groups.parameters)),
      stepped_(stepped_tensors(parameters_, shards)),
      groups_(std::move(groups.options)),
      group_(std::move(groups.group)),
      highest_rate_(training.learning_rate),
      shards_(shards),
      offloads_gradients_(training.offload_gradients),
      optimizer_(make_native(training, {groups_, stepped_, group_, {}})) {
  if (training.offload_gradients) optimizer_->set_gradient_filter([] { return !gradients_come_again(); });
  if (shards_ != nullptr) {
    register_pieces();
  } else if (training.offload != Offload::none) {
    optimizer_->attach();  // not with shards: ranks gather their pieces right after the step
  }
}

void StepOptimizer::set_learning_rate(double rate) {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    optimizer_->param_groups()[g].options().set_lr(rate_of(groups_[g], highest_rate_, rate));
}

bool StepOptimizer::offloads_gradient(std::size_t parameter) {
  return offloads_gradients_ && is_offloaded(stepped_[parameter].second);
}

StepOptimizer::Bytes StepOptimizer::bytes() const {
  Bytes out;
  for (const auto& [name, tensor] : stepped_) {
    const ParamState* state = optimizer_->state_of(tensor);
    if (state == nullptr) continue;
    const bool there = is_offloaded(tensor);
    const std::int64_t master = tensor_bytes(state->master);
    (there ? out.host_master : out.master) += master;
    (there ? out.host_states : out.states) += state->bytes() - master;
  }
  out.host_copies = optimizer_->host_copy_bytes();
  out.workspace = optimizer_->workspace_bytes();
  return out;
}

void StepOptimizer::save(NamedTensors& tensors, nlohmann::ordered_json& scalars) const {
  std::vector<StateShard> pieces;
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    const ParamState* state = optimizer_->state_of(stepped_[i].second);
    if (state != nullptr) pieces.push_back({i, kind_of(i), state});
  }
  const std::vector<ParamState> whole =
      shards_ == nullptr ? std::vector<ParamState>() : gather_states(*shards_, pieces);
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const std::string& name = parameters_[pieces[p].parameter].first;
    const ParamState& state = *pieces[p].mine;
    scalars[name] = {{"step", state.step()},
                     {"format", state.format},
                     {"block_size", state.block_size},
                     {"algorithm", optimizer_->algorithm()}};
    ParamState::each(shards_ == nullptr ? state : whole[p],
                     [&](const std::string& part, const torch::Tensor& tensor) {
                       if (tensor.defined()) tensors.emplace_back(name + '.' + part, tensor);
                     });
  }
}

Status StepOptimizer::load(const NamedTensors& tensors, const nlohmann::ordered_json& scalars) {
  States states;
  std::size_t used = 0;
  for (const auto& [name, param] : parameters_) {
    auto& state = states.emplace_back();
    if (!scalars.contains(name)) continue;
    const nlohmann::ordered_json& mine = scalars.at(name);
    RETURN_IF_ERROR(check_algorithm(mine, name, algorithm_));
    state = std::make_unique<ParamState>();
    state->count = torch::tensor(mine.at("step").get<std::int64_t>(), torch::kInt64);
    state->format = mine.at("format").get<std::string>();
    state->block_size = mine.at("block_size").get<std::int64_t>();
    ParamState::each(*state, [&, key = name](const std::string& part, torch::Tensor& tensor) {
      if (const torch::Tensor* found = find_tensor(tensors, key + '.' + part)) tensor = *found, ++used;
    });
  }
  if (used != tensors.size()) {
    return invalid_error("it has {} tensors that belong to no parameter of this model{}",
                         tensors.size() - used, kConvertAdvice);
  }
  RETURN_IF_ERROR(check_kinds(states));
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i] == nullptr) continue;
    optimizer_->set_state(stepped_[i].second, shards_ != nullptr
                                                  ? cut_state(*shards_, i, kind_of(i), *states[i])
                                                  : copy_of(*states[i]));
  }
  return {};
}

// Registers this rank's tensors as pieces. A piece has the state format of its complete parameter, and the
// random numbers of its position in it. Norms and other values that an algorithm measures are reduced over
// ranks.
void StepOptimizer::register_pieces() {
  constexpr std::uint32_t kAllRanks = 1;
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    const torch::Tensor& piece = stepped_[i].second;
    if (shards_->undivided(i)) {
      optimizer_->set_format(piece, kind_of(i).format);
      optimizer_->set_shard(piece, {0, 0, kAllRanks});
    } else {
      optimizer_->set_shard(piece, {shards_->piece(i).begin, parameters_[i].second.numel(), kAllRanks});
    }
  }
  const auto over_ranks = [process_group = &shards_->process_group()](ProcessGroup::Reduce how) {
    return [process_group, how](std::uint32_t, const torch::Tensor& values) {
      process_group->all_reduce(values, how).wait();
    };
  };
  optimizer_->set_norm_reduce(over_ranks(ProcessGroup::Reduce::sum), over_ranks(ProcessGroup::Reduce::max));
}

// Returns the kind of a complete parameter's state, also before its first step creates it.
octavo::torch::Kind StepOptimizer::kind_of(std::size_t i) const {
  if (shards_ == nullptr) return optimizer_->kind_of(parameters_[i].second);
  const auto& options = optimizer_->param_groups()[group_[i]].options();
  return octavo::torch::kind_of(parameters_[i].second, static_cast<const octavo::torch::Options&>(options),
                                {}, nullptr, {optimizer_->algorithm(), group_[i], i});
}

bool StepOptimizer::is_offloaded(const torch::Tensor& tensor) const {
  return std::string_view(optimizer_->residence_of(tensor)) != "device";
}

// Compares formats and sizes of the saved states with those that a first step would create.
Status StepOptimizer::check_kinds(const States& states) const {
  std::string differing;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i] == nullptr) continue;
    const octavo::torch::Kind kind = kind_of(i);
    if (is_of(*states[i], kind)) continue;
    std::int64_t want = kind.layout.residual_bytes;
    for (int slot = 0; slot < kind.layout.slots; ++slot)
      want += kind.layout.codes_bytes[slot] + 4 * kind.layout.scales[slot];
    differing +=
        fmt::format("{}{}: {} states, {} bytes, expected {}, {} bytes", differing.empty() ? "" : "; ",
                    parameters_[i].first, states[i]->format, states[i]->bytes(), kind.format, want);
    if (states[i]->format == kind.format && states[i]->block_size != kind.block_size)
      differing += fmt::format(", block_size {}, expected {}", states[i]->block_size, kind.block_size);
  }
  if (differing.empty()) return {};
  return invalid_error(
      "its optimizer states are of another kind ({}); use the optimizer and master_weights that it was saved "
      "with, or start in another output_dir{}",
      differing, kConvertAdvice);
}

// States are placed in the order of the groups, as the optimizer does.
PlannedStates planned_states(const TrainingSettings& training, const ParameterGroups& groups,
                             const BucketLayout* parallel, int rank) {
  std::vector<octavo::TensorSpec> specs;
  std::vector<octavo::TensorLayout> layouts;
  std::vector<octavo::ResidenceTensor> tensors;
  for (std::size_t g = 0; g < groups.options.size(); ++g) {
    for (std::size_t i = 0; i < groups.parameters.size(); ++i) {
      if (groups.group[i] != g) continue;
      octavo::TensorSpec& spec = specs.emplace_back(spec_of(groups, i, training));
      const std::int64_t here = parallel != nullptr ? parallel->piece(i, rank).elements() : spec.numel;
      if (here != spec.numel) spec.numel = here, spec.ndim = 0;
      layouts.push_back(layout(group_config(training, training.optimizer.algorithm), spec).value());
      tensors.push_back({spec.numel, layouts.back().state_bytes() + layouts.back().residual_bytes});
    }
  }
  octavo::ResidenceOptions options;
  options.wanted = wanted_residence(
      training, !groups.parameters.empty() && (groups.parameters.front().second.is_cpu() ||
                                               is_fake_cpu(groups.parameters.front().second)));
  options.ratio = training.offload_ratio;
  options.budget = training.gpu_state_budget.value_or(-1);
  const std::vector<octavo::Residence> residences = octavo::choose_residences(tensors, options).value();

  PlannedStates out;
  StepOptimizer::Bytes& total = out.bytes;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const octavo::TensorLayout& laid = layouts[i];
    const bool here = residences[i] == octavo::Residence::device;
    total.host_copies += copies_of(specs[i], residences[i], training);
    (here ? total.states : total.host_states) += laid.state_bytes();
    (here ? total.master : total.host_master) += laid.residual_bytes;
    if (!here) continue;
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(laid.slots); ++slot) {
      out.buffers.push_back(laid.slot[slot].codes_bytes);
      out.buffers.push_back(4 * laid.slot[slot].scales);
    }
    out.masters.push_back(laid.residual_bytes);
  }
  return out;
}

bool has_bf16_weights(const TrainingSettings& training) {
  return training.compute_dtype == ComputeType::bfloat16;
}

const char* offload_name(Offload offload) {
  static const std::map<Offload, const char*> kNames = {
      {Offload::host, "host"}, {Offload::stream, "stream"}, {Offload::automatic, "auto"}};
  const auto found = kNames.find(offload);
  return found == kNames.end() ? "none" : found->second;
}

const char* master_name(octavo::WeightStore store) {
  using Store = octavo::WeightStore;
  static const std::map<Store, const char*> kNames = {
      {Store::residual8, "24"}, {Store::residual16, "32"}, {Store::stochastic, "stochastic"}};
  const auto found = kNames.find(store);
  return found == kNames.end() ? "none" : found->second;
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
  return invalid_error(
      "{}: its optimizer states are those of {}, expected {}; use the optimizer that it was saved with, or "
      "start in another output_dir",
      parameter, saved, name(algorithm));
}

const torch::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [each, tensor] : tensors) {
    if (each == name) return &tensor;
  }
  return nullptr;
}

}  // namespace octavo_train
