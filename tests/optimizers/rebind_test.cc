// New gradients for a group: the step of a group that had them from the start, or on error the old ones.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <cmath>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;
using octavo::WeightStore;

TensorSet mixed_set(const OptimizerCase& optimizer, StateFormat format) {
  std::vector<TensorSpec> specs = {
      tensor_spec(64 * 30, DType::f32, DType::f32, WeightStore::nearest, format),
      tensor_spec(0, DType::f32, DType::f32, WeightStore::nearest, format),
      tensor_spec(777, DType::bf16, DType::f16, WeightStore::residual16, format)};
  give_shape(specs[0]);
  return {optimizer.config, specs, 7};
}

struct Bound {
  octavo::Group group;
  Buffer workspace;

  explicit Bound(const TensorSet& set)
      : group(octavo::Group::create(set.config(), set.args()).value()), workspace(group.workspace_bytes()) {}

  octavo::Result<octavo::StepReport> step(octavo::StepArgs args) {
    args.workspace = {workspace.data(), static_cast<std::size_t>(workspace.size())};
    return group.step(args);
  }
};

std::vector<const void*> grads_of(const TensorSet& set) {
  std::vector<const void*> grads;
  for (const TensorBuffers& t : set.tensors()) grads.push_back(t.grad.data());
  return grads;
}

TEST(RebindGrads, StepsWithTheNewGradients) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      SCOPED_TRACE(std::string(optimizer.name) + " " + std::string(octavo::name(format)));
      const TensorSet set = mixed_set(optimizer, format);
      TensorSet expected = set;
      TensorSet other = set;
      Bound bound(set);
      for (std::int64_t step = 1; step <= 3; ++step) {
        TensorSet old = expected;
        expected.fill_grads(static_cast<std::uint64_t>(step));
        other.fill_grads(static_cast<std::uint64_t>(step));
        std::vector<const void*> grads = grads_of(other);
        grads[1] = nullptr;  // of the tensor without elements
        ASSERT_TRUE(bound.group.rebind_grads(grads).ok());
        ASSERT_TRUE(bound.step(step_args(optimizer, step)).ok());
        ASSERT_TRUE(expected.step(step_args(optimizer, step)).ok());
        ASSERT_EQ(set.difference(expected), "");
        ASSERT_TRUE(old.step(step_args(optimizer, step)).ok());
        ASSERT_NE(set.difference(old), "") << "the old gradients would do as well";
      }
    }
  }
}

TEST(RebindGrads, TheGuardReadsTheNewGradients) {
  const OptimizerCase adamw = optimizers(false)[1];
  const TensorSet set = mixed_set(adamw, StateFormat::int8);
  TensorSet bad = set;
  bad.tensors()[0].grad.as<float>()[3] = INFINITY;
  Bound bound(set);
  octavo::StepArgs args = step_args(adamw, 1);
  args.skip_nonfinite = true;
  ASSERT_TRUE(bound.group.rebind_grads(grads_of(bad)).ok());
  EXPECT_EQ(bound.step(args).value().nonfinite, 1);
  ASSERT_TRUE(bound.group.rebind_grads(grads_of(set)).ok());
  EXPECT_FALSE(bound.step(args).value().skipped);
}

TEST(RebindGrads, OnErrorTheOldGradientsStay) {
  const OptimizerCase adamw = optimizers(false)[1];
  const TensorSet set = mixed_set(adamw, StateFormat::int8);
  TensorSet expected = set;
  TensorSet other = set;
  other.fill_grads(99);
  Bound bound(set);
  std::vector<const void*> grads = grads_of(other);
  grads[2] = nullptr;  // the last one: those before it must not be used either
  EXPECT_FALSE(bound.group.rebind_grads(grads).ok());
  ASSERT_TRUE(bound.step(step_args(adamw, 1)).ok());
  ASSERT_TRUE(expected.step(step_args(adamw, 1)).ok());
  EXPECT_EQ(set.difference(expected), "");
}

}  // namespace
}  // namespace test
