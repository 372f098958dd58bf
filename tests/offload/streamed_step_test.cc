// States that pass through a device in batches: the same bits as a step on the whole tensors, whatever the
// sizes, at whatever times the queues work. The device is threads, with random delays.
// SPDX-License-Identifier: MIT
#include "offload/streamed.h"

#include <octavo/grad_norm.h>

#include <gmock/gmock.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::Status;
using octavo::TensorSpec;
using octavo::WeightStore;
using testing::HasSubstr;

class Delayed {
 public:
  explicit Delayed(const char* delays) { setenv("OCTAVO_OFFLOAD_DELAYS", delays, 1); }
  ~Delayed() { unsetenv("OCTAVO_OFFLOAD_DELAYS"); }
  Delayed(const Delayed&) = delete;
  Delayed& operator=(const Delayed&) = delete;
};

// From nothing to several pieces; with two dimensions where the format looks at them.
std::vector<TensorSpec> specs(StateFormat format, const StoreCase& store, DType grad) {
  std::vector<TensorSpec> list;
  for (const std::int64_t numel : {1, 9001, 0, 257, 20480, 4096}) {
    const std::int64_t block = has_blocks(format) && numel == 20480 ? 4096 : 0;
    list.push_back(tensor_spec(numel, store.dtype, grad, store.store, format, block));
    if (numel == 257 || numel == 4096) give_shape(list.back());
  }
  return list;
}

// Small enough that the largest tensors are cut, and that batches wait for one another.
constexpr octavo::offload::StreamSizes kSmall{40000, 100000};

// Three steps, of which none waits for the one before.
std::string compare(const OptimizerCase& optimizer, const std::vector<TensorSpec>& list, Streamed::Kind kind,
                    octavo::offload::StreamSizes sizes = kSmall) {
  TensorSet expected(optimizer.config, list, 11);
  Streamed got(expected, sizes, kind);
  for (std::int64_t step = 1; step <= 3; ++step) {
    octavo::StepArgs args = step_args(optimizer, step);
    args.threads = 1;
    got.fill_grads(70 + static_cast<std::uint64_t>(step));
    expected.fill_grads(70 + static_cast<std::uint64_t>(step));
    auto report = expected.step(args);
    if (report.ok()) report = got.step(args);
    if (!report.ok()) return report.status().message();
  }
  return got.difference(expected);
}

TEST(StreamedStep, EveryFormatStoreAndGradientHasTheBitsOfTheWholeStep) {
  const Delayed delays("5:10");
  const OptimizerCase adamw = optimizers(false)[2];  // with amsgrad: three moments
  std::size_t turn = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      for (const DType grad : octavo::all_dtypes()) {
        const auto kind = static_cast<Streamed::Kind>(turn++ % 4);
        ASSERT_EQ(compare(adamw, specs(format, store, grad), kind), "")
            << octavo::name(format) << ", " << store.name << ", " << octavo::name(grad) << ", "
            << static_cast<int>(kind);
      }
    }
  }
}

TEST(StreamedStep, EveryRuleWithEveryFormat) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      ASSERT_EQ(compare(optimizer, specs(format, {"bf16", DType::bf16, WeightStore::stochastic}, DType::bf16),
                        Streamed::Kind::slab),
                "")
          << optimizer.name << ", " << octavo::name(format);
    }
  }
}

TEST(StreamedStep, DelaysOfAnySeedChangeNothing) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (int seed = 0; seed < 12; ++seed) {
    const Delayed delays((std::to_string(seed) + ":300").c_str());
    const auto kind = static_cast<Streamed::Kind>(seed % 4);
    ASSERT_EQ(compare(adamw, specs(StateFormat::int8, stores()[0], DType::f32), kind), "") << seed;
  }
}

TEST(StreamedStep, DefaultSizesTakeSmallTensorsInOneBatch) {
  const OptimizerCase adamw = optimizers(false)[1];
  ASSERT_EQ(compare(adamw, specs(StateFormat::int4, stores()[0], DType::f32), Streamed::Kind::slab, {}), "");
}

// What lies between two states is not written, although they are copied by way of the device.
TEST(StreamedStep, BytesBesideStatesStay) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set(adamw.config, specs(StateFormat::int8, stores()[0], DType::f32), 3);
  Streamed got(set, kSmall, Streamed::Kind::slab_with_gaps);
  octavo::StepArgs args = step_args(adamw, 1);
  for (std::int64_t step = 1; step <= 3; ++step) {
    args.step = step;
    got.write_gaps(static_cast<std::byte>(step));  // by the host, while the step is under way
    ASSERT_TRUE(got.step(args).ok());
    got.write_gaps(static_cast<std::byte>(step + 100));
    got.wait();
    EXPECT_TRUE(got.gaps_are(static_cast<std::byte>(step + 100)));
  }
}

