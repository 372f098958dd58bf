// Lion (Chen et al. 2023): the sign of an interpolated momentum.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"

namespace octavo::formula {

struct LionConsts : Common {
  float lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
};

struct Lion {
  using Consts = LionConsts;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 1;
  static constexpr std::array<Slot, kMaxSlots> kState{{{"exp_avg", "state1", Moment::first}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = false;

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t /*step*/, Consts& c) {
    c.lr = static_cast<float>(h.lr);
    c.beta1 = static_cast<float>(h.beta1);
    c.beta2 = static_cast<float>(h.beta2);
    c.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
    c.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
  }

  OCTAVO_HD static void copy_fixed(const Consts& host, Consts& c) {
    c.beta1 = host.beta1;
    c.one_minus_beta1 = host.one_minus_beta1;
    c.beta2 = host.beta2;
    c.one_minus_beta2 = host.one_minus_beta2;
  }

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    const F blend = fma(F(c.beta1), s[0], F(c.one_minus_beta1) * g);
    // Zero and NaN are kept.
    const F sign = select(blend > F(0.0F), F(1.0F), select(blend < F(0.0F), F(-1.0F), blend));
    s[0] = fma(F(c.beta2), s[0], F(c.one_minus_beta2) * g);
    return fma(F(-c.lr), sign, p * F(c.keep));
  }
};

struct LionFamily {
  using Rules = TypeList<Lion>;

  static constexpr Option kOptions[] = {rate(1e-4), beta1(0.9), beta2(0.99), weight_decay(0.0)};
  static constexpr AlgorithmInfo kNames[] = {{Algorithm::lion, "lion", "Lion", Decay::decoupled, kOptions}};
};

}  // namespace octavo::formula
