// Computes what a step needs before its first element, with equal results on host and device. It reads the
// learning rate, step count and gradient factor from their locations, and decides whether the step is applied
// or skipped.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/moments.h"
#include "formula/step_args.h"
#include "formula/stochastic_round.h"

namespace octavo::formula {

// A step's arguments without its buffers.
struct StepInputs {
  HyperParams hyper;
  StepScalars scalars;
  std::int64_t step;
  double grad_factor, clip_grad_norm;
  std::uint64_t seed;
  bool skip_nonfinite;
  bool decoupled;  // weight decay applies to the parameter
};

// `by_name` is the kind of weight decay in the algorithm's description. REQUIRES: checked arguments.
inline StepInputs step_inputs(Decay by_name, const StepArgs& args) {
  const Decay decay = args.hyper.decay == Decay::by_name ? by_name : args.hyper.decay;
  return {args.hyper,          args.scalars, args.step,           args.grad_factor,
          args.clip_grad_norm, args.seed,    args.skip_nonfinite, decay == Decay::decoupled};
}

// Returns clip_grad_norm divided by the norm of the gradients after `unscale`, at most 1, times `unscale`.
// Like torch.nn.utils.clip_grad_norm_, it adds 1e-6 to the denominator. NaN stays NaN.
OCTAVO_HD inline double clip(double l2, double clip_grad_norm, double unscale) {
  const double ratio = clip_grad_norm / (l2 * (unscale < 0.0 ? -unscale : unscale) + 1e-6);
  return (ratio > 1.0 ? 1.0 : ratio) * unscale;
}

// Returns the factor of gradients before clipping.
OCTAVO_HD inline double unscale_of(const StepInputs& inputs) {
  const float* scale = inputs.scalars.loss_scale;
  return scale == nullptr ? inputs.grad_factor : inputs.grad_factor / static_cast<double>(*scale);
}

// Returns true if the guard must read the gradients, because no norm was given that has counted their
// non-finite elements.
OCTAVO_HD inline bool must_count(const StepInputs& inputs) {
  return inputs.skip_nonfinite && inputs.scalars.norm == nullptr;
}

struct Decision {
  HyperParams hyper;  // contains the learning rate in use
  std::int64_t step;
  double factor;
  StepReport report;
};

// Reads every scalar and writes none. `counted` is the number of non-finite elements if must_count().
OCTAVO_HD inline Decision decide(const StepInputs& inputs, std::int64_t counted) {
  const StepScalars& s = inputs.scalars;
  Decision d{inputs.hyper, inputs.step, unscale_of(inputs), {}};
  if (inputs.skip_nonfinite) d.report.nonfinite = s.norm != nullptr ? s.norm->nonfinite : counted;
  d.report.skipped = d.report.nonfinite > 0 || (s.found_inf != nullptr && *s.found_inf != 0.0F);
  if (s.lr != nullptr) d.hyper.lr = static_cast<double>(*s.lr);
  if (s.step != nullptr) d.step = *s.step + 1;
  if (s.norm != nullptr && inputs.clip_grad_norm > 0.0)
    d.factor = clip(s.norm->l2, inputs.clip_grad_norm, d.factor);
  return d;
}

// Advances the caller's step count and fills its report. It is called once nothing can fail any more.
OCTAVO_HD inline void publish(const StepInputs& inputs, const Decision& d) {
  const StepScalars& s = inputs.scalars;
  if (s.step != nullptr && !d.report.skipped) *s.step = d.step;
  if (s.report != nullptr) *s.report = d.report;
}

// Computes the constants that all algorithms share, then those of the algorithm.
template <class Algo>
OCTAVO_HD inline typename Algo::Consts constants(const StepInputs& inputs, const Decision& d) {
  typename Algo::Consts c{};
  c.factor = static_cast<float>(d.hyper.maximize ? -d.factor : d.factor);
  if (inputs.decoupled) {
    c.keep =
        static_cast<float>(1.0 - static_cast<double>(static_cast<float>(d.hyper.lr)) * d.hyper.weight_decay);
  } else {
    c.coupled = d.hyper.weight_decay != 0.0;
    c.decay = static_cast<float>(d.hyper.weight_decay);
  }
  Algo::derive(d.hyper, d.step, c);
  return c;
}

}  // namespace octavo::formula
