// States that pass through a device in batches: the same bits as a step on the whole tensors, whatever the
// sizes, at whatever times the queues work. The device is threads, with random delays.
// SPDX-License-Identifier: MIT
#include "tests/offload/streamed.h"

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

TEST(StreamedStep, EveryFormatStoreAndGradientHasTheBitsOfTheWholeStep) {
  ThreadTarget target;
  const Delays delays("5:10");
  const OptimizerCase adamw = optimizers(false)[2];  // with amsgrad: three moments
  std::size_t turn = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      for (const DType grad : octavo::all_dtypes()) {
        const auto kind = static_cast<Streamed::Kind>(turn++ % 4);
        ASSERT_EQ(streamed_difference(target, adamw, streamed_specs(format, store, grad), kind), "")
            << octavo::name(format) << ", " << store.name << ", " << octavo::name(grad) << ", "
            << static_cast<int>(kind);
      }
    }
  }
}

TEST(StreamedStep, EveryRuleWithEveryFormat) {
  ThreadTarget target;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      ASSERT_EQ(streamed_difference(
                    target, optimizer,
                    streamed_specs(format, {"bf16", DType::bf16, WeightStore::stochastic}, DType::bf16),
                    Streamed::Kind::slab),
                "")
          << optimizer.name << ", " << octavo::name(format);
    }
  }
}

TEST(StreamedStep, DelaysOfAnySeedChangeNothing) {
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  for (int seed = 0; seed < 12; ++seed) {
    const Delays delays(std::to_string(seed) + ":300");
    const auto kind = static_cast<Streamed::Kind>(seed % 4);
    ASSERT_EQ(
        streamed_difference(target, adamw, streamed_specs(StateFormat::int8, stores()[0], DType::f32), kind),
        "")
        << seed;
  }
}

// So many that later ones are posted and wait for room on the queues.
TEST(StreamedStep, MoreBatchesThanTheQueuesTake) {
  ThreadTarget target;
  const Delays delays("7:50");
  const OptimizerCase adamw = optimizers(false)[2];
  constexpr octavo::offload::StreamSizes kSizes{1200, 12000};
  for (const auto kind : {Streamed::Kind::apart, Streamed::Kind::held}) {
    const std::vector<TensorSpec> list = streamed_specs(StateFormat::fp32, stores()[0], DType::f32);
    std::int64_t bytes = 0;
    for (const TensorSpec& spec : list) bytes += 12 * spec.numel;
    ASSERT_GT(bytes / kSizes.batch, std::int64_t{2 * octavo::offload::Staging::kMaxEnqueued});
    EXPECT_EQ(streamed_difference(target, adamw, list, kind, kSizes), "");
  }
}

// Batches that were posted behind an error are never queued, and nobody is told that they were.
TEST(StreamedStep, ErrorsOfQueuesReachAllThatIsBehindThem) {
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set(adamw.config, streamed_specs(StateFormat::fp32, stores()[0], DType::f32), 3);
  Streamed got(target, set, {3000, 12000}, Streamed::Kind::apart);
  ASSERT_TRUE(got.step(step_args(adamw, 1)).ok());
  ASSERT_TRUE(got.wait_weight(0).ok());
  got.wait();
  (void)got.queues().work().run([](void*) { return Status::failed("on purpose"); }, "step");
  // The step may be queued before the error is known.
  const auto some = got.step_some({4, 1}, step_args(adamw, 2));
  const auto whole = got.step(step_args(adamw, 2));
  EXPECT_TRUE(some.ok() || some.status().message() == "on purpose");
  EXPECT_EQ(whole.ok() ? got.wait_weight(5).message() : whole.status().message(), "on purpose");
  EXPECT_EQ(got.step_some({4}, step_args(adamw, 3)).status().message(), "on purpose");
}

TEST(StreamedStep, DefaultSizesTakeSmallTensorsInOneBatch) {
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  ASSERT_EQ(streamed_difference(target, adamw, streamed_specs(StateFormat::int4, stores()[0], DType::f32),
                                Streamed::Kind::slab, {}),
            "");
}

