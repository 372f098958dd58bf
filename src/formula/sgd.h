// SGD, plain and with momentum (dampening, Nesterov), as torch.optim.SGD: the first step stores the gradient
// itself.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/moments.h"

#include <octavo/optimizer.h>

namespace octavo::formula {

struct SgdConsts : Common {
  float lr, momentum, one_minus_dampening;
  bool nesterov, first;
};

struct Sgd {
  using Consts = SgdConsts;
  static constexpr int kSlots = 0;
  static constexpr Moment kMoments[kMaxSlots] = {};

  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t step, Consts& c) {
    c.lr = static_cast<float>(h.lr);
    c.momentum = static_cast<float>(h.momentum);
    c.one_minus_dampening = static_cast<float>(1.0 - h.dampening);
    c.nesterov = h.nesterov;
    c.first = step == 1;
  }

  OCTAVO_HD static void take_fixed(const Consts& host, Consts& c) {  // as Adam's
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
  static constexpr int kSlots = 1;
  static constexpr Moment kMoments[kMaxSlots] = {Moment::first};

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    s[0] = c.first ? g : fma(F(c.momentum), s[0], F(c.one_minus_dampening) * g);
    const F direction = c.nesterov ? fma(F(c.momentum), s[0], g) : s[0];
    return fma(F(-c.lr), direction, p * F(c.keep));
  }
};

}  // namespace octavo::formula
