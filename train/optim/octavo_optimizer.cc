// Implements StepOptimizer with Octavo's optimizers. The guard against non-finite gradients is on, because
// the trainer needs the gradient norm anyway. The optimizers step complete parameters, or this rank's pieces
// of them. Saved and loaded states are always those of complete parameters.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/config/options.h"
#include "train/config/recipe.h"
#include "train/nn/recompute.h"
#include "train/optim/optimizer_factories.h"
#include "train/optim/sharded_states.h"
#include "train/optim/sharded_weights.h"

#include <octavo/describe.h>
#include <octavo/torch/optim.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <string_view>
#include <utility>

namespace octavo_train {
namespace {

using Native = octavo::torch::Optimizer;
using octavo::torch::ParamState;

using Group = ::torch::optim::OptimizerParamGroup;

std::vector<Group> native_groups(const octavo::AlgorithmInfo& info, const ParameterGroups& groups) {
  std::vector<Group> out;
  for (std::size_t g = 0; g < groups.options.size(); ++g) {
    const GroupOptions& own = groups.options[g];
    auto options = std::make_unique<octavo::torch::AnyOptions>(std::string(info.name));
    options->lr(own.learning_rate).state(std::string(name(own.state)));
    if (const std::string decay(recipe::kDecay); options->has(decay)) options->set(decay, own.weight_decay);
    out.emplace_back(groups.tensors_of(g), std::move(options));
  }
  return out;
}

std::unique_ptr<Native> make(const OptimizerName& optimizer, const TrainingSettings& training,
                             const ParameterGroups& groups) {
  const octavo::AlgorithmInfo* const info = describe(optimizer.algorithm);
  TORCH_CHECK(info != nullptr, "there is no optimizer with the number ",
              static_cast<std::uint32_t>(optimizer.algorithm));
  octavo::torch::AnyOptions options{std::string(info->name)};
  for (const octavo::Option& option : info->options) {
    options.set(std::string(option.name), option_value(training, info->number, option));
  }
  options.state(std::string(name(optimizer.state)))
      .master(master_name(weight_store(training)))
      .seed(training.seed)
      .max_grad_norm(training.max_grad_norm)
      .guard(true)
      .offload(offload_name(training.offload))
      .offload_gradients(training.offload_gradients)
      .accumulate_in_fp32(training.offload_gradients && training.gradient_accumulation_steps > 1)
      .offload_ratio(training.offload_ratio)
      .gpu_state_budget(training.gpu_state_budget.value_or(-1));
  return octavo::torch::make_optimizer(native_groups(*info, groups), options);
}

// Returns the tensors that the optimizer steps: the parameters, or this rank's pieces of them.
NamedTensors stepped(const NamedTensors& parameters, const ShardedWeights* shards) {
  NamedTensors out = parameters;
  for (std::size_t i = 0; shards != nullptr && i < out.size(); ++i) out[i].second = shards->pieces()[i];
  return out;
}

std::unique_ptr<ParamState> copy_of(const ParamState& state) {
  auto out = std::make_unique<ParamState>(state);
  ParamState::each(*out, [](const std::string&, ::torch::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.clone();
  });
  return out;
}

class NativeOptimizer : public StepOptimizer {
 public:
  NativeOptimizer(const OptimizerName& name, const TrainingSettings& training, ParameterGroups groups,
                  const ShardedWeights* shards)
      : algorithm_(name.algorithm),
        parameters_(std::move(groups.parameters)),
        stepped_(stepped(parameters_, shards)),
        groups_(std::move(groups.options)),
        group_(std::move(groups.group)),
        highest_rate_(training.learning_rate),
        shards_(shards) {
    optimizer_ = make(name, training, {groups_, stepped_, group_, {}});
    if (training.offload_gradients) optimizer_->set_take_filter([] { return !gradients_come_again(); });
    if (shards_ != nullptr) {
      share();
    } else if (training.offload != Offload::none) {
      optimizer_->attach();  // not with shards: ranks gather their pieces right after the step
    }
    takes_ = training.offload_gradients;
  }

