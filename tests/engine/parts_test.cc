// The engine's parts by themselves: which buffers share memory, and which step counts on a device are known
// to be equal, and who is stepped first. No device is needed for any.
// SPDX-License-Identifier: MIT
#include "engine/ranges.h"
#include "engine/registry.h"
#include "engine/step_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace octavo::engine {
namespace {

TEST(Ranges, FindsWhatSharesMemory) {
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same every time
  const auto below = [&](std::uintptr_t limit) { return random() % limit; };
  int clashes = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Range> list;
    for (std::uint32_t i = 0; i < 6; ++i) {
      const std::uintptr_t begin = 1000 + below(100);
      list.push_back({begin, begin + 1 + below(20), i, below(2) == 0, "x"});
    }
    bool clash = false;
    std::vector<bool> shares(6);
    for (const Range& a : list) {
      for (const Range& b : list) {
        if (a.handle == b.handle || a.begin >= b.end || b.begin >= a.end) continue;
        clash = clash || !(a.param && b.param);
        shares[a.handle] = true;
      }
    }
    // In one piece, and as a change of another one.
    const std::vector<Range> kept(list.begin(), list.begin() + 3);
    std::vector<Range> old = kept;
    old.push_back({0, 5000, 9, false, "gone"});
    const std::array<std::uint32_t, 1> gone = {9};
    const Ranges merged = Ranges(old).changed(Ranges({list.begin() + 3, list.end()}), gone);
    for (const Ranges& ranges : {Ranges(list), merged}) {
      ASSERT_EQ(ranges.clash().has_value(), clash);
      std::vector<bool> found(6);
      for (const std::uint32_t handle : ranges.sharing()) found[handle] = true;
      ASSERT_EQ(found, shares);
      for (std::uintptr_t at = 995; at < 1125; at += 3) {
        bool inside = false;
        for (const Range& one : list) inside = inside || (one.begin < at + 2 && at < one.end);
        ASSERT_EQ(ranges.find(reinterpret_cast<const void*>(at), 2).has_value(), inside);
      }
    }
    clashes += clash ? 1 : 0;
  }
  EXPECT_GT(clashes, 100);
  EXPECT_LT(clashes, 1900);
}

struct Tensors {
  explicit Tensors(Registry& to) : registry(to) { EXPECT_TRUE(registry.set_group(0, {}).ok()); }
  void set(std::uint32_t handle, std::int64_t known) {
    EngineTensor t;
    t.tensor.spec.numel = 4;
    t.tensor.param = memory[handle][0].data();
    t.tensor.state[0].codes = memory[handle][1].data();
    t.tensor.state[1].codes = memory[handle][2].data();
    t.step = &counts[handle];
    t.step_on_device = true;
    t.known_steps = known;
    const Failure failure = registry.set(std::array{handle}, std::array{t});
    EXPECT_TRUE(failure.status.ok()) << failure.status.message();
  }
  std::array<std::array<std::array<float, 4>, 3>, 8> memory{};
  std::array<std::int64_t, 8> counts{};
  Registry& registry;
};

TEST(Registry, HistoriesOfCountsThatNobodyReads) {
  Registry registry(Algorithm::adamw);
  Tensors tensors(registry);
  const auto equal = [&](std::uint32_t a, std::uint32_t b) {
    return registry[a].history == registry[b].history;
  };
  for (const std::uint32_t handle : {0U, 1U, 2U}) tensors.set(handle, 0);
  tensors.set(3, 7);
  tensors.set(4, kStepsUnknown);
  tensors.set(5, kStepsUnknown);
  EXPECT_TRUE(equal(0, 1) && equal(1, 2));
  EXPECT_FALSE(equal(0, 3) || equal(3, 4) || equal(4, 5));
  registry.stepped(std::array{0U, 1U});
  EXPECT_TRUE(equal(0, 1));
  EXPECT_FALSE(equal(1, 2));
  tensors.set(6, 0);  // as 2, which was never stepped, and not as 0, which began so
  EXPECT_TRUE(equal(2, 6));
  EXPECT_FALSE(equal(0, 6));
  tensors.set(1, kStepsUnchanged);
  EXPECT_TRUE(equal(0, 1));
  tensors.set(7, kStepsUnchanged);  // nothing was there before
  for (std::uint32_t other = 0; other < 7; ++other) EXPECT_FALSE(equal(7, other));
  ASSERT_TRUE(registry.set_counts(std::array{4U, 5U, 0U}, std::array<std::int64_t, 3>{7, 7, -1}).status.ok());
  EXPECT_TRUE(equal(3, 4) && equal(4, 5));
  EXPECT_FALSE(equal(0, 1) || equal(0, 3));
  ASSERT_TRUE(registry.set_counts(std::array{4U, 5U}, {}).status.ok());
  EXPECT_FALSE(equal(4, 5) || equal(3, 4));
  EXPECT_EQ(registry.set_counts(std::array{4U, 4U}, {}).tensor, 4);
  EXPECT_FALSE(registry.set_counts(std::array{4U}, std::array<std::int64_t, 2>{1, 2}).status.ok());
}

// The first layer needs its bias soon, and biases are a group of their own.
TEST(Plan, SmallCohortsGoFirstAndThoseOfTheDeviceLast) {
  constexpr std::int64_t kSizes[] = {4, 1 << 20, 1 << 20, 4};
  constexpr Residence kResidences[] = {Residence::device, Residence::stream, Residence::stream,
                                       Residence::stream};
  Registry registry(Algorithm::sgd);
  std::array<std::vector<float>, 4> params;
  std::array<std::int64_t, 4> counts{};
  std::array<EngineTensor, 4> tensors;
  for (std::uint32_t i = 0; i < 4; ++i) {
    EngineGroup group;  // without momentum: no states
    ASSERT_TRUE(registry.set_group(i, group).ok());
    params[i].resize(static_cast<std::size_t>(kSizes[i]));
    tensors[i].tensor.spec.numel = kSizes[i];
    tensors[i].tensor.param = params[i].data();
    tensors[i].step = &counts[i];
    tensors[i].group = i;
    tensors[i].residence = kResidences[i];
  }
  constexpr std::array kHandles = {0U, 1U, 2U, 3U};
  ASSERT_TRUE(registry.set(kHandles, tensors).status.ok());
  registry[2].offloaded->order = 0;
  registry[1].offloaded->order = 1;
  offload::Offload offload("[sgd]");
  const std::array<const void*, 4> grads = {params[0].data(), params[1].data(), params[2].data(),
                                            params[3].data()};
  const auto plan = StepPlan::make(registry, kHandles, grads, std::array<DType, 4>{}, offload);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::uint32_t> order;
  for (const Cohort& cohort : (*plan)->cohorts()) order.push_back(cohort.handles[0]);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{3, 2, 1, 0}));
}

}  // namespace
}  // namespace octavo::engine
