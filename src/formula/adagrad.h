// Adagrad (Duchi et al. 2011), as torch.optim computes it: the sum of all squares, eps outside the root, and
// a learning rate that decays with the steps. The first step sets the sum to its initial value, because
// states begin as zeros in every format.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"
#include "lane/exact.h"

namespace octavo::formula {

struct AdagradConsts : Common {
  float lr;  // after lr_decay
  float eps, initial;
  bool first;
};

struct Adagrad {
  using Consts = AdagradConsts;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 1;
  static constexpr std::array<Slot, kMaxSlots> kState{{{"sum", "state1", Moment::second}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = true;
  static constexpr bool kDividesGradient = true;

  OCTAVO_HD static Quotients quotients(const Consts& c) { return {c.lr, 1.0F, c.eps}; }

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t step, Consts& c) {
    const double lr = static_cast<float>(h.lr);
    c.lr = static_cast<float>(lr / (1.0 + static_cast<double>(step - 1) * h.own[0]));
    c.eps = static_cast<float>(h.eps);
    c.initial = static_cast<float>(h.own[1]);
    c.first = step == 1;
  }

  OCTAVO_HD static void copy_fixed(const Consts& host, Consts& c) {
    c.eps = host.eps;
    c.initial = host.initial;
  }

  template <class F>
  OCTAVO_HD static F numerator(const Consts& /*c*/, F g, const F* /*s*/) {
    return g;
  }

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    s[0] = fma(g, g, c.first ? F(c.initial) : s[0]);
    return fma(F(-c.lr), g / (sqrt(s[0]) + F(c.eps)), p * F(c.keep));
  }
};

struct AdagradFamily {
  using Rules = TypeList<Adagrad>;

  static constexpr Option kOptions[] = {rate(1e-2),
                                        {"lr_decay", 0.0, Range::non_negative, own_place(0)},
                                        weight_decay(0.0),
                                        {"initial_accumulator_value", 0.0, Range::non_negative, own_place(1)},
                                        epsilon(1e-10)};
  static constexpr AlgorithmInfo kNames[] = {{.number = Algorithm::adagrad,
                                              .name = "adagrad",
                                              .title = "Adagrad",
                                              .decay = Decay::coupled,
                                              .options = kOptions,
                                              .first_step_fills = true}};
};

}  // namespace octavo::formula