TEST(StreamedStep, ScalarsAreReadBeforeStepReturns) {
  const OptimizerCase adamw = optimizers(false)[1];
  const Delayed delays("9:200");
  TensorSet expected(adamw.config, specs(StateFormat::int8, stores()[0], DType::f32), 3);
  std::int64_t first = 6;
  std::int64_t second = 6;
  std::int64_t* const others[] = {&second};
  Streamed got(expected, kSmall, Streamed::Kind::apart, others);
  std::int64_t count = 6;
  for (int i = 0; i < 3; ++i) {
    float lr = 0.01F;
    float loss_scale = 4.0F;
    float found_inf = i == 1 ? 1.0F : 0.0F;
    octavo::GradNorm norm{9.0, 1.0F, 0};
    octavo::StepReport report{};
    octavo::StepArgs args = step_args(adamw, 0);
    args.scalars = {&lr, &count, &loss_scale, &found_inf, &norm, nullptr};
    args.max_norm = 1.0;
    args.guard = true;
    ASSERT_TRUE(expected.step(args).ok());
    args.scalars.step = &first;
    args.scalars.report = &report;
    const auto said = got.step(args);
    ASSERT_TRUE(said.ok()) << said.status().message();
    EXPECT_EQ(said->skipped, i == 1);
    EXPECT_EQ(report.skipped, i == 1);
    EXPECT_FALSE(said->pending);
    EXPECT_EQ(first, count);
    EXPECT_EQ(second, count);
    lr = loss_scale = found_inf = 77.0F;
    norm = {1e9, 0.0F, 5};
  }
  EXPECT_EQ(count, 8);
  EXPECT_EQ(got.difference(expected), "");
}

// Steps of some tensors, and then of others with some of the same, through one memory and without a wait.
TEST(StreamedStep, StepsShareMemoryAndStates) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (int seed = 0; seed < 12; ++seed) {
    const Delayed delays((std::to_string(20 + seed) + ":200").c_str());
    // Of the latter, steps on the CPU keep something in staging memory besides states.
    const StateFormat format = seed % 2 == 0 ? StateFormat::int8 : StateFormat::int4_rank1;
    std::vector<TensorSpec> list = specs(format, stores()[0], DType::f32);
    for (TensorSpec& spec : list) give_shape(spec);
    TensorSet expected(adamw.config, list, 3);
    Streamed got(expected, {40000, 30000}, Streamed::Kind::apart);
    for (std::int64_t step = 1; step <= 4; ++step) {
      octavo::StepArgs args = step_args(adamw, step);
      ASSERT_TRUE(expected.step(args).ok());
      const std::vector<std::vector<std::size_t>> ways[] = {
          {{0, 1}, {2, 3, 4, 5}}, {{5, 4, 3}, {2, 1, 0}}, {{0}, {1}, {2}, {3}, {4}, {5}}};
      for (const auto& part : ways[static_cast<std::size_t>(step) % 3]) {
        const auto report = got.step_some(part, args);
        ASSERT_TRUE(report.ok()) << report.status().message();
      }
    }
    ASSERT_EQ(got.difference(expected), "") << seed;
  }
}

TEST(StreamedStep, GradientsAndWeightsAreFreeAsPromised) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (const auto kind : {Streamed::Kind::apart, Streamed::Kind::held}) {
    const Delayed delays("31:500");
    TensorSet expected(adamw.config, specs(StateFormat::int8, stores()[0], DType::f32), 3);
    Streamed got(expected, kSmall, kind);
    octavo::StepArgs args = step_args(adamw, 1);
    ASSERT_TRUE(expected.step(args).ok());
    ASSERT_TRUE(got.step(args).ok());
    for (std::size_t i = 0; i < expected.tensors().size(); ++i) {
      got.overwrite_gradient(i);  // when its promise says so
      const std::string difference = got.weight_difference(i, expected);
      EXPECT_EQ(difference, "") << i;
    }
    EXPECT_EQ(got.difference(expected), "");
  }
}

TEST(StreamedStep, TensorsAreUpdatedInTheirOrder) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set(adamw.config, specs(StateFormat::int8, stores()[0], DType::f32), 3);
  // Memory for a part of them: the others wait for what does not go down.
  Streamed got(set, {40000, 30000}, Streamed::Kind::apart, {}, {5, 4, 3, 2, 1, 0});
  got.hold_down();
  ASSERT_TRUE(got.step(step_args(adamw, 1)).ok());
  for (int i = 0; i < 5000 && !got.weight_is_ready(5); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(got.weight_is_ready(5));
  EXPECT_FALSE(got.weight_is_ready(0));
  got.let_go();
  EXPECT_TRUE(got.wait_weight(0).ok());
}

TEST(StreamedStep, SaysWhatItCannotDo) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set(adamw.config, specs(StateFormat::int8, stores()[0], DType::f32), 3);
  Streamed got(set, kSmall, Streamed::Kind::apart);
  octavo::StepArgs args = step_args(adamw, 1);
  args.guard = true;
  EXPECT_THAT(got.step(args).status().message(), HasSubstr("scalars.norm: got null"));
  args.guard = false;
  args.sums.add = [](void*, double*, std::int64_t, void*) {};
  EXPECT_THAT(got.step(args).status().message(), HasSubstr("cannot be streamed"));
  args.sums = {};
  got.shrink_staging();
  EXPECT_THAT(got.step(args).status().message(), HasSubstr("staging: got 4096 bytes, expected "));
}

}  // namespace
}  // namespace test
