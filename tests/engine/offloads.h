// Steps of an engine whose states are in host memory beside one whose states are on the device, with the same
// gradients: accumulated, clipped, taken or not. The queues sleep at random.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/engine/engine_set.h"
#include "tests/reference/elements.h"
#include "tests/support/delays.h"

#include <memory>
#include <string>

namespace test {

struct Way {
  std::vector<octavo::Residence> residences;
  int passes = 1;  // backward passes of a step
  double clip_grad_norm = 0.0;
  bool take = false;
  bool fp32 = false;  // sums of what is taken
  bool defer = false;

  [[nodiscard]] std::string name() const {
    std::string out;
    for (const octavo::Residence residence : residences) out += std::to_string(static_cast<int>(residence));
    return out + " passes " + std::to_string(passes) + " clip_grad_norm " + std::to_string(clip_grad_norm) +
           " take " + std::to_string(take) + " fp32 " + std::to_string(fp32) + " defer " +
           std::to_string(defer);
  }
};

// What a framework does: sums in the gradient's own type.
inline void add_grads(TensorSet& to, const TensorSet& from) {
  for (std::size_t i = 0; i < to.tensors().size(); ++i) {
    TensorBuffers& t = to.tensors()[i];
    for (std::int64_t k = 0; k < t.spec.numel; ++k) {
      const float sum = reference::load(t.spec.grad_dtype, t.grad.data(), k) +
                        reference::load(t.spec.grad_dtype, from.tensors()[i].grad.data(), k);
      reference::store_nearest(t.spec.grad_dtype, t.grad.data(), k, sum);
    }
  }
}

class Offloads {
 public:
  Offloads(const OptimizerCase& optimizer, const std::vector<octavo::TensorSpec>& specs, const Way& way)
      : way_(way), own(optimizer, {optimizer.config, specs, 7}), plain(optimizer, own.set) {
    own.residences = way.residences;
    own.residences.resize(specs.size(), octavo::Residence::device);
    own.held_in_fp32 = way.fp32;
    for (EngineSet* set : {&own, &plain}) {
      set->options.clip_grad_norm = way.clip_grad_norm;
      EXPECT_TRUE(set->engine.set_group(0, set->options).ok());
      const octavo::Status added = set->add(set->all());
      EXPECT_TRUE(added.ok()) << added.message();
      set->device.norm = &set->norm;
      set->device.report = &set->report;
    }
  }

  [[nodiscard]] bool takes(std::uint32_t handle) const {
    return way_.take && own.residences[handle] != octavo::Residence::device;
  }

  // One step of both. The gradients of the offloaded one may be overwritten when it returns, as the caller's
  // contract allows, and are.
  void step(const Handles& active, std::uint64_t seed, bool guard = false) {
    for (int pass = 0; pass < way_.passes; ++pass) {
      const std::uint64_t now = seed * 100 + static_cast<std::uint64_t>(pass);
      TensorSet fresh = plain.set;
      fresh.fill_grads(now);
      if (pass == 0) {
        copy_grads(fresh, plain.set);
      } else {
        add_grads(plain.set, fresh);
      }
      if (!way_.take) continue;
      for (const std::uint32_t handle : active) {
        if (!takes(handle)) continue;
        TensorBuffers& t = fresh.tensors()[handle];
        const void* grad = t.grad.data();
        const octavo::DType dtype = t.spec.grad_dtype;
        ASSERT_TRUE(own.engine.take(Handles{handle}, {&grad, 1}, {&dtype, 1}, {}, nullptr).ok());
      }
      ASSERT_TRUE(own.engine.wait({}, octavo::engine::EngineWait::gradients, {}, nullptr).ok());
    }
    copy_grads(plain.set, own.set);
    const bool with_norm = way_.clip_grad_norm > 0.0 || guard;
    begin(own, active, with_norm, true);
    begin(plain, active, with_norm, false);
    const std::vector<octavo::engine::EngineNormPart> parts[2] = {{{{}, 0, &own.norm}},
                                                                  {{{}, 0, &plain.norm}}};
    if (with_norm) {
      ASSERT_TRUE(own.engine.norm(own.args(guard), parts[0]).ok());
      ASSERT_TRUE(plain.engine.norm(plain.args(guard), parts[1]).ok());
      EXPECT_EQ(own.norm.l2, plain.norm.l2);
      EXPECT_EQ(own.norm.max, plain.norm.max);
      EXPECT_EQ(own.norm.nonfinite, plain.norm.nonfinite);
    }
    octavo::engine::EngineArgs args = own.args(guard);
    args.defer = way_.defer;
    const auto report = own.engine.step(args);
    ASSERT_TRUE(report.ok()) << report.status().message();
    const auto expected = plain.engine.step(plain.args(guard));
    ASSERT_TRUE(expected.ok()) << expected.status().message();
    EXPECT_EQ(report->skipped, expected->skipped);
    EXPECT_FALSE(report->pending);
    EXPECT_EQ(own.report.skipped, plain.report.skipped);
    EXPECT_EQ(own.report.nonfinite, plain.report.nonfinite);
    // The caller writes its scalars and gradients again.
    own.norm = {1e30, 1e30, 1};
    if (way_.defer) {
      ASSERT_TRUE(own.engine.wait({}, octavo::engine::EngineWait::gradients, {}, nullptr).ok());
    }
    own.set.fill_grads(999);
  }

  // "" where both have the same weights, and (once nothing is under way) states and counts.
  [[nodiscard]] std::string difference() {
    if (way_.defer) {
      EXPECT_TRUE(own.engine.wait({}, octavo::engine::EngineWait::weights, {}, nullptr).ok());
    }
    for (std::size_t i = 0; i < own.counts.size(); ++i) {
      const TensorBuffers& a = own.set.tensors()[i];
      const TensorBuffers& b = plain.set.tensors()[i];
      const std::string found =
          first_difference(a.param.data(), b.param.data(), static_cast<std::size_t>(a.param.size()), 1);
      if (!found.empty()) return "weight of tensor " + std::to_string(i) + ": " + found;
    }
    EXPECT_TRUE(own.engine.synchronize().ok());
    if (own.counts != plain.counts) return "counts";
    copy_grads(plain.set, own.set);
    return own.set.difference(plain.set);
  }

  static void copy_grads(const TensorSet& from, TensorSet& to) {
    for (std::size_t i = 0; i < to.tensors().size(); ++i) to.tensors()[i].grad = from.tensors()[i].grad;
  }

 private:
  Way way_;

  void begin(EngineSet& set, const Handles& active, bool with_norm, bool offloaded) {
    std::vector<const void*> grads;
    std::vector<octavo::DType> dtypes;
    for (const std::uint32_t handle : active) {
      const TensorBuffers& t = set.set.tensors()[handle];
      const bool held = offloaded && takes(handle);
      EXPECT_EQ(set.engine.holds(handle), held);
      grads.push_back(held ? nullptr : t.grad.data());
      dtypes.push_back(t.spec.grad_dtype);
    }
    const auto plan = set.engine.begin(active, grads, dtypes, with_norm);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    set.make_room();
  }

 public:
  EngineSet own, plain;
};

}  // namespace test
