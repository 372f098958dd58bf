// What offload refuses, in whose memory copies are, and what becomes of an engine whose work has failed.
// SPDX-License-Identifier: MIT
#include "tests/engine/offloads.h"

#include <sys/wait.h>
#include <unistd.h>

namespace test {
namespace {

using octavo::Residence;
using octavo::StateFormat;

class OffloadInput : public testing::Test {
 protected:
  OffloadInput()
      : own_(optimizers(false)[0], {optimizers(false)[0].config, mixed_specs(StateFormat::int8), 7}) {
    own_.residences = {Residence::host, Residence::stream, Residence::host, Residence::device,
                       Residence::host};
  }
  octavo::Status take(std::uint32_t handle, octavo::DType dtype, const void* grad) {
    return own_.engine.take(Handles{handle}, {&grad, 1}, {&dtype, 1}, {}, nullptr);
  }
  [[nodiscard]] const void* grad(std::size_t i) const { return own_.set.tensors()[i].grad.data(); }
  static void expect(const octavo::Status& status, const std::string& text) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  }

  EngineSet own_;
};

TEST_F(OffloadInput, Tensors) {
  octavo::engine::EngineTensor bad = own_.tensor(0);
  bad.residence = static_cast<Residence>(7);
  expect(own_.engine.set(Handles{0}, std::vector{bad}), "tensor 0.residence: got 7, expected 0 (device)");
  // A parameter that shares memory with another.
  std::vector<octavo::engine::EngineTensor> two = {own_.tensor(0), own_.tensor(4)};
  two[1].tensor.param = two[0].tensor.param;
  expect(own_.engine.set(Handles{0, 4}, two),
         "param: shares memory with another parameter; one whose state is "
         "offloaded must not");
  ASSERT_TRUE(own_.add(own_.all()).ok());
  expect(own_.engine.set_host_memory({}), "an offloaded tensor was set already");
}

TEST_F(OffloadInput, MeasuringAlgorithmsWithOtherRanks) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    const bool measures = octavo::passes(optimizer.config.algorithm, switches_of(optimizer.config)) > 1;
    EngineSet own(optimizer, {optimizer.config, mixed_specs(StateFormat::int8), 7});
    octavo::engine::EngineTensor shared = own.tensor(0);
    shared.residence = Residence::stream;
    shared.part = 3;
    const octavo::Status set = own.engine.set(Handles{0}, std::vector{shared});
    EXPECT_EQ(set.ok(), !measures);
    if (measures) expect(set, "other ranks have parts of it (part 3)");
  }
}

TEST_F(OffloadInput, Gradients) {
  ASSERT_TRUE(own_.add(own_.all()).ok());
  using octavo::DType;
  expect(take(3, DType::bf16, grad(3)),
         "tensor 3: its state is on the device, expected residence host or stream");
  EXPECT_EQ(own_.engine.failed_tensor(), 3);
  expect(take(0, DType::f32, nullptr), "tensor 0.grad: got null");
  expect(take(0, static_cast<DType>(9), grad(0)), "tensor 0.grad: its dtype is 9");
  expect(take(77, DType::f32, grad(0)), "tensor 77: is not known");
  ASSERT_TRUE(take(0, DType::f32, grad(0)).ok());
  expect(take(0, DType::bf16, grad(0)), "tensor 0.grad: is bf16, expected fp32, as the first one");
  expect(own_.begin({0}).status(), "tensor 0.grad: another one was taken to host memory");
  const void* none = nullptr;
  const DType f32 = DType::f32;
  expect(own_.engine.begin(Handles{4}, {&none, 1}, {&f32, 1}).status(), "tensor 4.grad: got null");
  ASSERT_TRUE(own_.engine.begin(Handles{0}, {&none, 1}, {&f32, 1}).ok());
  own_.make_room();
  ASSERT_TRUE(own_.engine.drop({}).ok());
  expect(own_.engine.step(own_.args()).status(), "tensor 0.grad: was stepped or dropped since begin");
  ASSERT_TRUE(own_.begin({0}).ok());
  ASSERT_TRUE(take(0, DType::f32, grad(0)).ok());
  expect(own_.engine.step(own_.args()).status(), "tensor 0.grad: was taken to host memory since begin");
}

// A plan is used again, but not a norm that was asked for when other gradients were in host memory.
TEST_F(OffloadInput, NormOfOtherHeldGradients) {
  ASSERT_TRUE(own_.add(own_.all()).ok());
  const void* none = nullptr;
  const octavo::DType f32 = octavo::DType::f32;
  octavo::GradNorm norm;
  const octavo::engine::EngineNormPart part{{}, 0, &norm};
  ASSERT_TRUE(take(0, f32, grad(0)).ok());
  ASSERT_TRUE(own_.engine.begin(Handles{0}, {&none, 1}, {&f32, 1}, true).ok());
  own_.make_room();
  ASSERT_TRUE(own_.engine.norm(own_.args(), {&part, 1}).ok());
  ASSERT_TRUE(own_.engine.step(own_.args()).ok());
  ASSERT_TRUE(own_.begin({0}).ok());
  expect(own_.engine.norm(own_.args(), {&part, 1}), "begin: was called without with_norm");
}