// What lies between two states is not written, although they are copied by way of the device.
TEST(StreamedStep, BytesBesideStatesStay) {
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
  Streamed got(target, set, kSmallSizes, Streamed::Kind::slab_with_gaps);
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
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  const Delays delays("9:200");
  TensorSet expected(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
  std::int64_t first = 6;
  std::int64_t second = 6;
  std::int64_t* const others[] = {&second};
  Streamed got(target, expected, kSmallSizes, Streamed::Kind::apart, others);
  std::int64_t count = 6;
  for (int i = 0; i < 3; ++i) {
    float lr = 0.01F;
    float loss_scale = 4.0F;
    float found_inf = i == 1 ? 1.0F : 0.0F;
    octavo::GradNorm norm{9.0, 1.0F, 0};
    octavo::StepReport report{};
    octavo::StepArgs args = step_args(adamw, 0);
    args.scalars = {&lr, &count, &loss_scale, &found_inf, &norm, nullptr};
    args.clip_grad_norm = 1.0;
    args.skip_nonfinite = true;
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
  ThreadTarget target;
  for (int seed = 0; seed < 12; ++seed) {
    const Delays delays(200, 20 + seed);
    ASSERT_EQ(shared_difference(target, Streamed::Kind::apart, seed), "") << seed;
  }
}

TEST(StreamedStep, GradientsAndWeightsAreFreeAsPromised) {
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  for (const auto kind : {Streamed::Kind::apart, Streamed::Kind::held}) {
    const Delays delays("31:500");
    TensorSet expected(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
    Streamed got(target, expected, kSmallSizes, kind);
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
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
  // Memory for a part of them: the others wait for what does not go down.
  Streamed got(target, set, kTightSizes, Streamed::Kind::apart, {}, {5, 4, 3, 2, 1, 0});
  got.hold_down();
  ASSERT_TRUE(got.step(step_args(adamw, 1)).ok());
  for (int i = 0; i < 5000 && !got.weight_is_ready(5); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(got.weight_is_ready(5));
  EXPECT_FALSE(got.weight_is_ready(0));
  got.let_go();
  EXPECT_TRUE(got.wait_weight(0).ok());
}

// Of a step of one batch there may be two under way; gradients need room where they are held.
TEST(StreamedStep, StagingMemoryIsForWhatIsHeldThere) {
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  const std::vector<TensorSpec> list = {
      tensor_spec(1 << 20, DType::bf16, DType::bf16, WeightStore::nearest, StateFormat::int8)};
  TensorSet set(adamw.config, list, 3);
  Streamed got(target, set, {}, Streamed::Kind::apart);
  const std::int64_t without = got.whole().staging_bytes(false);
  const std::int64_t with = got.whole().staging_bytes(true);
  EXPECT_GT(without, 2 * 2 * (1 << 20));
  EXPECT_LT(without, 5 * (1 << 20));
  EXPECT_GT(with, 2 * 4 * (1 << 20));
  EXPECT_LT(with, 9 * (1 << 20));
}

TEST(StreamedStep, SaysWhatItCannotDo) {
  ThreadTarget target;
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set(adamw.config, streamed_specs(StateFormat::int8, stores()[0], DType::f32), 3);
  Streamed got(target, set, kSmallSizes, Streamed::Kind::apart);
  octavo::StepArgs args = step_args(adamw, 1);
  args.skip_nonfinite = true;
  EXPECT_THAT(got.step(args).status().message(), HasSubstr("scalars.norm: got null"));
  args.skip_nonfinite = false;
  args.sums.add = [](void*, double*, std::int64_t, void*) {};
  EXPECT_THAT(got.step(args).status().message(), HasSubstr("cannot be streamed"));
  args.sums = {};
  got.shrink_staging();
  EXPECT_THAT(got.step(args).status().message(), HasSubstr("staging: got 4096 bytes, expected "));
}

}  // namespace
}  // namespace test
