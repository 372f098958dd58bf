// Adam and AdamW (Kingma & Ba 2015; Loshchilov & Hutter 2019), as torch.optim computes them: decay before the
// update, eps outside the root. AmsGrad keeps the running maximum of v as a third moment.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"
#include "lane/exact.h"

#include <cmath>

namespace octavo::formula {

struct AdamConsts : Common {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;   // lr / (1 - beta1^t)
  float root_scale;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

struct Adam {
  using Consts = AdamConsts;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 2;
  static constexpr std::array<Slot, kMaxSlots> kState{
      {{"exp_avg", "state1", Moment::first}, {"exp_avg_sq", "state2", Moment::second}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = true;
  static constexpr int kNumerator = 0;

  OCTAVO_HD static Quotients quotients(const Consts& c) { return {c.step_size, c.root_scale, c.eps}; }

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t step, Consts& c) {
    const double lr = static_cast<float>(h.lr);
    c.beta1 = static_cast<float>(h.beta1);
    c.beta2 = static_cast<float>(h.beta2);
    c.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
    c.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
    c.step_size = static_cast<float>(lr / (1.0 - power(h.beta1, step)));
    c.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - power(h.beta2, step)));
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
  OCTAVO_HD static F moments(const Consts& c, F g, F* s) {
    s[0] = fma(F(c.beta1), s[0], F(c.one_minus_beta1) * g);
    s[1] = fma(F(c.beta2), s[1], F(c.one_minus_beta2) * (g * g));
    return s[1];
  }

  template <class F>
  OCTAVO_HD static F apply(const Consts& c, F m, F v, F p) {
    const F denominator = fma(sqrt(v), F(c.root_scale), F(c.eps));
    return fma(F(-c.step_size), m / denominator, p * F(c.keep));
  }

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    const F v = moments(c, g, s);
    return apply(c, s[0], v, p);
  }
};

struct AmsGrad : Adam {
  static constexpr std::uint32_t kSwitches = 1;
  static constexpr int kSlots = 3;
  static constexpr std::array<Slot, kMaxSlots> kState{{{"exp_avg", "state1", Moment::first},
                                                       {"exp_avg_sq", "state2", Moment::second},
                                                       {"max_exp_avg_sq", "", Moment::second}}};
  static constexpr auto kMoments = moments_of(kState);

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    const F v = moments(c, g, s);
    s[2] = select(is_nan(v), v, select(v > s[2], v, s[2]));  // a NaN in either stays, as in torch.maximum
    return apply(c, s[0], s[2], p);
  }
};

struct AdamFamily {
  using Rules = TypeList<Adam, AmsGrad>;

  static constexpr Option kAmsGrad{"amsgrad", 0.0, Range::flag, -1, {}, true};
  static constexpr Option kAdam[] = {rate(1e-3),    beta1(0.9),        beta2(0.999),
                                     epsilon(1e-8), weight_decay(0.0), kAmsGrad};
  static constexpr Option kAdamW[] = {rate(1e-3),    beta1(0.9),         beta2(0.999),
                                      epsilon(1e-8), weight_decay(1e-2), kAmsGrad};
  static constexpr AlgorithmInfo kNames[] = {
      {Algorithm::adam, "adam", "Adam", Decay::coupled, kAdam},
      {Algorithm::adamw, "adamw", "AdamW", Decay::decoupled, kAdamW},
  };
};

}  // namespace octavo::formula
