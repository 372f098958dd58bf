// Random lives of an engine: tensors come and go, counts and options change, some calls are wrong, and after
// every step each byte and count is that of the tensors stepped by themselves. The seeds are fixed.
// SPDX-License-Identifier: MIT
#include "tests/support/random.h"
#include "tests/engine/engine_set.h"

#include <algorithm>
#include <limits>
#include <set>

namespace test {
namespace {

using octavo::StateFormat;
using octavo::engine::EngineNormPart;

class Life {
 public:
  Life(const OptimizerCase& optimizer, StateFormat format, std::uint64_t seed)
      : random_(seed),
        own_(optimizer, {optimizer.config, mixed_specs(format), seed}),
        expected_(own_.set),
        counts_(own_.counts) {
    own_.device.report = &own_.report;
    groups_ = {own_.options, own_.options};
    groups_[1].hyper.lr *= 3;
    for (std::uint32_t g = 0; g < 2; ++g) EXPECT_TRUE(own_.engine.set_group(g, groups_[g]).ok());
    for (const std::uint32_t handle : own_.all()) add(handle);
  }

  void live() {
    switch (random_.below(9)) {
      case 0:
        return change_options();
      case 1:
        return change_count();
      case 2:
        return come_or_go();
      case 3:
        return err();
      default:
        return step();
    }
  }

 private:
  void add(std::uint32_t handle) {
    octavo::engine::EngineTensor tensor = own_.tensor(handle);
    tensor.group = static_cast<std::uint32_t>(random_.below(2));
    ASSERT_TRUE(own_.engine.set(Handles{handle}, std::vector{tensor}).ok());
    group_of_[handle] = tensor.group;
    known_.insert(handle);
  }
  void change_options() {
    const auto g = static_cast<std::uint32_t>(random_.below(2));
    groups_[g].hyper.lr = 1e-3 * static_cast<double>(1 + random_.below(9));
    groups_[g].hyper.maximize = random_.chance(2);
    groups_[g].seed = random_.below(100);
    groups_[g].clip_grad_norm = random_.chance(2) ? 0.25 : 0.0;
    ASSERT_TRUE(own_.engine.set_group(g, groups_[g]).ok());
  }
  void change_count() {
    const auto handle = static_cast<std::size_t>(random_.below(counts_.size()));
    own_.counts[handle] = counts_[handle] = static_cast<std::int64_t>(random_.below(4));
  }
  void come_or_go() {
    const auto handle = static_cast<std::uint32_t>(random_.below(counts_.size()));
    if (known_.erase(handle) == 0) return add(handle);
    own_.engine.remove(Handles{handle});
  }
  void err() {
    octavo::engine::EngineTensor bad = own_.tensor(0);
    bad.step = &own_.counts[1];  // of another tensor, or not its own state
    bad.tensor.state[0] = {};
    bad.tensor.param = nullptr;
    EXPECT_FALSE(own_.engine.set(Handles{0}, std::vector{bad}).ok());
    const std::vector<const void*> grads = {own_.set.tensors()[0].grad.data()};
    EXPECT_FALSE(own_.engine.begin(Handles{77}, grads, std::vector{octavo::DType::f32}).ok());
    octavo::engine::EngineGroup wrong = groups_[0];
    wrong.hyper.weight_decay = -1;
    EXPECT_FALSE(own_.engine.set_group(0, wrong).ok());
    octavo::engine::EngineArgs args = own_.args();
    args.threads = -1;
    EXPECT_FALSE(own_.engine.step(args).ok());
  }

  void step() {
    Handles active;
    for (const std::uint32_t handle : known_) {
      if (!random_.chance(3)) active.push_back(handle);
    }
    if (random_.chance(2)) std::reverse(active.begin(), active.end());
    const std::uint64_t seed = random_.bits();
    own_.set.fill_grads(seed);
    expected_.fill_grads(seed);
    const bool guard = random_.chance(2);
    if (guard && random_.chance(4)) {
      for (TensorSet* set : {&own_.set, &expected_})
        set->tensors()[0].grad.as<float>()[7] = std::numeric_limits<float>::quiet_NaN();
    }
    const octavo::GradNorm norm = norm_of(expected_, active);
    own_.device.norm = &own_.norm;
    ASSERT_TRUE(own_.begin(active, true).ok());
    ASSERT_TRUE(own_.engine.norm(own_.args(guard), std::vector<EngineNormPart>{{{}, 0, &own_.norm}}).ok());
    ASSERT_EQ(own_.norm.nonfinite, norm.nonfinite);
    const auto report = own_.engine.step(own_.args(guard));
    ASSERT_TRUE(report.ok()) << report.status().message();
    const bool skipped = guard && norm.nonfinite > 0;
    ASSERT_EQ(own_.report.skipped, skipped);
    for (const std::uint32_t handle : active) {
      if (!skipped) step_alone(expected_, handle, groups_[group_of_[handle]], ++counts_[handle], &norm);
    }
    ASSERT_EQ(own_.set.difference(expected_), "");
    ASSERT_EQ(own_.counts, counts_);
  }

  Random random_;
  EngineSet own_;
  TensorSet expected_;
  std::vector<std::int64_t> counts_;
  std::vector<octavo::engine::EngineGroup> groups_;
  std::array<std::uint32_t, 8> group_of_{};
  std::set<std::uint32_t> known_;
};

TEST(EngineRandom, EveryByteAfterEveryStep) {
  std::uint64_t seed = 1;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : {StateFormat::int8, StateFormat::int4_rank1, StateFormat::bf16}) {
      for (int repeat = 0; repeat < 4; ++repeat, ++seed) {
        SCOPED_TRACE(std::string(optimizer.name) + " " + std::string(octavo::name(format)) + " seed " +
                     std::to_string(seed));
        Life life(optimizer, format, seed);
        for (int i = 0; i < 40 && !testing::Test::HasFailure(); ++i) life.live();
      }
    }
  }
}

}  // namespace
}  // namespace test
