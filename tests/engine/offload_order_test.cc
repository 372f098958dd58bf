// Who waits for whom: deferred steps, changes while work is under way, release, and weights that others
// write.
// SPDX-License-Identifier: MIT
#include "tests/engine/offloads.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

namespace test {
namespace {

using octavo::GradNorm;
using octavo::Residence;
using octavo::StateFormat;
using octavo::engine::EngineCopy;
using octavo::engine::EngineNormPart;

const std::vector<Residence> kMixed = {Residence::stream, Residence::host, Residence::host, Residence::stream,
                                       Residence::host};

Offloads made(bool defer, bool take = false, double clip_grad_norm = 0.0) {
  const OptimizerCase optimizer = optimizers(false)[0];
  return {optimizer, mixed_specs(StateFormat::int8), {kMixed, 1, clip_grad_norm, take, false, defer}};
}

TEST(OffloadOrder, WeightsAreReadyOneByOne) {
  const Delays delays(300);
  Offloads both = made(true);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(both.own.engine.set_order(step < 3 ? Handles{4, 1, 0} : Handles{0, 1, 3}).ok());
    both.step(both.own.all(), step);
    for (const std::uint32_t handle : {4U, 1U, 0U, 3U}) {
      ASSERT_TRUE(
          both.own.engine.wait(Handles{handle}, octavo::engine::EngineWait::weights, {}, nullptr).ok());
      const TensorBuffers& a = both.own.set.tensors()[handle];
      const TensorBuffers& b = both.plain.set.tensors()[handle];
      EXPECT_EQ(std::memcmp(a.param.data(), b.param.data(), static_cast<std::size_t>(a.param.size())), 0);
    }
  }
  EXPECT_EQ(both.difference(), "");
}

TEST(OffloadOrder, StagingMemoryIsTheCallersBehindAllWeights) {
  for (int seed = 1; seed <= 4; ++seed) {
    const Delays delays(2000, seed);
    Offloads both = made(true);
    both.step(both.own.all(), 1);
    ASSERT_TRUE(both.own.engine.wait({}, octavo::engine::EngineWait::weights, {}, nullptr).ok());
    std::memset(both.own.device.staging.data(), 0x55, both.own.device.staging.size());
    EXPECT_EQ(both.difference(), "");
  }
}

// Steps are queued behind one another without a wait between them.
TEST(OffloadOrder, StepsBehindSteps) {
  const Delays delays(300);
  for (const bool take : {false, true}) {
    Offloads both = made(true, take, 0.05);
    for (std::uint64_t step = 1; step <= 5; ++step)
      both.step(step % 2 == 0 ? Handles{1, 0} : both.own.all(), step);
    EXPECT_EQ(both.difference(), "");
  }
}

TEST(OffloadOrder, TensorsChangeWhileStepsAreUnderWay) {
  const Delays delays(500);
  Offloads both = made(true);
  both.step(both.own.all(), 1);
  for (EngineSet* set : {&both.own, &both.plain}) {
    octavo::engine::EngineGroup second = set->options;
    second.hyper.lr = 0.25;
    ASSERT_TRUE(set->engine.set_group(1, second).ok());
    octavo::engine::EngineTensor moved = set->tensor(1);
    moved.group = 1;
    ASSERT_TRUE(set->engine.set(Handles{1}, std::vector{moved}).ok());
  }
  both.step(both.own.all(), 2);
  // Another residence, in the middle of things.
  both.own.residences = {Residence::host, Residence::stream, Residence::device, Residence::host,
                         Residence::stream};
  ASSERT_TRUE(both.own.add({0, 2, 3, 4}).ok());
  both.step(both.own.all(), 3);
  both.own.engine.remove(Handles{3});
  both.plain.engine.remove(Handles{3});
  both.step({0, 1, 2, 4}, 4);
  EXPECT_EQ(both.difference(), "");
}

// As the Python package calls an engine: from any thread, one at a time.
TEST(OffloadOrder, TwoThreadsUnderOneMutex) {
  const Delays delays(300);
  for (const bool take : {false, true}) {
    Offloads both = made(true, take, 0.05);
    std::mutex mutex;
    std::atomic<bool> done = false;
    std::thread other([&] {
      for (int turn = 0; !done; ++turn) {
        const std::lock_guard lock(mutex);
        octavo::engine::Engine& engine = both.own.engine;
        EXPECT_TRUE(engine.wait({}, octavo::engine::EngineWait::gradients, {}, nullptr).ok());
        EXPECT_TRUE(engine.wait({}, octavo::engine::EngineWait::weights, {}, nullptr).ok());
        EXPECT_TRUE(turn % 2 != 0 || engine.synchronize().ok());
        EXPECT_GE(engine.host_bytes(), 0);
      }
    });
    for (std::uint64_t step = 1; step <= 6; ++step) {
      const std::lock_guard lock(mutex);
      both.step(step % 2 == 0 ? Handles{1, 0} : both.own.all(), step);
    }
    done = true;
    other.join();
    EXPECT_EQ(both.difference(), "");
  }
}

TEST(OffloadOrder, ReleaseInTheBackwardPass) {
  const Delays delays(100);
  for (const bool defer : {false, true}) {
    Offloads both = made(defer, false, 0.5);
    std::array<std::vector<std::array<GradNorm, 2>>, 2> owns;
    GradNorm totals[2];
    for (auto& own : owns) own.resize(5);
    for (std::uint64_t step = 1; step <= 4; ++step) {
      both.plain.set.fill_grads(step);
      Offloads::copy_grads(both.plain.set, both.own.set);
      for (const std::uint32_t handle : {4U, 0U, 1U, 3U}) {
        int which = 0;
        for (EngineSet* set : {&both.own, &both.plain}) {
          ASSERT_TRUE(set->begin({handle}, true).ok());
          octavo::engine::EngineArgs args = set->args(true);
          args.defer = defer;
          const auto done = set->engine.ready(args, owns[which][handle].data());
          ASSERT_TRUE(done.ok()) << done.status().message();
          ++which;
        }
        EXPECT_EQ(owns[0][handle][0].l2, owns[1][handle][0].l2);
        if (defer) {
          ASSERT_TRUE(
              both.own.engine.wait(Handles{handle}, octavo::engine::EngineWait::gradients, {}, nullptr).ok());
        }
        std::memset(both.own.set.tensors()[handle].grad.data(), 0xFF,
                    static_cast<std::size_t>(both.own.set.tensors()[handle].grad.size()));
      }
      int which = 0;
      for (EngineSet* set : {&both.own, &both.plain}) {
        set->make_room();
        octavo::engine::EngineArgs args = set->args(true);
        args.defer = defer;
        const EngineNormPart part{{}, 0, &totals[which++]};
        ASSERT_TRUE(set->engine.finish(args, {&part, 1}).ok());
      }
      EXPECT_EQ(totals[0].l2, totals[1].l2);
      if (step % 2 == 0) {
        ASSERT_EQ(both.difference(), "");
      }
    }
    ASSERT_EQ(both.difference(), "");
  }
}

TEST(OffloadOrder, WeightsThatOthersWrite) {
  const Delays delays(200);
  Offloads both = made(true);
  EngineSet& own = both.own;
  EXPECT_EQ(own.engine.host_param(1), nullptr);
  const auto early = own.engine.refresh({}, EngineCopy::to_device, {}, nullptr);
  EXPECT_NE(early.message().find("tensor 1: has no copy of its parameter in host memory yet"),
            std::string::npos);
  both.step(own.all(), 1);
  ASSERT_EQ(both.difference(), "");
  own.set.fill_params(77);
  both.plain.set.fill_params(77);
  ASSERT_TRUE(own.engine.refresh({}, EngineCopy::to_host, {}, nullptr).ok());
  both.step(own.all(), 2);
  ASSERT_EQ(both.difference(), "");

  // The other way round.
  TensorBuffers& t = both.plain.set.tensors()[1];
  both.plain.set.fill_params(78);
  ASSERT_TRUE(own.engine.synchronize().ok());
  auto* copy = own.engine.host_param(1);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(own.engine.host_param(0), nullptr);  // streamed
  for (const std::uint32_t handle : {1U, 2U, 4U}) {
    const TensorBuffers& from = both.plain.set.tensors()[handle];
    if (from.param.size() == 0) continue;  // it has no copy
    std::memcpy(own.engine.host_param(handle), from.param.data(),
                static_cast<std::size_t>(from.param.size()));
  }
  ASSERT_TRUE(own.engine.refresh({}, EngineCopy::to_device, {}, nullptr).ok());
  EXPECT_EQ(std::memcmp(own.set.tensors()[1].param.data(), t.param.data(),
                        static_cast<std::size_t>(t.param.size())),
            0);
  for (const std::uint32_t handle : {0U, 3U}) {
    const TensorBuffers& from = both.plain.set.tensors()[handle];
    std::memcpy(own.set.tensors()[handle].param.data(), from.param.data(),
                static_cast<std::size_t>(from.param.size()));
  }
  both.step(own.all(), 3);
  EXPECT_EQ(both.difference(), "");
  // A tensor that is set again may have other weights: nobody has to tell.
  own.set.fill_params(79);
  both.plain.set.fill_params(79);
  ASSERT_TRUE(own.add(own.all()).ok());
  both.step(own.all(), 4);
  EXPECT_EQ(both.difference(), "");
}

// What was taken and dropped leaves no trace, also while it is still on its way.
TEST(OffloadOrder, DroppedGradients) {
  const Delays delays(500);
  Offloads both = made(true, true, 0.05);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    for (int again = 0; again < 2; ++again) {
      for (std::uint32_t handle = 0; handle < 5; ++handle) {
        const TensorBuffers& t = both.own.set.tensors()[handle];
        const void* grad = t.grad.data();
        ASSERT_TRUE(
            both.own.engine.take(Handles{handle}, {&grad, 1}, {&t.spec.grad_dtype, 1}, {}, nullptr).ok());
      }
    }
    EXPECT_TRUE(both.own.engine.holds(1));
    ASSERT_TRUE(both.own.engine.drop(step % 2 == 0 ? Handles{} : Handles{0, 1, 2, 3, 4}).ok());
    EXPECT_FALSE(both.own.engine.holds(1));
    both.step(both.own.all(), step);
  }
  EXPECT_EQ(both.difference(), "");
}

}  // namespace
}  // namespace test
