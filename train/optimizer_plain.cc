// LibTorch's own optimizers behind StepOptimizer, for devices that Octavo has no code for. Norm, clipping and
// the guard are done here, and a step waits for its norm.
// SPDX-License-Identifier: MIT
#include "optimizers.h"
#include "train/config/config.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace octavo::train {
namespace {

namespace optim = torch::optim;

// The tensors of a parameter's state by name, and its step; a buffer that is not there yet is undefined.
template <class State>
struct Parts;
template <class State>
struct AdamParts {
  static std::vector<std::pair<const char*, torch::Tensor>> get(const State& state) {
    return {{"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}};
  }
  static void set(State& state, std::size_t part, const torch::Tensor& tensor) {
    part == 0 ? state.exp_avg(tensor) : state.exp_avg_sq(tensor);
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
  static std::vector<std::pair<const char*, torch::Tensor>> get(const optim::SGDParamState& state) {
    return {{"momentum_buffer", state.momentum_buffer()}};
  }
  static void set(optim::SGDParamState& state, std::size_t /*part*/, const torch::Tensor& tensor) {
    state.momentum_buffer(tensor);
  }
  static std::int64_t step(const optim::SGDParamState& /*state*/) { return 0; }
  static void set_step(optim::SGDParamState& /*state*/, std::int64_t /*step*/) {}
};

template <class Optimizer, class State>
class PlainOptimizer : public StepOptimizer {
 public:
  template <class Options>
  PlainOptimizer(NamedTensors parameters, double max_norm, const Options& options)
      : parameters_(std::move(parameters)),
        max_norm_(max_norm),
        optimizer_(tensors_of(parameters_), options) {}

  void set_learning_rate(double rate) override { optimizer_.param_groups()[0].options().set_lr(rate); }
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
    const double clip = max_norm_ > 0 ? std::min(1.0, max_norm_ / (norm + 1e-6)) : 1.0;
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
      numbers[name] = {{"step", Parts<State>::step(state)}, {"format", "fp32"}, {"block_size", 0}};
      for (const auto& [part, tensor] : Parts<State>::get(state)) {
        if (tensor.defined()) tensors.emplace_back(name + '.' + part, tensor);
      }
    }
  }

  Status load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override {
    std::vector<std::unique_ptr<State>> states;
    std::size_t used = 0;
    for (const auto& [name, param] : parameters_) {
      auto& state = states.emplace_back();
      if (!numbers.contains(name)) continue;
      state = std::make_unique<State>();
      Parts<State>::set_step(*state, numbers.at(name).at("step").template get<std::int64_t>());
      const auto parts = Parts<State>::get(*state);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const torch::Tensor* found = find_tensor(tensors, name + '.' + parts[i].first);
        if (found == nullptr || found->scalar_type() != torch::kFloat32) {
          return Status::invalid("its optimizer states are not those of plain LibTorch: there is no fp32 " +
                                 name + '.' + parts[i].first +
                                 "; use the optimizer and the device it was saved with");
        }
        if (found->sizes() != param.sizes()) {
          return Status::invalid("its " + name + '.' + parts[i].first +
                                 " has another shape than the parameter; it is of another model");
        }
        Parts<State>::set(*state, i, found->to(param.device()));
        ++used;
      }
    }
    if (used != tensors.size()) {
      return Status::invalid(
          "its optimizer states are not those of plain LibTorch: " + std::to_string(tensors.size() - used) +
          " tensors have no place; use the optimizer and the device it was saved with");
    }
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (states[i] != nullptr)
        optimizer_.state()[parameters_[i].second.unsafeGetTensorImpl()] = std::move(states[i]);
    }
    return {};
  }

 private:
  static std::vector<torch::Tensor> tensors_of(const NamedTensors& parameters) {
    std::vector<torch::Tensor> out;
    for (const auto& [name, tensor] : parameters) out.push_back(tensor);
    return out;
  }

  NamedTensors parameters_;
  double max_norm_;
  Optimizer optimizer_;
  torch::Tensor scale_, norm_, skipped_;
};

}  // namespace

std::unique_ptr<StepOptimizer> make_plain_optimizer(const OptimizerName& name,
                                                    const TrainingSettings& training,
                                                    NamedTensors parameters) {
  const std::tuple<double, double> betas{training.beta1, second_beta(training)};
  const double lr = training.learning_rate;
  const double max_norm = training.max_grad_norm;
  if (name.algorithm == Algorithm::adamw) {
    return std::make_unique<PlainOptimizer<optim::AdamW, optim::AdamWParamState>>(
        std::move(parameters), max_norm,
        optim::AdamWOptions(lr).betas(betas).eps(training.eps).weight_decay(training.weight_decay));
  }
  if (name.algorithm == Algorithm::adam) {
    return std::make_unique<PlainOptimizer<optim::Adam, optim::AdamParamState>>(
        std::move(parameters), max_norm,
        optim::AdamOptions(lr).betas(betas).eps(training.eps).weight_decay(training.weight_decay));
  }
  TORCH_CHECK(name.algorithm == Algorithm::sgd, "plain LibTorch has no such optimizer");
  return std::make_unique<PlainOptimizer<optim::SGD, optim::SGDParamState>>(
      std::move(parameters), max_norm,
      optim::SGDOptions(lr).momentum(training.momentum).weight_decay(training.weight_decay));
}

}  // namespace octavo::train
