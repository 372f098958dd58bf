// LARS (You et al. 2017) in two variants, both with the momentum of torch.optim.SGD. In bitsandbytes' variant
// the update is clipped to max_unorm times the norm of the weights. With trust_ratio, as in the paper, the
// gradient is scaled by trust_coefficient |w| / (|g| + weight_decay |w|) before it enters the momentum (1 if
// a norm is 0).
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"
#include "formula/sgd.h"
#include "formula/trust_ratio.h"

#include <cmath>
#include <string>

namespace octavo::formula {

struct LarsConsts : Common {
  float lr, momentum, one_minus_dampening, max_unorm, trust_coefficient;
  float ratio;  // the tensor's trust ratio
  bool nesterov, first, trusts;
  bool decays;  // weight decay is applied after the sums
};

struct Lars {
  using Consts = LarsConsts;
  static constexpr int kPasses = 2;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 1;
  static constexpr std::array<Slot, kMaxSlots> kState{{{"momentum_buffer", "state1", Moment::first}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = false;

  // Indices in HyperParams::own.
  static constexpr int kMaxUnorm = 0, kTrusts = 1, kCoefficient = 2;

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t step, Consts& c) {
    c.lr = static_cast<float>(h.lr);
    c.momentum = static_cast<float>(h.momentum);
    c.one_minus_dampening = static_cast<float>(1.0 - h.dampening);
    c.max_unorm = static_cast<float>(h.own[kMaxUnorm]);
    c.trust_coefficient = static_cast<float>(h.own[kCoefficient]);
    c.ratio = 1.0F;
    c.nesterov = h.nesterov;
    c.first = step == 1;
    c.trusts = own_flag(h, kTrusts);
    c.decays = c.trusts && c.coupled;
    if (c.decays) c.coupled = false;
  }

  OCTAVO_HD static void copy_fixed(const Consts& host, Consts& c) {
    c.momentum = host.momentum;
    c.one_minus_dampening = host.one_minus_dampening;
    c.nesterov = host.nesterov;
    c.trusts = host.trusts;
    c.decays = host.decays;
  }

  OCTAVO_HD static float ratio(const Consts& c, const Sums& sums) {
    const double weight = std::sqrt(sums.weight);
    const double update = std::sqrt(sums.update);
    if (!c.trusts) return static_cast<float>(clip_ratio(weight, update, static_cast<double>(c.max_unorm)));
    if (weight == 0.0 || update == 0.0) return 1.0F;
    const double whole = c.decays ? update + static_cast<double>(c.decay) * weight : update;
    return static_cast<float>(static_cast<double>(c.trust_coefficient) * weight / whole);
  }

  template <class F>
  OCTAVO_HD static F advance(const Consts& c, F g, F* s) {
    s[0] = c.first ? g : fma(F(c.momentum), s[0], F(c.one_minus_dampening) * g);
    return c.nesterov ? fma(F(c.momentum), s[0], g) : s[0];
  }

  // With trust_ratio this is the gradient before decay, otherwise the update.
  template <class F>
  OCTAVO_HD static F unscaled_update(const Consts& c, F g, F /*p*/, F* s) {
    return c.trusts ? g : advance(c, g, s);
  }

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    if (!c.trusts) return fma(F(-(c.lr * c.ratio)), advance(c, g, s), p * F(c.keep));
    const F whole = c.decays ? fma(F(c.decay), p, g) : g;
    return fma(F(-c.lr), advance(c, F(c.ratio) * whole, s), p * F(c.keep));
  }
};

struct LarsFamily {
  using Rules = TypeList<Lars>;

  static constexpr Option kOptions[] = {
      rate(1e-2),
      {"momentum", 0.9, Range::non_negative, offsetof(HyperParams, momentum)},
      {"dampening", 0.0, Range::any, offsetof(HyperParams, dampening)},
      weight_decay(0.0),
      {"nesterov", 0.0, Range::flag, offsetof(HyperParams, nesterov)},
      {"max_unorm", 0.02, Range::non_negative, own_place(Lars::kMaxUnorm)},
      {"trust_ratio", 0.0, Range::flag, own_place(Lars::kTrusts)},
      {"trust_coefficient", 1e-3, Range::non_negative, own_place(Lars::kCoefficient)}};
  static constexpr AlgorithmInfo kNames[] = {{.number = Algorithm::lars,
                                              .name = "lars",
                                              .title = "LARS",
                                              .decay = Decay::coupled,
                                              .options = kOptions,
                                              .update_is_rate = false,
                                              .first_step_fills = true}};

  static std::string conflict(const HyperParams& h) {
    if (own_flag(h, Lars::kTrusts) && h.own[Lars::kCoefficient] == 0.0)
      return "trust_coefficient: got 0 with trust_ratio, expected a number above 0";
    return SgdFamily::conflict(h);
  }
};

}  // namespace octavo::formula
