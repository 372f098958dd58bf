// SGD, plain and with momentum (dampening, Nesterov), like torch.optim.SGD: the first step stores the
// gradient itself.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"

#include <string>

namespace octavo::formula {

struct SgdConsts : Common {
  float lr, momentum, one_minus_dampening;
  bool nesterov, first;
};

struct Sgd {
  using Consts = SgdConsts;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 0;
  static constexpr std::array<Slot, kMaxSlots> kState{};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = false;

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t step, Consts& c) {
    c.lr = static_cast<float>(h.lr);
    c.momentum = static_cast<float>(h.momentum);
    c.one_minus_dampening = static_cast<float>(1.0 - h.dampening);
    c.nesterov = h.nesterov;
    c.first = step == 1;
  }

  OCTAVO_HD static void copy_fixed(const Consts& host, Consts& c) {
    c.momentum = host.momentum;
    c.one_minus_dampening = host.one_minus_dampening;
    c.nesterov = host.nesterov;
  }

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* /*no state*/) {
    return fma(F(-c.lr), g, p * F(c.keep));
  }
};

struct SgdMomentum : Sgd {
  static constexpr std::uint32_t kSwitches = 1;
  static constexpr int kSlots = 1;
  static constexpr std::array<Slot, kMaxSlots> kState{{{"momentum_buffer", "state1", Moment::first}}};
  static constexpr auto kMoments = moments_of(kState);

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    s[0] = c.first ? g : fma(F(c.momentum), s[0], F(c.one_minus_dampening) * g);
    const F direction = c.nesterov ? fma(F(c.momentum), s[0], g) : s[0];
    return fma(F(-c.lr), direction, p * F(c.keep));
  }
};

struct SgdFamily {
  using Rules = TypeList<Sgd, SgdMomentum>;

  static constexpr Option kOptions[] = {
      rate(1e-3),
      {"momentum", 0.0, Range::non_negative, offsetof(HyperParams, momentum), {}, true},
      {"dampening", 0.0, Range::any, offsetof(HyperParams, dampening)},
      weight_decay(0.0),
      {"nesterov", 0.0, Range::flag, offsetof(HyperParams, nesterov)}};
  static constexpr AlgorithmInfo kNames[] = {{.number = Algorithm::sgd,
                                              .name = "sgd",
                                              .title = "SGD",
                                              .decay = Decay::coupled,
                                              .options = kOptions,
                                              .update_is_rate = false,
                                              .first_step_fills = true}};

  static std::string conflict(const HyperParams& h) {
    if (!h.nesterov || (h.momentum != 0.0 && h.dampening == 0.0)) return {};
    return "nesterov: got true with momentum " + shown(h.momentum) + " and dampening " + shown(h.dampening) +
           ", expected a positive momentum and no dampening";
  }
};

}  // namespace octavo::formula
