// Implements StepOptimizer with LibTorch's own optimizers, for devices that Octavo has no code for. The norm,
// clipping and the check for non-finite gradients are implemented here. The host waits for the norm in each
// step.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/config/options.h"
#include "train/optim/optimizer_factories.h"

#include <octavo/describe.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>

namespace octavo_train {
namespace {

namespace optim = torch::optim;

// Accesses the tensors of a parameter's state and its step. `part` is the number of a slot
// (octavo/describe.h), which has torch's name for the tensor. A tensor that torch has not created yet is
// undefined.
template <class State>
struct Parts;
template <class State>
struct AdamParts {
  static torch::Tensor get(const State& state, std::size_t part) {
    return part == 0 ? state.exp_avg() : part == 1 ? state.exp_avg_sq() : state.max_exp_avg_sq();
  }
  static void set(State& state, std::size_t part, const torch::Tensor& tensor) {
    part == 0 ? state.exp_avg(tensor) : part == 1 ? state.exp_avg_sq(tensor) : state.max_exp_avg_sq(tensor);
  }
  static std::int64_t step(const State& state) { return state.step(); }
  static void set_step(State& state, std::int64_t step) { state.step(step); }
};
template <>
struct Parts<optim::AdamWParamState> : AdamParts<optim::AdamWParamState> {};
template <>
struct Parts<optim::AdamParamState> : AdamParts<optim::AdamParamState> {};
template <>
struct Parts<optim::SGDParamState> {
  static torch::Tensor get(const optim::SGDParamState& state, std::size_t /*part*/) {
    return state.momentum_buffer();
  }
  static void set(optim::SGDParamState& state, std::size_t /*part*/, const torch::Tensor& tensor) {
    state.momentum_buffer(tensor);
  }
  static std::int64_t step(const optim::SGDParamState& /*state*/) { return 0; }
  static void set_step(optim::SGDParamState& /*state*/, std::int64_t /*step*/) {}
};

// The options that all groups share.
struct Wanted {
  octavo::Algorithm algorithm{};
  octavo::HyperParams hyper;
  std::span<const octavo::Slot> slots;  // descriptions of the moments that it keeps
  double max_norm = 0;
};

template <class Optimizer, class State>
class PlainOptimizer : public StepOptimizer {
 public:
  // options_of(group) returns torch's options of a group.
  template <class OptionsOf>
  PlainOptimizer(ParameterGroups groups, const Wanted& wanted, const OptionsOf& options_of)
      : wanted_(wanted),
        optimizer_(torch_groups(groups, options_of), options_of(groups.options[0])),
        parameters_(std::move(groups.parameters)),
        groups_(std::move(groups.options)) {}

  void set_learning_rate(double rate) override {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      optimizer_.param_groups()[g].options().set_lr(rate_of(groups_[g], wanted_.hyper.lr, rate));
  }
  void set_loss_scale(torch::Tensor scale) override { scale_ = std::move(scale); }

  void step() override {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> grads, norms;
    for (const auto& [name, param] : parameters_) {
      if (!param.grad().defined()) continue;
      grads.push_back(param.grad());
      norms.push_back(param.grad().norm(2, torch::kFloat32));
    }
    norm_ = norms.empty() ? torch::zeros({}) : torch::stack(norms).norm();
    const double unscale = scale_.defined() ? 1.0 / scale_.item<double>() : 1.0;
    const double norm = norm_.item<double>() * unscale;
    skipped_ = torch::full({}, std::isfinite(norm) ? 0 : 1, torch::kUInt8);
    if (!std::isfinite(norm)) return;
    const double clip = wanted_.max_norm > 0 ? std::min(1.0, wanted_.max_norm / (norm + 1e-6)) : 1.0;
    for (torch::Tensor& grad : grads) grad.mul_(clip * unscale);
    optimizer_.step();
  }
  [[nodiscard]] torch::Tensor grad_norm() const override { return norm_; }
  [[nodiscard]] torch::Tensor skipped() const override { return skipped_; }

  [[nodiscard]] Bytes bytes() const override {
    Bytes out;
    NamedTensors tensors;
    nlohmann::ordered_json numbers;
    save(tensors, numbers);
    for (const auto& [name, tensor] : tensors) out.states += static_cast<std::int64_t>(tensor.nbytes());
    return out;
  }

  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override {
    for (const auto& [name, param] : parameters_) {
      const auto found = optimizer_.state().find(param.unsafeGetTensorImpl());
      if (found == optimizer_.state().end()) continue;
      const auto& state = static_cast<const State&>(*found->second);
      numbers[name] = {{"step", Parts<State>::step(state)},
                       {"format", "fp32"},
                       {"block_size", 0},
                       {"algorithm", std::string(octavo::name(wanted_.algorithm))}};
      for (std::size_t i = 0; i < wanted_.slots.size(); ++i) {
        const torch::Tensor tensor = Parts<State>::get(state, i);
        if (tensor.defined()) tensors.emplace_back(part_name(name, i), tensor);
      }
    }
  }

