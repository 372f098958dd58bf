// See rules.h.
// SPDX-License-Identifier: MIT
#include "tests/reference/rules.h"

#include <cmath>

namespace reference {
namespace {

using octavo::Algorithm;
using octavo::GroupConfig;
using octavo::HyperParams;
using octavo::Moment;
using octavo::StepArgs;

double power(double base, std::int64_t exponent) {
  double result = 1.0;
  while (exponent > 0) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
    exponent /= 2;
  }
  return result;
}

float rounded(double x) { return static_cast<float>(x); }

bool has_momentum(const GroupConfig& config) { return config.momentum || (config.switches & 1u) != 0; }
bool has_amsgrad(const GroupConfig& config) { return config.amsgrad || (config.switches & 1u) != 0; }
bool is_centered(const GroupConfig& config) { return (config.switches & 2u) != 0; }

// Indices in HyperParams::own.
bool lamb_corrects(const HyperParams& h) { return h.own[0] != 0.0; }
bool lamb_decouples(const HyperParams& h) { return h.own[1] != 0.0; }
bool is_trusting(const GroupConfig& config, const HyperParams& h) {
  return config.algorithm == Algorithm::lamb ? h.own[3] != 0.0 : h.own[1] != 0.0;
}

bool is_coupled(const GroupConfig& config, const HyperParams& h) {
  if (config.algorithm == Algorithm::lamb && !lamb_decouples(h)) return true;
  if (h.decay != octavo::Decay::by_name) return h.decay == octavo::Decay::coupled;
  switch (config.algorithm) {
    case Algorithm::adam:
    case Algorithm::sgd:
    case Algorithm::rmsprop:
    case Algorithm::adagrad:
    case Algorithm::lars:
      return true;
    case Algorithm::adamw:
    case Algorithm::lion:
    case Algorithm::lamb:
    case Algorithm::ademamix:
      return false;
  }
  return false;
}

// Returns true if decay is a part of what the ratio multiplies, as in the papers of LAMB and LARS.
bool decays_inside(const GroupConfig& config, const HyperParams& h) {
  if (!has_trust_ratio(config) || !is_trusting(config, h) || h.weight_decay == 0.0) return false;
  return is_coupled(config, h) == (config.algorithm == Algorithm::lars);
}

// Returns the gradient after its factor and coupled decay.
float gradient(const GroupConfig& config, const StepArgs& args, float grad, float p) {
  const HyperParams& h = args.hyper;
  const float g = grad * (rounded(args.grad_factor) * (h.maximize ? -1.0f : 1.0f));
  if (!is_coupled(config, h) || h.weight_decay == 0.0 || decays_inside(config, h)) return g;
  return std::fma(rounded(h.weight_decay), p, g);
}

// Returns the parameter after decoupled decay.
float kept(const GroupConfig& config, const HyperParams& h, float p) {
  if (is_coupled(config, h) || decays_inside(config, h)) return p * 1.0f;
  return p * rounded(1.0 - static_cast<double>(rounded(h.lr)) * h.weight_decay);
}

void average(float& m, double beta, float value) {
  m = std::fma(rounded(beta), m, rounded(1.0 - beta) * value);
}

float root_scale(double beta2, std::int64_t step) {
  return rounded(1.0 / std::sqrt(1.0 - power(beta2, step)));
}
float first_scale(double beta1, std::int64_t step) { return rounded(1.0 / (1.0 - power(beta1, step))); }

float adam(const GroupConfig& config, const StepArgs& args, float g, float kept_p, float* s) {
  const HyperParams& h = args.hyper;
  average(s[0], h.beta1, g);
  average(s[1], h.beta2, g * g);
  float variance = s[1];
  if (has_amsgrad(config)) {
    if (s[1] > s[2] || std::isnan(s[1])) s[2] = s[1];
    variance = s[2];
  }
  const float step_size = rounded(static_cast<double>(rounded(h.lr)) / (1.0 - power(h.beta1, args.step)));
  const float denominator = std::fma(std::sqrt(variance), root_scale(h.beta2, args.step), rounded(h.eps));
  return std::fma(-step_size, s[0] / denominator, kept_p);
}

float lion(const StepArgs& args, float g, float kept_p, float* s) {
  const HyperParams& h = args.hyper;
  float blend = s[0];
  average(blend, h.beta1, g);
  const float sign = blend > 0.0f ? 1.0f : blend < 0.0f ? -1.0f : blend;
  average(s[0], h.beta2, g);
  return std::fma(-rounded(h.lr), sign, kept_p);
}

// Returns the direction of SGD with momentum: the first step stores its input.
float momentum_direction(const StepArgs& args, float g, float* s) {
  const HyperParams& h = args.hyper;
  const float momentum = rounded(h.momentum);
  s[0] = args.step == 1 ? g : std::fma(momentum, s[0], rounded(1.0 - h.dampening) * g);
  return h.nesterov ? std::fma(momentum, s[0], g) : s[0];
}

float rmsprop(const GroupConfig& config, const StepArgs& args, float g, float kept_p, float* s) {
  const HyperParams& h = args.hyper;
  const double alpha = h.own[0];
  average(s[0], alpha, g * g);
  float variance = s[0];
  if (is_centered(config)) {
    float& mean = s[has_momentum(config) ? 2 : 1];
    average(mean, alpha, g);
    variance = std::fma(-mean, mean, s[0]);
    if (variance < s[0] * 0x1p-24f) variance = s[0] * 0x1p-24f;
  }
  float direction = g / (std::sqrt(variance) + rounded(h.eps));
  if (has_momentum(config)) direction = s[1] = std::fma(rounded(h.momentum), s[1], direction);
  return std::fma(-rounded(h.lr), direction, kept_p);
}

float adagrad(const StepArgs& args, float g, float kept_p, float* s) {
  const HyperParams& h = args.hyper;
  const double lr =
      static_cast<double>(rounded(h.lr)) / (1.0 + static_cast<double>(args.step - 1) * h.own[0]);
  if (args.step == 1) s[0] = rounded(h.own[1]);
  s[0] = std::fma(g, g, s[0]);
  return std::fma(-rounded(lr), g / (std::sqrt(s[0]) + rounded(h.eps)), kept_p);
}

float ademamix(const StepArgs& args, float g, float kept_p, float* s) {
  const HyperParams& h = args.hyper;
  const auto step = static_cast<double>(args.step);
  double beta3 = h.own[0];
  double alpha = h.own[1];
  if (h.own[2] > 0.0) alpha = std::fmin(step * alpha / h.own[2], alpha);
  if (h.own[3] > 0.0 && step < h.own[3]) {
    const double share = step / h.own[3];
    const double log1 = std::log(h.beta1);
    const double log3 = std::log(beta3);
    beta3 = std::fmin(std::exp(log1 * log3 / ((1.0 - share) * log3 + share * log1)), beta3);
  }
  average(s[0], h.beta1, g);
  average(s[1], h.beta2, g * g);
  average(s[2], beta3, g);
  const float mixed = std::fma(rounded(alpha), s[2], s[0] * first_scale(h.beta1, args.step));
  const float denominator = std::fma(std::sqrt(s[1]), root_scale(h.beta2, args.step), rounded(h.eps));
  return std::fma(-rounded(h.lr), mixed / denominator, kept_p);
}

float lamb_update(const GroupConfig& config, const StepArgs& args, float g, float p, float* s) {
  const HyperParams& h = args.hyper;
  const bool corrects = lamb_corrects(h);
  average(s[0], h.beta1, g);
  average(s[1], h.beta2, g * g);
  const float denominator =
      std::fma(std::sqrt(s[1]), corrects ? root_scale(h.beta2, args.step) : 1.0f, rounded(h.eps));
  const float u = s[0] / denominator * (corrects ? first_scale(h.beta1, args.step) : 1.0f);
  return decays_inside(config, h) ? std::fma(rounded(h.weight_decay), p, u) : u;
}

float lars(const GroupConfig& config, const StepArgs& args, float g, float p, float* s, float ratio) {
  const HyperParams& h = args.hyper;
  const float kept_p = kept(config, h, p);
  if (!is_trusting(config, h)) {
    return std::fma(-(rounded(h.lr) * ratio), momentum_direction(args, g, s), kept_p);
  }
  if (decays_inside(config, h)) g = std::fma(rounded(h.weight_decay), p, g);
  return std::fma(-rounded(h.lr), momentum_direction(args, ratio * g, s), kept_p);
}

}  // namespace