TEST_F(OffloadInput, Staging) {
  ASSERT_TRUE(own_.add(own_.all()).ok());
  EXPECT_EQ(own_.engine.staging_bytes({}), 0);
  ASSERT_TRUE(own_.begin({0, 1}).ok());
  const auto needed = own_.engine.staging_bytes({});
  EXPECT_GT(needed, 0);
  const auto whole = own_.device.staging;
  own_.device.staging = whole.first(static_cast<std::size_t>(needed) - 1);
  expect(own_.engine.step(own_.args()).status(), "staging: got " + std::to_string(needed - 1) +
                                                     " bytes, expected " + std::to_string(needed) +
                                                     " (Engine::staging_bytes)");
  own_.device.staging = whole;
  EXPECT_TRUE(own_.engine.step(own_.args()).ok());
  ASSERT_TRUE(own_.begin({3}).ok());
  EXPECT_EQ(own_.engine.staging_bytes({}), 0);
  ASSERT_TRUE(
      own_.engine.synchronize().ok());  // copies still read the staging memory, which the fixture frees
}

struct Heap {
  std::int64_t now = 0, calls = 0, most = 1 << 30;
};

TEST_F(OffloadInput, HostMemoryOfTheCaller) {
  Heap heap;
  const octavo::offload::HostAllocator memory{
      [](void* user, std::int64_t bytes) -> void* {
        auto& own = *static_cast<Heap*>(user);
        if (own.now + bytes > own.most) return nullptr;
        own.now += bytes;
        ++own.calls;
        auto* data = static_cast<std::int64_t*>(
            ::operator new (static_cast<std::size_t>(bytes) + 64, std::align_val_t{64}));
        data[0] = bytes;
        return reinterpret_cast<std::byte*>(data) + 64;
      },
      [](void* user, void* data) {
        auto* begin = reinterpret_cast<std::int64_t*>(static_cast<std::byte*>(data) - 64);
        static_cast<Heap*>(user)->now -= *begin;
        ::operator delete (begin, std::align_val_t{64});
      },
      &heap};
  {
    EngineSet own(optimizers(false)[0], own_.set);
    own.residences.assign(5, Residence::host);
    ASSERT_TRUE(own.engine.set_host_memory(memory).ok());
    ASSERT_TRUE(own.add(own.all()).ok());
    heap.most = 1000;
    expect(own.begin(own.all()).status(), "the caller's allocator has no");
    heap.most = 1 << 30;
    ASSERT_TRUE(own.step(own.all()).ok());
    EXPECT_EQ(own.engine.host_bytes(), heap.now);
    EXPECT_GT(heap.now, 4 * 64 * 30);
    EXPECT_LE(heap.calls, 6);  // tensors share blocks
    TensorSet expected = own_.set;
    for (const std::size_t i : {0, 1, 3, 4}) step_alone(expected, i, own.options, 1);
    EXPECT_EQ(own.set.difference(expected), "");
  }
  EXPECT_EQ(heap.now, 0);
}

// An error of the queues stays: nobody knows what states hold.
TEST_F(OffloadInput, WorkThatFails) {
  ASSERT_TRUE(own_.add(own_.all()).ok());
  ASSERT_EQ(setenv("OCTAVO_OFFLOAD_DELAYS", "now and then", 1), 0);
  const auto plan = own_.begin({0, 1});
  ASSERT_EQ(unsetenv("OCTAVO_OFFLOAD_DELAYS"), 0);
  ASSERT_TRUE(plan.ok());
  const TensorSet before = own_.set;
  const auto failed = own_.engine.step(own_.args());
  expect(failed.status(), "OCTAVO_OFFLOAD_DELAYS");
  for (const octavo::Status& later :
       {own_.begin({0}).status(), own_.engine.wait({}, octavo::engine::EngineWait::weights, {}, nullptr),
        own_.engine.synchronize(), own_.add({0}), take(0, octavo::DType::f32, grad(0))})
    EXPECT_EQ(later.message(), failed.status().message());
  EXPECT_EQ(own_.set.difference(before), "");
  EXPECT_EQ(own_.counts, std::vector<std::int64_t>(5));
}

// A data loader's worker: it may exist and end; the engine cannot be used there.
TEST_F(OffloadInput, ForkedProcess) {
  ASSERT_TRUE(own_.add(own_.all()).ok());
  ASSERT_TRUE(own_.step({0, 1}).ok());
  const pid_t child = fork();
  if (child == 0) {
    const octavo::Status refused = own_.engine.wait({}, octavo::engine::EngineWait::weights, {}, nullptr);
    const bool said = refused.message().find("forked process") != std::string::npos;
    const bool begins = own_.begin({0}).ok();
    { const octavo::engine::Engine gone = std::move(own_.engine); }
    _exit(said && !begins ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(own_.step({0, 1}).ok());
}

}  // namespace
}  // namespace test
