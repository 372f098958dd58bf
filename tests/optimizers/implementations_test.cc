// Scalar and SIMD implementations, and any number of threads, give the same bytes: 20 steps over every
// optimizer x format x weight store, on the sizes where tails and blocks end. A million elements run for a
// part of the combinations; OCTAVO_TEST_FULL=1 runs all of them.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <unistd.h>

#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

constexpr int kSteps = 20;

std::vector<std::string> simd_implementations() {
  std::vector<std::string> names = supported_implementations();
  EXPECT_EQ(names.back(), "scalar");
  names.pop_back();
  return names;
}

DType grad_for(std::size_t index) { return octavo::all_dtypes()[index % octavo::all_dtypes().size()]; }

// Runs a copy of `set` on every implementation for 20 steps, and says where one parts from the scalar one.
std::string compare(const TensorSet& set, const OptimizerCase& optimizer, int threads) {
  const std::vector<std::string> names = simd_implementations();
  TensorSet scalar = set;
  std::vector<TensorSet> others(names.size(), set);
  for (int i = 1; i <= kSteps; ++i) {
    octavo::StepArgs args = step_args(optimizer, i);
    args.threads = threads;
    scalar.fill_grads(static_cast<std::uint64_t>(i));
    {
      const ForcedImplementation forced("scalar");
      if (const auto report = scalar.step(args); !report.ok()) return report.status().message();
    }
    for (std::size_t k = 0; k < names.size(); ++k) {
      const ForcedImplementation forced(names[k]);
      for (std::size_t t = 0; t < set.tensors().size(); ++t)
        others[k].tensors()[t].grad = scalar.tensors()[t].grad;
      if (const auto report = others[k].step(args); !report.ok()) return report.status().message();
      const std::string difference = others[k].difference(scalar);
      if (!difference.empty()) return names[k] + ", step " + std::to_string(i) + ": " + difference;
    }
  }
  return "";
}

class Implementations : public testing::TestWithParam<OptimizerCase> {};

TEST_P(Implementations, EqualScalarInBytes) {
  if (simd_implementations().empty()) GTEST_SKIP() << "this machine runs the scalar implementation only";
  std::size_t combination = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      std::vector<TensorSpec> specs;
      for (const std::int64_t numel : {0, 1, 31, 255, 256, 257, 4095, 4097}) {
        specs.push_back(tensor_spec(numel, store.dtype, grad_for(combination), store.store, format));
        if (numel % 2 == 1) give_shape(specs.back());
      }
      ++combination;
      const TensorSet set(GetParam().config, specs, combination);
      ASSERT_EQ(compare(set, GetParam(), 1), "") << octavo::name(format) << ", " << store.name;
    }
  }
}

TEST_P(Implementations, EqualScalarOnAMillionElements) {
  if (simd_implementations().empty()) GTEST_SKIP() << "this machine runs the scalar implementation only";
  if (quick()) GTEST_SKIP() << "OCTAVO_TEST_QUICK is set";
  const std::vector<OptimizerCase> list = optimizers(false);
  std::size_t optimizer = 0;
  while (std::string_view(list[optimizer].name) != GetParam().name) ++optimizer;
  std::size_t combination = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      ++combination;
      // By default two combinations per optimizer, so that all formats and all stores come up.
      if (!full() && combination % 21 != (optimizer * 8) % 21) continue;
      TensorSpec spec = tensor_spec(1000003, store.dtype, grad_for(combination), store.store, format);
      const TensorSet set(GetParam().config, {&spec, 1}, combination);
      ASSERT_EQ(compare(set, GetParam(), 2), "") << octavo::name(format) << ", " << store.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Implementations, testing::ValuesIn(optimizers(false)), test_name);

TEST(Threads, AnyNumberGivesTheSameBytes) {
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      const std::vector<StoreCase> all = stores();
      const StoreCase& store = all[combination++ % all.size()];
      std::vector<TensorSpec> specs;
      for (const std::int64_t numel : {70001, 5, 0, 4096, 33000, 257}) {
        specs.push_back(tensor_spec(numel, store.dtype, DType::f32, store.store, format));
        if (numel == 33000) give_shape(specs.back());
      }
      const TensorSet start(optimizer.config, specs, combination);
      std::vector<TensorSet> runs(3, start);
      for (int i = 1; i <= 3; ++i) {
        octavo::StepArgs args = step_args(optimizer, i);
        args.skip_nonfinite = i == 2;
        for (std::size_t k = 0; k < runs.size(); ++k) {
          constexpr int kThreads[] = {1, 2, 5};
          args.threads = kThreads[k];
          ASSERT_TRUE(runs[k].step(args).ok());
        }
      }
      EXPECT_EQ(runs[1].difference(runs[0]), "")
          << optimizer.name << " " << octavo::name(format) << " " << store.name;
      EXPECT_EQ(runs[2].difference(runs[0]), "")
          << optimizer.name << " " << octavo::name(format) << " " << store.name;
    }
  }
}

// Workers that sit one step out and join the next: a pool that loses count of them hangs, crashes or steps
// twice.
TEST(Threads, TheNumberMayChangeAtEveryStep) {
  const OptimizerCase lion = optimizers(false)[5];
  const std::vector<TensorSpec> specs(
      12, tensor_spec(64, DType::f32, DType::f32, octavo::WeightStore::nearest, StateFormat::int8));
  TensorSet changing(lion.config, specs, 4);
  TensorSet single = changing;
  auto group = octavo::Group::create(lion.config, changing.args());
  ASSERT_TRUE(group.ok());
  const int many_steps = quick() ? 1000 : 50000;
  constexpr int kPattern[] = {2, 9, 1, 5, 12, 2, 3, 8};
  alarm(120);  // a pool that hangs ends the test here
  for (int i = 1; i <= many_steps; ++i) {
    octavo::StepArgs args = step_args(lion, i);
    args.threads = kPattern[i % 8];
    ASSERT_TRUE(group->step(args).ok());
  }
  alarm(0);
  auto reference_group = octavo::Group::create(lion.config, single.args());
  ASSERT_TRUE(reference_group.ok());
  for (int i = 1; i <= many_steps; ++i) ASSERT_TRUE(reference_group->step(step_args(lion, i)).ok());
  EXPECT_EQ(changing.difference(single), "");
}