std::vector<Moment> moments_of(const GroupConfig& config) {
  constexpr Moment m = Moment::first;
  constexpr Moment v = Moment::second;
  switch (config.algorithm) {
    case Algorithm::adam:
    case Algorithm::adamw:
      return has_amsgrad(config) ? std::vector{m, v, v} : std::vector{m, v};
    case Algorithm::sgd:
      return has_momentum(config) ? std::vector{m} : std::vector<Moment>{};
    case Algorithm::rmsprop: {
      std::vector<Moment> list{v};
      if (has_momentum(config)) list.push_back(m);
      if (is_centered(config)) list.push_back(m);
      return list;
    }
    case Algorithm::adagrad:
      return {v};
    case Algorithm::lion:
    case Algorithm::lars:
      return {m};
    case Algorithm::lamb:
      return {m, v};
    case Algorithm::ademamix:
      return {m, v, m};
  }
  return {};
}

bool has_trust_ratio(const GroupConfig& config) {
  return config.algorithm == Algorithm::lars || config.algorithm == Algorithm::lamb;
}

float unscaled_update(const GroupConfig& config, const StepArgs& args, float grad, float p, float* s) {
  const float g = gradient(config, args, grad, p);
  if (config.algorithm == Algorithm::lamb) return lamb_update(config, args, g, p, s);
  return is_trusting(config, args.hyper) ? g : momentum_direction(args, g, s);
}

