// Triad, an example: a fast and a slow average of the gradient, divided by the root of the average of its
// square and scaled to the norm of the tensor's weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/describe.h"
#include "formula/trust_ratio.h"
#include "lane/exact.h"

#include <cmath>

namespace octavo::formula {

struct TriadConsts : Common {  // the constants of all elements of a step: at most 64 bytes
  float lr, beta1, one_minus_beta1, beta2, one_minus_beta2, beta3, one_minus_beta3, alpha, eps;
  float ratio;  // the tensor's, set between the two passes
};

struct Triad {
  using Consts = TriadConsts;
  static constexpr int kPasses = 2;
  static constexpr std::uint32_t kSwitches = 0;
  static constexpr int kSlots = 3;  // moments, up to kMaxSlots
  static constexpr std::array<Slot, kMaxSlots> kState{{{"fast_avg", "state1", Moment::first},
                                                       {"exp_avg_sq", "state2", Moment::second},
                                                       {"slow_avg", {}, Moment::first}}};
  static constexpr auto kMoments = moments_of(kState);
  static constexpr bool kDivides = true;

  // Runs once per step, in double, rounded once. Common is filled in already.
  OCTAVO_HD static void derive(const HyperParams& h, std::int64_t /*step*/, Consts& c) {
    c.lr = static_cast<float>(h.lr);
    c.beta1 = static_cast<float>(h.beta1);
    c.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
    c.beta2 = static_cast<float>(h.beta2);
    c.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
    c.beta3 = static_cast<float>(h.own[0]);
    c.one_minus_beta3 = static_cast<float>(1.0 - h.own[0]);
    c.alpha = static_cast<float>(h.own[1]);
    c.eps = static_cast<float>(h.eps);
    c.ratio = 1.0F;
  }

  // For speed on CUDA: the constants that depend neither on the learning rate nor on the step.
  OCTAVO_HD static void copy_fixed(const Consts& host, Consts& c) {
    c.beta1 = host.beta1;
    c.beta2 = host.beta2;
    c.beta3 = host.beta3;
  }

  // For speed on CUDA: what is divided, and by what. The lane without branches is exact within a range.
  OCTAVO_HD static Quotients quotients(const Consts& c) { return {c.lr > 1.0F ? c.lr : 1.0F, 1.0F, c.eps}; }
  template <class F>
  OCTAVO_HD static F numerator(const Consts& c, F /*g*/, const F* s) {
    return fma(F(c.alpha), s[2], s[0]);
  }

  // The first pass, once per element: returns what is squared and summed together with the weights. Its
  // arguments are the gradient (scaled, with coupled decay), the parameter and the moments, which it
  // advances.
  template <class F>
  OCTAVO_HD static F unscaled_update(const Consts& c, F g, F /*p*/, F* s) {
    s[0] = fma(F(c.beta1), s[0], F(c.one_minus_beta1) * g);
    s[1] = fma(F(c.beta2), s[1], F(c.one_minus_beta2) * (g * g));
    s[2] = fma(F(c.beta3), s[2], F(c.one_minus_beta3) * g);
    return numerator(c, g, s) / (sqrt(s[1]) + F(c.eps));
  }

  // Runs once per tensor.
  OCTAVO_HD static float ratio(const Consts& /*c*/, const Sums& sums) {
    const bool any = sums.weight > 0.0 && sums.update > 0.0;
    return any ? static_cast<float>(std::sqrt(sums.weight) / std::sqrt(sums.update)) : 1.0F;
  }

  // The second pass, once per element, from the same moments: returns the new parameter.
  template <class F>
  OCTAVO_HD static F update(const Consts& c, F g, F p, F* s) {
    return fma(F(-(c.lr * c.ratio)), unscaled_update(c, g, p, s), p * F(c.keep));
  }
};

struct TriadFamily {
  using Rules = TypeList<Triad>;

  static constexpr Option kOptions[] = {rate(1e-3),
                                        beta1(0.9),
                                        beta2(0.999),
                                        {"beta3", 0.99, Range::fraction, own_place(0), "betas"},
                                        {"alpha", 0.5, Range::non_negative, own_place(1)},
                                        epsilon(1e-8),
                                        weight_decay(0.0)};
  static constexpr AlgorithmInfo kNames[] = {
      {.number = static_cast<Algorithm>(1000),
       .name = "triad",
       .title = "Triad",
       .decay = Decay::decoupled,
       .options = kOptions,
       .excluded_formats = format_bit(StateFormat::int4_rank1)}};  // as an example
};

}  // namespace octavo::formula
