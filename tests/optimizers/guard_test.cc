// The non-finite guard: one bad gradient leaves every byte of every tensor as it was and is counted; without
// it, or with good gradients, the step is the usual one. And the gradient factor.
// SPDX-License-Identifier: MIT
#include "tests/reference/formats.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <cmath>
#include <limits>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

TensorSet mixed_set(const OptimizerCase& optimizer, StateFormat format) {
  const std::vector<TensorSpec> specs = {
      tensor_spec(1000, DType::f32, DType::f32, octavo::WeightStore::nearest, format),
      tensor_spec(70000, DType::bf16, DType::f32, octavo::WeightStore::residual8, format),
      tensor_spec(333, DType::bf16, DType::f32, octavo::WeightStore::stochastic, format)};
  return {optimizer.config, specs, 77};
}

octavo::StepArgs guarded(const OptimizerCase& optimizer, int threads) {
  octavo::StepArgs args = step_args(optimizer, 1);
  args.skip_nonfinite = true;
  args.threads = threads;
  return args;
}

TEST(Guard, ABadGradientChangesNoByte) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const OptimizerCase& optimizer : optimizers(false)) {
      for (const StateFormat format : octavo::all_state_formats()) {
        TensorSet set = mixed_set(optimizer, format);
        ASSERT_TRUE(set.step(step_args(optimizer, 1)).ok());
        const TensorSet before = set;
        set.tensors()[1].grad.as<float>()[69999] = NAN;
        set.tensors()[2].grad.as<float>()[0] = -INFINITY;
        set.tensors()[2].grad.as<float>()[332] = 2e19f;  // finite, its square is not
        const auto report = set.step(guarded(optimizer, 2));
        ASSERT_TRUE(report.ok()) << report.status().message();
        EXPECT_TRUE(report->skipped);
        EXPECT_EQ(report->nonfinite, 3);
        EXPECT_EQ(set.difference(before), "")
            << implementation << " " << optimizer.name << " " << octavo::name(format);
      }
    }
  }
}

TEST(Guard, GoodGradientsStepAsWithoutIt) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    TensorSet with = mixed_set(optimizer, StateFormat::int8);
    TensorSet without = with;
    const auto report = with.step(guarded(optimizer, 2));
    ASSERT_TRUE(report.ok());
    EXPECT_FALSE(report->skipped);
    EXPECT_EQ(report->nonfinite, 0);
    ASSERT_TRUE(without.step(step_args(optimizer, 1)).ok());
    EXPECT_EQ(with.difference(without), "");
  }
}

TEST(Guard, EveryPositionOfASmallTensorIsSeen) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const DType grad : octavo::all_dtypes()) {
      const TensorSpec spec =
          tensor_spec(77, DType::f32, grad, octavo::WeightStore::nearest, StateFormat::fp32);
      for (std::int64_t i = 0; i < spec.numel; ++i) {
        TensorSet set(adamw.config, {&spec, 1}, 5);
        reference::store_nearest(grad, set.tensors()[0].grad.data(), i, i % 2 == 0 ? NAN : INFINITY);
        const auto report = set.step(guarded(adamw, 1));
        ASSERT_TRUE(report.ok() && report->skipped && report->nonfinite == 1) << implementation << " " << i;
      }
    }
  }
}

TEST(Guard, OffReportsNothingAndSteps) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set = mixed_set(adamw, StateFormat::fp32);
  const TensorSet before = set;
  set.tensors()[0].grad.as<float>()[3] = NAN;
  const auto report = set.step(step_args(adamw, 1));
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->skipped);
  EXPECT_EQ(report->nonfinite, 0);
  EXPECT_NE(set.difference(before), "");
  EXPECT_EQ(reference::bits_of(set.tensors()[0].param.as<float>()[3]), reference::kNanBits);
}

TEST(GradFactor, EqualsScaledGradients) {
  for (const OptimizerCase& optimizer : optimizers(true)) {
    TensorSet scaled = mixed_set(optimizer, StateFormat::int4);
    TensorSet factored = scaled;
    for (TensorBuffers& t : scaled.tensors()) {
      for (std::int64_t i = 0; i < t.spec.numel; ++i) t.grad.as<float>()[i] *= 0.3f;
    }
    octavo::StepArgs args = step_args(optimizer, 1);
    ASSERT_TRUE(scaled.step(args).ok());
    args.grad_factor = 0.3;
    ASSERT_TRUE(factored.step(args).ok());
    EXPECT_EQ(factored.difference(scaled), "") << optimizer.name;
  }
}

}  // namespace
}  // namespace test