float ratio(const GroupConfig& config, const StepArgs& args, double weights, double updates) {
  const HyperParams& h = args.hyper;
  const bool lamb = config.algorithm == Algorithm::lamb;
  const double w = std::sqrt(weights);
  const double u = std::sqrt(updates);
  if (!is_trusting(config, h)) {
    const double most = rounded(lamb ? h.own[2] : h.own[0]);
    return most > 0.0 && u > most * w ? rounded(most * w / u) : 1.0f;
  }
  if (w == 0.0 || u == 0.0) return 1.0f;
  if (lamb) return rounded(w / u);
  const double all = decays_inside(config, h) ? u + static_cast<double>(rounded(h.weight_decay)) * w : u;
  return rounded(static_cast<double>(rounded(h.own[2])) * w / all);
}

float update(const GroupConfig& config, const StepArgs& args, float grad, float p, float* s, float ratio) {
  const HyperParams& h = args.hyper;
  const float g = gradient(config, args, grad, p);
  const float kept_p = kept(config, h, p);
  switch (config.algorithm) {
    case Algorithm::adam:
    case Algorithm::adamw:
      return adam(config, args, g, kept_p, s);
    case Algorithm::sgd:
      return std::fma(-rounded(h.lr), has_momentum(config) ? momentum_direction(args, g, s) : g, kept_p);
    case Algorithm::lion:
      return lion(args, g, kept_p, s);
    case Algorithm::rmsprop:
      return rmsprop(config, args, g, kept_p, s);
    case Algorithm::adagrad:
      return adagrad(args, g, kept_p, s);
    case Algorithm::lars:
      return lars(config, args, g, p, s, ratio);
    case Algorithm::lamb:
      return std::fma(-(rounded(h.lr) * ratio), lamb_update(config, args, g, p, s), kept_p);
    case Algorithm::ademamix:
      return ademamix(args, g, kept_p, s);
  }
  return p;
}

double tree_sum(std::vector<double> values) {
  while (values.size() > 1) {
    std::vector<double> pairs;
    for (std::size_t i = 0; i < values.size(); i += 2)
      pairs.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
    values = std::move(pairs);
  }
  return values.empty() ? 0.0 : values[0];
}

}  // namespace reference