// Groups are independent: two threads may step their own at the same time.
TEST(Threads, GroupsStepAtTheSameTime) {
  const OptimizerCase adamw = optimizers(false)[1];
  const std::vector<TensorSpec> specs(
      6, tensor_spec(5000, DType::f32, DType::bf16, octavo::WeightStore::nearest, StateFormat::int4));
  TensorSet alone(adamw.config, specs, 21);
  std::vector<TensorSet> sets(3, alone);
  const auto run = [&](TensorSet& set) {
    for (int i = 1; i <= 60; ++i) {
      octavo::StepArgs args = step_args(adamw, i);
      args.threads = 3;
      EXPECT_TRUE(set.step(args).ok());
    }
  };
  std::vector<std::thread> callers;
  callers.reserve(sets.size());
  for (TensorSet& set : sets) callers.emplace_back([&] { run(set); });
  for (std::thread& caller : callers) caller.join();
  run(alone);
  for (const TensorSet& set : sets) EXPECT_EQ(set.difference(alone), "");
}

#if defined(__x86_64__)
// A caller that flushes denormals gets the same bytes, and its mode back.
TEST(Threads, TheCallersFloatModeDoesNotMatter) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const StateFormat format : octavo::all_state_formats()) {
      const OptimizerCase adamw = optimizers(false)[1];
      const TensorSpec spec = tensor_spec(5000, DType::f32, DType::f32, octavo::WeightStore::nearest, format);
      TensorSet usual(adamw.config, {&spec, 1}, 8);
      for (std::int64_t i = 0; i < spec.numel; ++i) usual.tensors()[0].grad.as<float>()[i] *= 0x1p-122f;
      for (std::int64_t i = 0; i < spec.numel; i += 3) usual.tensors()[0].param.as<float>()[i] = 0x1p-140f;
      TensorSet flushed = usual;
      const TensorSet before = usual;
      octavo::StepArgs args = step_args(adamw, 1);
      args.hyper.lr = 0x1p-130;
      args.threads = 2;
      ASSERT_TRUE(usual.step(args).ok());
      auto group = octavo::Group::create(adamw.config, flushed.args());
      ASSERT_TRUE(group.ok());
      constexpr unsigned kFlush = 0x8040;  // flush to zero, denormals are zero
      const unsigned mode = _mm_getcsr();
      _mm_setcsr(mode | kFlush);
      const bool stepped = group->step(args).ok();
      const unsigned left = _mm_getcsr();
      _mm_setcsr(mode);
      ASSERT_TRUE(stepped);
      EXPECT_EQ(left & kFlush, kFlush);
      EXPECT_EQ(flushed.difference(usual), "") << implementation << " " << octavo::name(format);
      EXPECT_NE(usual.difference(before), "");
    }
  }
}
#endif

// States, weights and the step count are all there is: a copy of the bytes continues as the original does.
TEST(Resume, FromACopyOfTheBytes) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    std::vector<TensorSpec> specs;
    for (const StateFormat format : octavo::all_state_formats()) {
      specs.push_back(tensor_spec(999, DType::bf16, DType::f32, octavo::WeightStore::stochastic, format));
      give_shape(specs.back());
    }
    TensorSet whole(optimizer.config, specs, 31);
    auto group = octavo::Group::create(optimizer.config, whole.args());
    ASSERT_TRUE(group.ok());
    std::vector<double> workspace(static_cast<std::size_t>(group->workspace_bytes() / 8 + 2));
    const auto run = [&](TensorSet& set, int first, int last) {
      for (int i = first; i <= last; ++i) {
        set.fill_grads(static_cast<std::uint64_t>(i));
        octavo::StepArgs args = step_args(optimizer, i);
        args.workspace = std::as_writable_bytes(std::span(workspace));
        ASSERT_TRUE(group->step(args).ok());
      }
    };
    run(whole, 1, 5);
    TensorSet resumed = whole;
    run(whole, 6, 10);
    ASSERT_TRUE(group->rebind(resumed.args()).ok());
    run(resumed, 6, 10);
    EXPECT_EQ(resumed.difference(whole), "") << optimizer.name;
  }
}

TEST(Threads, ManyTensorsEqualOneByOne) {
  const OptimizerCase adamw = optimizers(false)[1];
  std::vector<TensorSpec> specs;
  for (std::int64_t numel = 1; numel < 200; ++numel) {
    specs.push_back(
        tensor_spec(numel * 3, DType::bf16, DType::f32, octavo::WeightStore::stochastic, StateFormat::int8));
  }
  TensorSet together(adamw.config, specs, 9);
  TensorSet apart = together;
  octavo::StepArgs args = step_args(adamw, 1);
  args.threads = 2;
  ASSERT_TRUE(together.step(args).ok());
  for (const octavo::TensorArgs& tensor : apart.args())
    ASSERT_TRUE(step(adamw.config, {&tensor, 1}, args).ok());
  EXPECT_EQ(together.difference(apart), "");
}

}  // namespace
}  // namespace test