  void set_learning_rate(double rate) override {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      optimizer_->param_groups()[g].options().set_lr(rate_of(groups_[g], highest_rate_, rate));
  }
  void set_loss_scale(::torch::Tensor scale) override { optimizer_->set_loss_scale(std::move(scale)); }
  void step() override { optimizer_->step(); }
  [[nodiscard]] ::torch::Tensor grad_norm() const override { return optimizer_->grad_norm(); }
  [[nodiscard]] ::torch::Tensor skipped() const override { return optimizer_->skipped(); }

  void wait() override { optimizer_->wait(); }
  void wait(const ::torch::nn::Module& module) override { optimizer_->wait(module); }
  [[nodiscard]] bool takes(std::size_t parameter) override {
    return takes_ && is_offloaded(stepped_[parameter].second);
  }
  void take(std::size_t parameter) override { optimizer_->take(stepped_[parameter].second); }
  void drop() override { optimizer_->drop_taken(); }

  [[nodiscard]] Bytes bytes() const override {
    Bytes out;
    for (const auto& [name, tensor] : stepped_) {
      const ParamState* state = optimizer_->state_of(tensor);
      if (state == nullptr) continue;
      const bool there = is_offloaded(tensor);
      const std::int64_t master = bytes_of(state->master);
      (there ? out.host_master : out.master) += master;
      (there ? out.host_states : out.states) += state->bytes() - master;
    }
    out.host_copies = optimizer_->host_copy_bytes();
    out.workspace = optimizer_->workspace_bytes();
    return out;
  }

  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override {
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
      numbers[name] = {{"step", state.step()},
                       {"format", state.format},
                       {"block_size", state.block_size},
                       {"algorithm", optimizer_->algorithm()}};
      ParamState::each(shards_ == nullptr ? state : whole[p],
                       [&](const std::string& part, const ::torch::Tensor& tensor) {
                         if (tensor.defined()) tensors.emplace_back(name + '.' + part, tensor);
                       });
    }
  }

  Status load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override {
    std::vector<std::unique_ptr<ParamState>> states;
    std::size_t used = 0;
    for (const auto& [name, param] : parameters_) {
      auto& state = states.emplace_back();
      if (!numbers.contains(name)) continue;
      const nlohmann::ordered_json& mine = numbers.at(name);
      RETURN_IF_ERROR(check_algorithm(mine, name, algorithm_));
      state = std::make_unique<ParamState>();
      state->count = ::torch::tensor(mine.at("step").get<std::int64_t>(), ::torch::kInt64);
      state->format = mine.at("format").get<std::string>();
      state->block_size = mine.at("block_size").get<std::int64_t>();
      ParamState::each(*state, [&, key = name](const std::string& part, ::torch::Tensor& tensor) {
        if (const ::torch::Tensor* found = find_tensor(tensors, key + '.' + part)) tensor = *found, ++used;
      });
    }
    if (used != tensors.size()) {
      return Status::invalid("it has " + std::to_string(tensors.size() - used) +
                             " tensors that no parameter of this model has a place for" + kConvertAdvice);
    }
    RETURN_IF_ERROR(fits(states));
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (states[i] == nullptr) continue;
      optimizer_->set_state(stepped_[i].second, shards_ != nullptr
                                                    ? cut_state(*shards_, i, kind_of(i), *states[i])
                                                    : copy_of(*states[i]));
    }
    return {};
  }

 private:
  // Registers this rank's tensors as pieces. A piece has the state format of its complete parameter, and the
  // random numbers of its position in it. Norms and other values that an algorithm measures are reduced over
  // ranks.
  void share() {
    constexpr std::uint32_t kAllRanks = 1;
    for (std::size_t i = 0; i < stepped_.size(); ++i) {
      const ::torch::Tensor& piece = stepped_[i].second;
      if (shards_->undivided(i)) {
        optimizer_->set_format(piece, kind_of(i).format);
        optimizer_->set_shard(piece, {0, 0, kAllRanks});
      } else {
        optimizer_->set_shard(piece, {shards_->piece(i).begin, parameters_[i].second.numel(), kAllRanks});
      }
    }
    const auto over_ranks = [world = &shards_->world()](ProcessGroup::Reduce how) {
      return [world, how](std::uint32_t, const ::torch::Tensor& values) {
        world->all_reduce(values, how).wait();
      };
    };
    optimizer_->set_norm_reduce(over_ranks(ProcessGroup::Reduce::sum), over_ranks(ProcessGroup::Reduce::max));
  }

