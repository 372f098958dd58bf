// The optimizers for LibTorch by their names: low-bit states, master bits for bf16 parameters, clipping
// inside the step. Those of torch::optim's names replace them. docs/guides/libtorch.md shows their use.
// This is the list: one line for the options and one for the class. Defaults and ranges are the core's.
// Options without a setter of their own are set by name: RMSpropOptions(1e-2).set("alpha", 0.9).
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace octavo::torch {

using Betas = std::tuple<double, double>;

template <class Derived>
struct BetasOptions : OptionsOf<Derived> {
  using OptionsOf<Derived>::OptionsOf;
  Betas betas() const { return {this->get("beta1"), this->get("beta2")}; }
  Derived& betas(const Betas& value) {
    return this->set("beta1", std::get<0>(value)).set("beta2", std::get<1>(value));
  }
};

template <class Derived>
struct AdamFamilyOptions : BetasOptions<Derived> {
  using BetasOptions<Derived>::BetasOptions;
  double eps() const { return this->get("eps"); }
  Derived& eps(double value) { return this->set("eps", value); }
  bool amsgrad() const { return this->get("amsgrad") != 0; }
  Derived& amsgrad(bool value) { return this->set("amsgrad", value ? 1 : 0); }
};

template <class Derived>
struct MomentumOptions : OptionsOf<Derived> {
  using OptionsOf<Derived>::OptionsOf;
  double momentum() const { return this->get("momentum"); }
  Derived& momentum(double value) { return this->set("momentum", value); }
  double dampening() const { return this->get("dampening"); }
  Derived& dampening(double value) { return this->set("dampening", value); }
  bool nesterov() const { return this->get("nesterov") != 0; }
  Derived& nesterov(bool value) { return this->set("nesterov", value ? 1 : 0); }
};

// The constructors that all classes have.
template <class OptionsClass>
class OptimizerOf : public Optimizer {
 public:
  explicit OptimizerOf(const std::vector<ParamGroup>& groups, OptionsClass defaults = {})
      : Optimizer(groups, std::make_unique<OptionsClass>(std::move(defaults))) {}
  explicit OptimizerOf(std::vector<Tensor> params, OptionsClass defaults = {})
      : OptimizerOf(std::vector<ParamGroup>{ParamGroup(std::move(params))}, std::move(defaults)) {}
};

// clang-format off
struct AdamWOptions : AdamFamilyOptions<AdamWOptions> { static constexpr auto kName = "adamw"; using AdamFamilyOptions::AdamFamilyOptions; };
struct AdamOptions : AdamFamilyOptions<AdamOptions> { static constexpr auto kName = "adam"; using AdamFamilyOptions::AdamFamilyOptions; };
struct SGDOptions : MomentumOptions<SGDOptions> { static constexpr auto kName = "sgd"; using MomentumOptions::MomentumOptions; };
struct LionOptions : BetasOptions<LionOptions> { static constexpr auto kName = "lion"; using BetasOptions::BetasOptions; };
struct RMSpropOptions : OptionsOf<RMSpropOptions> { static constexpr auto kName = "rmsprop"; using OptionsOf::OptionsOf; };
struct AdagradOptions : OptionsOf<AdagradOptions> { static constexpr auto kName = "adagrad"; using OptionsOf::OptionsOf; };
struct LARSOptions : MomentumOptions<LARSOptions> { static constexpr auto kName = "lars"; using MomentumOptions::MomentumOptions; };
struct LAMBOptions : BetasOptions<LAMBOptions> { static constexpr auto kName = "lamb"; using BetasOptions::BetasOptions; };
struct AdEMAMixOptions : BetasOptions<AdEMAMixOptions> { static constexpr auto kName = "ademamix"; using BetasOptions::BetasOptions; };

struct AdamW : OptimizerOf<AdamWOptions> { using OptimizerOf::OptimizerOf; };
struct Adam : OptimizerOf<AdamOptions> { using OptimizerOf::OptimizerOf; };
struct SGD : OptimizerOf<SGDOptions> { using OptimizerOf::OptimizerOf; };
struct Lion : OptimizerOf<LionOptions> { using OptimizerOf::OptimizerOf; };
struct RMSprop : OptimizerOf<RMSpropOptions> { using OptimizerOf::OptimizerOf; };
struct Adagrad : OptimizerOf<AdagradOptions> { using OptimizerOf::OptimizerOf; };
struct LARS : OptimizerOf<LARSOptions> { using OptimizerOf::OptimizerOf; };
struct LAMB : OptimizerOf<LAMBOptions> { using OptimizerOf::OptimizerOf; };
struct AdEMAMix : OptimizerOf<AdEMAMixOptions> { using OptimizerOf::OptimizerOf; };
// clang-format on

// Any algorithm of the library, by the name in its options: what a config file has.
//   make_optimizer(model->parameters(), AnyOptions(name).lr(1e-3).state("8bit"))
template <class ParamsOrGroups>
std::unique_ptr<Optimizer> make_optimizer(const ParamsOrGroups& params, const AnyOptions& options) {
  return std::make_unique<OptimizerOf<AnyOptions>>(params, options);
}

}  // namespace octavo::torch
