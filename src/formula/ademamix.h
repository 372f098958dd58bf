// AdEMAMix (Pagliardini et al. 2024): AdamW with a second, slow average of the gradients, which enters the
// update times alpha and without bias correction. Alpha rises linearly over t_alpha steps. beta3 rises from
// beta1 over t_beta3 steps so that the half-life of the average grows linearly. 0 steps mean no schedule.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"
#include "formula/elementary.h"
#include "lane/exact.h"

#include <cmath>

namespace octavo::formula {

struct AdEmaMixConsts : Common {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, beta3, one_minus_beta3;
  float alpha;
  float first_scale;  // 1 / (1 - beta1^t)
  float root_scale;   // 1 / sqrt(1 - beta2^t)
  float lr, eps;
};

struct AdEmaMix {
  using Consts = AdEmaMixConsts;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 3;
  static constexpr std::array<Slot, kMaxSlots> kState{{{"exp_avg", "state1[0]", Moment::first},
                                                       {"exp_avg_sq", "state2", Moment::second},
                                                       {"exp_avg_slow", "state1[1]", Moment::first}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = true;

  // Indices in HyperParams::own.
  static constexpr int kBeta3 = 0, kAlpha = 1, kAlphaSteps = 2, kBeta3Steps = 3;

  OCTAVO_HD static Quotients quotients(const Consts& c) { return {c.lr, c.root_scale, c.eps}; }

  OCTAVO_HD static double alpha_at(const HyperParams& h, double step) {
    const double steps = h.own[kAlphaSteps];
    return steps > 0.0 && step < steps ? step * h.own[kAlpha] / steps : h.own[kAlpha];
  }
  // The reciprocal of a logarithm is minus the half-life over ln 2. It is interpolated linearly between those
  // of beta1 and beta3.
  OCTAVO_HD static double beta3_at(const HyperParams& h, double step) {
    const double steps = h.own[kBeta3Steps];
    const double beta3 = h.own[kBeta3];
    if (!(steps > 0.0 && step < steps)) return beta3;
    const double share = step / steps;
    const double beta =
        exponential(1.0 / ((1.0 - share) / natural_log(h.beta1) + share / natural_log(beta3)));
    return beta < beta3 ? beta : beta3;
  }

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t step, Consts& c) {
    const double beta3 = beta3_at(h, static_cast<double>(step));
    c.beta1 = static_cast<float>(h.beta1);
    c.beta2 = static_cast<float>(h.beta2);
    c.beta3 = static_cast<float>(beta3);
    c.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
    c.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
    c.one_minus_beta3 = static_cast<float>(1.0 - beta3);
    c.alpha = static_cast<float>(alpha_at(h, static_cast<double>(step)));
    c.first_scale = static_cast<float>(1.0 / (1.0 - power(h.beta1, step)));
    c.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - power(h.beta2, step)));
    c.lr = static_cast<float>(h.lr);
    c.eps = static_cast<float>(h.eps);
  }

  OCTAVO_HD static void copy_fixed(const Consts& host, Consts& c) {
    c.beta1 = host.beta1;
    c.one_minus_beta1 = host.one_minus_beta1;
    c.beta2 = host.beta2;
    c.one_minus_beta2 = host.one_minus_beta2;
    c.eps = host.eps;
  }

  template <class F>
  OCTAVO_HD static F numerator(const Consts& c, F /*g*/, const F* s) {
    return fma(F(c.alpha), s[2], s[0] * F(c.first_scale));
  }

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    s[0] = fma(F(c.beta1), s[0], F(c.one_minus_beta1) * g);
    s[1] = fma(F(c.beta2), s[1], F(c.one_minus_beta2) * (g * g));
    s[2] = fma(F(c.beta3), s[2], F(c.one_minus_beta3) * g);
    const F denominator = fma(sqrt(s[1]), F(c.root_scale), F(c.eps));
    return fma(F(-c.lr), numerator(c, g, s) / denominator, p * F(c.keep));
  }
};

struct AdEmaMixFamily {
  using Rules = TypeList<AdEmaMix>;

  static constexpr Option kOptions[] = {
      rate(1e-3),
      beta1(0.9),
      beta2(0.999),
      {"beta3", 0.9999, Range::fraction, own_place(AdEmaMix::kBeta3), "betas"},
      {"alpha", 5.0, Range::non_negative, own_place(AdEmaMix::kAlpha)},
      {"t_alpha", 0.0, Range::non_negative, own_place(AdEmaMix::kAlphaSteps), {}, false, true},
      {"t_beta3", 0.0, Range::non_negative, own_place(AdEmaMix::kBeta3Steps), {}, false, true},
      epsilon(1e-8),
      weight_decay(1e-2)};
  static constexpr AlgorithmInfo kNames[] = {
      {Algorithm::ademamix, "ademamix", "AdEMAMix", Decay::decoupled, kOptions}};
};

}  // namespace octavo::formula