  // Returns the kind of a complete parameter's state, also before its first step creates it.
  [[nodiscard]] octavo::torch::Kind kind_of(std::size_t i) const {
    if (shards_ == nullptr) return optimizer_->kind_of(parameters_[i].second);
    const auto& options = optimizer_->param_groups()[group_[i]].options();
    return octavo::torch::kind_of(parameters_[i].second, static_cast<const octavo::torch::Options&>(options),
                                  {}, nullptr, {optimizer_->algorithm(), group_[i], i});
  }

  [[nodiscard]] bool is_offloaded(const ::torch::Tensor& tensor) const {
    return std::string_view(optimizer_->residence_of(tensor)) != "device";
  }

  static std::int64_t bytes_of(const ::torch::Tensor& t) {
    return t.defined() ? static_cast<std::int64_t>(t.nbytes()) : 0;
  }

  static bool is_of(const ParamState& state, const octavo::torch::Kind& kind) {
    bool same = bytes_of(state.master) == kind.layout.residual_bytes;
    // A state without moments has no format.
    if (kind.layout.slots > 0)
      same = same && state.format == kind.format && state.block_size == kind.block_size;
    for (std::size_t slot = 0; slot < octavo::torch::kSlots; ++slot) {
      const bool used = slot < static_cast<std::size_t>(kind.layout.slots);
      same = same && bytes_of(state.codes[slot]) == (used ? kind.layout.codes_bytes[slot] : 0) &&
             bytes_of(state.scales[slot]) == (used ? 4 * kind.layout.scales[slot] : 0);
    }
    return same;
  }

  // Compares formats and sizes of the saved states with those that a first step would create.
  [[nodiscard]] Status fits(const std::vector<std::unique_ptr<ParamState>>& states) const {
    std::string differing;
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (states[i] == nullptr) continue;
      const std::string& name = parameters_[i].first;
      const octavo::torch::Kind kind = kind_of(i);
      if (is_of(*states[i], kind)) continue;
      std::int64_t want = kind.layout.residual_bytes;
      for (int slot = 0; slot < kind.layout.slots; ++slot)
        want += kind.layout.codes_bytes[slot] + 4 * kind.layout.scales[slot];
      if (!differing.empty()) differing += "; ";
      differing += name + ": " + states[i]->format + " states, " + std::to_string(states[i]->bytes()) +
                   " bytes, expected " + kind.format + ", " + std::to_string(want) + " bytes";
      if (states[i]->format == kind.format && states[i]->block_size != kind.block_size) {
        differing += ", block_size " + std::to_string(states[i]->block_size) + ", expected " +
                     std::to_string(kind.block_size);
      }
    }
    if (differing.empty()) return {};
    return Status::invalid(
        "its optimizer states are of another kind (" + differing +
        "); use the optimizer and master_weights that it was saved with, or start in another output_dir" +
        kConvertAdvice);
  }

  octavo::Algorithm algorithm_;
  NamedTensors parameters_;  // of all groups, in the model's order
  NamedTensors stepped_;     // the parameters, or this rank's pieces of them
  std::vector<GroupOptions> groups_;
  std::vector<std::size_t> group_;  // by parameter
  double highest_rate_;
  const ShardedWeights* shards_;  // null: complete parameters are stepped
  bool takes_ = false;            // gradients are offloaded to host memory
  std::unique_ptr<Native> optimizer_;
};

}  // namespace

std::unique_ptr<StepOptimizer> make_native_optimizer(const OptimizerName& name,
                                                     const TrainingSettings& training, ParameterGroups groups,
                                                     const ShardedWeights* shards) {
  return std::make_unique<NativeOptimizer>(name, training, std::move(groups), shards);
}

}  // namespace octavo_train
