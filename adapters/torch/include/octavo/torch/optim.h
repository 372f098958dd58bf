// The optimizers for LibTorch: low-bit states, master bits for bf16 parameters, clipping inside the step.
// AdamW, Adam, SGD, RMSprop and Adagrad replace those of torch::optim. docs/guides/libtorch.md shows their
// use. This header lists the classes; optimizer.h has their functions. Defaults and ranges of options are in
// the core. Options without a setter here are set by name: RMSpropOptions(1e-2).set("alpha", 0.9).
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer_impl.h>

#include <tuple>

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
  OCTAVO_TORCH_NUMBER(double, eps)
  OCTAVO_TORCH_NUMBER(bool, amsgrad)
};

template <class Derived>
struct MomentumOptions : OptionsOf<Derived> {
  using OptionsOf<Derived>::OptionsOf;
  OCTAVO_TORCH_NUMBER(double, momentum)
  OCTAVO_TORCH_NUMBER(double, dampening)
  OCTAVO_TORCH_NUMBER(bool, nesterov)
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

// OCTAVO_TORCH_CLASS(AdamW, "adamw", AdamFamilyOptions) makes AdamWOptions, which has the setters of
// AdamFamilyOptions and the algorithm's name, and AdamW.
#define OCTAVO_TORCH_CLASS(Class, algorithm_name, Setters) \
  struct Class##Options : Setters<Class##Options> {        \
    static constexpr auto kName = algorithm_name;          \
    using Setters::Setters;                                \
  };                                                       \
  struct Class : OptimizerOf<Class##Options> {             \
    using OptimizerOf::OptimizerOf;                        \
  };
OCTAVO_TORCH_CLASS(AdamW, "adamw", AdamFamilyOptions)
OCTAVO_TORCH_CLASS(Adam, "adam", AdamFamilyOptions)
OCTAVO_TORCH_CLASS(SGD, "sgd", MomentumOptions)
OCTAVO_TORCH_CLASS(Lion, "lion", BetasOptions)
OCTAVO_TORCH_CLASS(RMSprop, "rmsprop", OptionsOf)
OCTAVO_TORCH_CLASS(Adagrad, "adagrad", OptionsOf)
OCTAVO_TORCH_CLASS(LARS, "lars", MomentumOptions)
OCTAVO_TORCH_CLASS(LAMB, "lamb", BetasOptions)
OCTAVO_TORCH_CLASS(AdEMAMix, "ademamix", BetasOptions)

// Makes the optimizer of any algorithm of the library, by the name in its options, as a config file has it:
//   make_optimizer(model->parameters(), AnyOptions(name).lr(1e-3).state("8bit"))
template <class ParamsOrGroups>
std::unique_ptr<Optimizer> make_optimizer(const ParamsOrGroups& params, const AnyOptions& options) {
  return std::make_unique<OptimizerOf<AnyOptions>>(params, options);
}

}  // namespace octavo::torch

#undef OCTAVO_TORCH_CLASS
#undef OCTAVO_TORCH_NUMBER
