// Adam and AdamW (Kingma & Ba 2015; Loshchilov & Hutter 2019), as torch.optim computes them: decay before the
// update, eps outside the root. AmsGrad keeps the running maximum of v as a third moment.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/moments.h"

#include <octavo/optimizer.h>

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
  static constexpr int kSlots = 2;
  static constexpr Moment kMoments[kMaxSlots] = {Moment::first, Moment::second};

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

  // Copies into `c` the constants that no scalar on a device can change, from those that the host derived.
  OCTAVO_HD static void take_fixed(const Consts& host, Consts& c) {
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
  static constexpr int kSlots = 3;
  static constexpr Moment kMoments[kMaxSlots] = {Moment::first, Moment::second, Moment::second};

  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    const F v = moments(c, g, s);
    s[2] = select(is_nan(v), v, select(v > s[2], v, s[2]));  // a NaN in either stays, as in torch.maximum
    return apply(c, s[0], s[2], p);
  }
};

}  // namespace octavo::formula
