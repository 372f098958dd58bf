// RMSprop (Hinton 2012), as torch.optim computes it: eps outside the root, decay added to the gradient.
// Momentum is a separate moment over the updates. The centered variant subtracts the square of the mean.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"
#include "lane/exact.h"

namespace octavo::formula {

struct RmsPropConsts : Common {
  float lr, alpha, one_minus_alpha, eps, momentum;
};

struct RmsProp {
  using Consts = RmsPropConsts;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 1;
  static constexpr std::array<Slot, kMaxSlots> kState{{{"square_avg", "state1", Moment::second}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = true;
  static constexpr bool kDividesGradient = true;

  // A second moment contains the square of the gradient times 1 - alpha.
  OCTAVO_HD static Quotients quotients(const Consts& c) {
    return {c.lr, 1.0F, c.eps, c.one_minus_alpha >= 0x1p-30F};
  }

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t /*step*/, Consts& c) {
    c.lr = static_cast<float>(h.lr);
    c.alpha = static_cast<float>(h.own[0]);
    c.one_minus_alpha = static_cast<float>(1.0 - h.own[0]);
    c.eps = static_cast<float>(h.eps);
    c.momentum = static_cast<float>(h.momentum);
  }

  OCTAVO_HD static void copy_fixed(const Consts& host, Consts& c) {
    c.alpha = host.alpha;
    c.one_minus_alpha = host.one_minus_alpha;
    c.eps = host.eps;
    c.momentum = host.momentum;
  }

  template <class F>
  OCTAVO_HD static F numerator(const Consts& /*c*/, F g, const F* /*s*/) {
    return g;
  }

  template <class F>
  OCTAVO_HD static F square(const Consts& c, F g, F* s) {
    s[0] = fma(F(c.alpha), s[0], F(c.one_minus_alpha) * (g * g));
    return s[0];
  }
  // Returns the variance: v minus the square of the mean. Rounding must not make it negative, nor so small
  // that it is only rounding error.
  template <class F>
  OCTAVO_HD static F centered(const Consts& c, F g, F v, F& mean) {
    mean = fma(F(c.alpha), mean, F(c.one_minus_alpha) * g);
    const F variance = fma(F(0.0F) - mean, mean, v);
    const F least = v * F(0x1p-24F);
    return select(variance < least, least, variance);
  }
  template <class F>
  OCTAVO_HD static F scaled(const Consts& c, F g, F v) {
    return g / (sqrt(v) + F(c.eps));
  }
  template <class F>
  OCTAVO_HD static F apply(const Consts& c, F direction, F p) {
    return fma(F(-c.lr), direction, p * F(c.keep));
  }
  // Returns the momentum: the running sum of the updates.
  template <class F>
  OCTAVO_HD static F gather(const Consts& c, F update, F& buffer) {
    buffer = fma(F(c.momentum), buffer, update);
    return buffer;
  }

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    return apply(c, scaled(c, g, square(c, g, s)), p);
  }
};

struct RmsPropMomentum : RmsProp {
  static constexpr std::uint32_t kSwitches = 1;
  static constexpr int kSlots = 2;
  static constexpr std::array<Slot, kMaxSlots> kState{
      {{"square_avg", "state1", Moment::second}, {"momentum_buffer", "", Moment::first}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kRare = true;

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    const F v = square(c, g, s);
    return apply(c, gather(c, scaled(c, g, v), s[1]), p);
  }
};

struct RmsPropCentered : RmsProp {
  static constexpr std::uint32_t kSwitches = 2;
  static constexpr int kSlots = 2;
  static constexpr std::array<Slot, kMaxSlots> kState{
      {{"square_avg", "state1", Moment::second}, {"grad_avg", "", Moment::first}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kRare = true;

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    const F v = square(c, g, s);
    return apply(c, scaled(c, g, centered(c, g, v, s[1])), p);
  }
};

struct RmsPropCenteredMomentum : RmsProp {
  static constexpr std::uint32_t kSwitches = 3;
  static constexpr int kSlots = 3;
  static constexpr std::array<Slot, kMaxSlots> kState{{{"square_avg", "state1", Moment::second},
                                                       {"momentum_buffer", "", Moment::first},
                                                       {"grad_avg", "", Moment::first}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kRare = true;

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    const F v = square(c, g, s);
    return apply(c, gather(c, scaled(c, g, centered(c, g, v, s[2])), s[1]), p);
  }
};

struct RmsPropFamily {
  using Rules = TypeList<RmsProp, RmsPropMomentum, RmsPropCentered, RmsPropCenteredMomentum>;

  static constexpr Option kOptions[] = {
      rate(1e-2),
      {"alpha", 0.99, Range::fraction, own_place(0)},
      epsilon(1e-8),
      weight_decay(0.0),
      {"momentum", 0.0, Range::non_negative, offsetof(HyperParams, momentum), {}, true},
      {"centered", 0.0, Range::flag, -1, {}, true}};
  static constexpr AlgorithmInfo kNames[] = {
      {Algorithm::rmsprop, "rmsprop", "RMSprop", Decay::coupled, kOptions}};
};

}  // namespace octavo::formula