  Status load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override {
    std::vector<std::unique_ptr<State>> states;
    std::size_t used = 0;
    for (const auto& [name, param] : parameters_) {
      auto& state = states.emplace_back();
      if (!numbers.contains(name)) continue;
      RETURN_IF_ERROR(check_algorithm(numbers.at(name), name, wanted_.algorithm));
      state = std::make_unique<State>();
      Parts<State>::set_step(*state, numbers.at(name).at("step").template get<std::int64_t>());
      for (std::size_t i = 0; i < wanted_.slots.size(); ++i) {
        const std::string part = part_name(name, i);
        const torch::Tensor* found = find_tensor(tensors, part);
        if (found == nullptr || found->scalar_type() != torch::kFloat32) {
          return Status::invalid("its optimizer states are not those of plain LibTorch: there is no fp32 " +
                                 part + "; use the optimizer and the device it was saved with" +
                                 kConvertAdvice);
        }
        if (found->sizes() != param.sizes()) {
          return Status::invalid("its " + part +
                                 " has another shape than the parameter; it is of another model");
        }
        Parts<State>::set(*state, i, found->to(param.device(), /*non_blocking=*/false, /*copy=*/true));
        ++used;
      }
    }
    if (used != tensors.size()) {
      return Status::invalid(
          "its optimizer states are not those of plain LibTorch: " + std::to_string(tensors.size() - used) +
          " tensors have no place; use the optimizer and the device it was saved with" + kConvertAdvice);
    }
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (states[i] != nullptr)
        optimizer_.state()[parameters_[i].second.unsafeGetTensorImpl()] = std::move(states[i]);
    }
    return {};
  }

 private:
  template <class OptionsOf>
  static std::vector<optim::OptimizerParamGroup> torch_groups(const ParameterGroups& groups,
                                                              const OptionsOf& options_of) {
    std::vector<optim::OptimizerParamGroup> out;
    for (std::size_t g = 0; g < groups.options.size(); ++g) {
      auto options = options_of(groups.options[g]);
      out.emplace_back(groups.tensors_of(g), std::make_unique<decltype(options)>(std::move(options)));
    }
    return out;
  }

  [[nodiscard]] std::string part_name(const std::string& parameter, std::size_t slot) const {
    return parameter + '.' + std::string(wanted_.slots[slot].name);
  }

  Wanted wanted_;
  Optimizer optimizer_;
  NamedTensors parameters_;  // of all groups, in the model's order
  std::vector<GroupOptions> groups_;
  torch::Tensor scale_, norm_, skipped_;
};

template <class Optimizer, class Options, class State>
std::unique_ptr<StepOptimizer> make_adam(ParameterGroups groups, const Wanted& wanted) {
  return std::make_unique<PlainOptimizer<Optimizer, State>>(std::move(groups), wanted,
                                                            [&](const GroupOptions& own) {
                                                              const octavo::HyperParams& h = wanted.hyper;
                                                              return Options(own.learning_rate)
                                                                  .betas({h.beta1, h.beta2})
                                                                  .eps(h.eps)
                                                                  .weight_decay(own.weight_decay)
                                                                  .amsgrad(wanted.slots.size() > 2);
                                                            });
}

std::unique_ptr<StepOptimizer> make_sgd(ParameterGroups groups, const Wanted& wanted) {
  return std::make_unique<PlainOptimizer<optim::SGD, optim::SGDParamState>>(
      std::move(groups), wanted, [&](const GroupOptions& own) {
        const octavo::HyperParams& h = wanted.hyper;
        return optim::SGDOptions(own.learning_rate)
            .momentum(h.momentum)
            .dampening(h.dampening)
            .nesterov(h.nesterov)
            .weight_decay(own.weight_decay);
      });
}

// The algorithms that LibTorch has under the same name and with the same meaning. They are listed because
// each is a separate class of torch. Other algorithms need a device that Octavo has code for.
struct Plain {
  std::string_view name;
  std::unique_ptr<StepOptimizer> (*make)(ParameterGroups, const Wanted&);
};
constexpr std::array<Plain, 3> kPlain = {
    {{"adamw", make_adam<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>},
     {"adam", make_adam<optim::Adam, optim::AdamOptions, optim::AdamParamState>},
     {"sgd", make_sgd}}};

const Plain* find_plain(octavo::Algorithm algorithm) {
  const auto* const found = std::ranges::find(kPlain, name(algorithm), &Plain::name);
  return found == kPlain.end() ? nullptr : found;
}

}  // namespace

bool plain_has(octavo::Algorithm algorithm) { return find_plain(algorithm) != nullptr; }

std::unique_ptr<StepOptimizer> make_plain_optimizer(const OptimizerName& name,
                                                    const TrainingSettings& training,
                                                    ParameterGroups groups) {
  const Plain* const plain = find_plain(name.algorithm);
  TORCH_CHECK(plain != nullptr, "plain LibTorch has no such optimizer");
  const std::uint32_t switches = group_config(training, name.algorithm).switches;
  return plain->make(std::move(groups), {name.algorithm, hyper_params(training, name.algorithm),
                                         slots(name.algorithm, switches), training.max_grad_norm});
}

}  // namespace octavo_train
