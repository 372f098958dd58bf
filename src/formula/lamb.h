// LAMB (You et al. 2020) in two variants. In bitsandbytes' variant, Adam's update is clipped to max_unorm
// times the norm of the weights, and weight decay is decoupled. With trust_ratio, as in the paper, weight
// decay is a part of the update, which is scaled to the norm of the weights (1 if a norm is 0).
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"
#include "formula/trust_ratio.h"
#include "lane/exact.h"

#include <cmath>

namespace octavo::formula {

struct LambConsts : Common {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float first_scale;  // 1 / (1 - beta1^t)
  float root_scale;   // 1 / sqrt(1 - beta2^t)
  float lr, eps, max_unorm;
  float ratio;  // the tensor's trust ratio
  bool trusts;
  bool decays;  // weight decay is inside the update
};

struct Lamb {
  using Consts = LambConsts;
  static constexpr int kPasses = 2;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 2;
  static constexpr std::array<Slot, kMaxSlots> kState{
      {{"exp_avg", "state1", Moment::first}, {"exp_avg_sq", "state2", Moment::second}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = true;
  static constexpr int kNumerator = 0;

  // Indices in HyperParams::own.
  static constexpr int kCorrects = 0, kDecoupled = 1, kMaxUnorm = 2, kTrusts = 3;

  // The learning rate is omitted if that makes quotients larger, because the unscaled update has none.
  OCTAVO_HD static Quotients quotients(const Consts& c) {
    return {c.first_scale * (c.lr > 1.0F ? c.lr : 1.0F), c.root_scale, c.eps};
  }

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t step, Consts& c) {
    const bool corrects = own_flag(h, kCorrects);
    c.beta1 = static_cast<float>(h.beta1);
    c.beta2 = static_cast<float>(h.beta2);
    c.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
    c.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
    c.first_scale = corrects ? static_cast<float>(1.0 / (1.0 - power(h.beta1, step))) : 1.0F;
    c.root_scale = corrects ? static_cast<float>(1.0 / std::sqrt(1.0 - power(h.beta2, step))) : 1.0F;
    c.lr = static_cast<float>(h.lr);
    c.eps = static_cast<float>(h.eps);
    c.max_unorm = static_cast<float>(h.own[kMaxUnorm]);
    c.ratio = 1.0F;
    c.trusts = own_flag(h, kTrusts);
    const bool any = h.weight_decay != 0.0;
    if (!own_flag(h, kDecoupled)) c.coupled = any;
    c.decays = c.trusts && any && !c.coupled;
    c.decay = static_cast<float>(h.weight_decay);
    if (c.coupled || c.decays) c.keep = 1.0F;
  }

  OCTAVO_HD static void copy_fixed(const Consts& host, Consts& c) {
    c.beta1 = host.beta1;
    c.one_minus_beta1 = host.one_minus_beta1;
    c.beta2 = host.beta2;
    c.one_minus_beta2 = host.one_minus_beta2;
    c.eps = host.eps;
    c.trusts = host.trusts;
    c.decays = host.decays;
  }

  OCTAVO_HD static float ratio(const Consts& c, const Sums& sums) {
    const double weight = std::sqrt(sums.weight);
    const double update = std::sqrt(sums.update);
    if (!c.trusts) return static_cast<float>(clip_ratio(weight, update, static_cast<double>(c.max_unorm)));
    return weight == 0.0 || update == 0.0 ? 1.0F : static_cast<float>(weight / update);
  }

  // Returns the update before learning rate and ratio, which the first pass squares.
  template <class F>
  OCTAVO_HD static F unscaled_update(const Consts& c, F g, F p, F* s) {
    s[0] = fma(F(c.beta1), s[0], F(c.one_minus_beta1) * g);
    s[1] = fma(F(c.beta2), s[1], F(c.one_minus_beta2) * (g * g));
    const F u = s[0] / fma(sqrt(s[1]), F(c.root_scale), F(c.eps)) * F(c.first_scale);
    return c.decays ? fma(F(c.decay), p, u) : u;
  }

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    return fma(F(-(c.lr * c.ratio)), unscaled_update(c, g, p, s), p * F(c.keep));
  }
};

struct LambFamily {
  using Rules = TypeList<Lamb>;

  static constexpr Option kOptions[] = {rate(1e-3),
                                        {"bias_correction", 1.0, Range::flag, own_place(Lamb::kCorrects)},
                                        beta1(0.9),
                                        beta2(0.999),
                                        epsilon(1e-8),
                                        weight_decay(0.0),
                                        {"adam_w_mode", 1.0, Range::flag, own_place(Lamb::kDecoupled)},
                                        {"max_unorm", 1.0, Range::non_negative, own_place(Lamb::kMaxUnorm)},
                                        {"trust_ratio", 0.0, Range::flag, own_place(Lamb::kTrusts)}};
  static constexpr AlgorithmInfo kNames[] = {{Algorithm::lamb, "lamb", "LAMB", Decay::decoupled, kOptions}};
};

}  // namespace octavo::formula
