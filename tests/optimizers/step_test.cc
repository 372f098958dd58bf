// Every optimizer and option x state format x weight store x gradient type: three steps of the library equal
// three steps of the reference in bytes, on every implementation.
// SPDX-License-Identifier: MIT
#include "tests/reference/step.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/moment.h"
#include "tests/support/random.h"

#include <octavo/describe.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

// Small tensors around the blocks; with two or more dimensions where the format looks at them.
std::vector<TensorSpec> specs(StateFormat format, const StoreCase& store, DType grad) {
  std::vector<TensorSpec> list;
  for (const std::int64_t numel : {1, 31, 0, 257, 448}) {
    const std::int64_t block = has_blocks(format) && numel == 448 ? 32 : 0;
    TensorSpec spec = tensor_spec(numel, store.dtype, grad, store.store, format, block);
    if (numel > 31) give_shape(spec);
    list.push_back(spec);
  }
  return list;
}

void fill_states(TensorSet& set, std::uint64_t seed) {
  for (TensorBuffers& t : set.tensors()) {
    for (int slot = 0; slot < t.layout.slots; ++slot) {
      const octavo::MomentSpec spec = reference::slot_spec(set.config(), t.spec, slot);
      auto values = spread_values(t.spec.numel, seed + static_cast<std::uint64_t>(slot), 6);
      if (spec.moment == octavo::Moment::second) make_second_moment(values);
      const reference::Encoded encoded = reference::encode(spec, values);
      const auto index = static_cast<std::size_t>(slot);
      if (!encoded.codes.empty())
        std::memcpy(t.codes[index].data(), encoded.codes.data(), encoded.codes.size());
      if (!encoded.scales.empty()) {
        std::memcpy(t.scales[index].data(), encoded.scales.data(), 4 * encoded.scales.size());
      }
    }
  }
}

struct Scenario {
  std::int64_t first_step = 1;
  bool special = false;        // NaN, infinities and other special values among the gradients
  bool stored_states = false;  // states that are not the initial zeros
  double grad_factor = 1.0;
};

std::string compare(const OptimizerCase& optimizer, StateFormat format, const StoreCase& store, DType grad,
                    const Scenario& run) {
  TensorSet expected(optimizer.config, specs(format, store, grad), 100 + static_cast<std::uint64_t>(format));
  if (run.stored_states) fill_states(expected, 7);
  const std::vector<std::string> implementations = supported_implementations();
  std::vector<TensorSet> got(implementations.size(), expected);
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto seed = 500 + static_cast<std::uint64_t>(i);
    octavo::StepArgs args = step_args(optimizer, run.first_step + i);
    args.grad_factor = run.grad_factor;
    expected.fill_grads(seed, run.special && i == 1);
    reference::step(expected.config(), expected.args(), args);
    for (std::size_t k = 0; k < got.size(); ++k) {
      const ForcedImplementation forced(implementations[k]);
      got[k].fill_grads(seed, run.special && i == 1);
      const auto report = got[k].step(args);
      if (!report.ok()) return report.status().message();
      const std::string difference = got[k].difference(expected);
      if (!difference.empty()) {
        return implementations[k] + ", " + optimizer.name + ", " + std::string(octavo::name(format)) + ", " +
               store.name + ", grad " + std::string(octavo::name(grad)) + ", step " +
               std::to_string(args.step) + ": " + difference;
      }
    }
  }
  return "";
}

class Step : public testing::TestWithParam<OptimizerCase> {};

TEST_P(Step, EqualsReference) {
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      for (const DType grad : octavo::all_dtypes()) {
        ASSERT_EQ(compare(GetParam(), format, store, grad, {}), "");
      }
    }
  }
}

TEST_P(Step, EqualsReferenceFromStoredStatesWithFactor) {
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      Scenario run;
      run.first_step = 123456;
      run.stored_states = true;
      run.grad_factor = 0.37;
      ASSERT_EQ(compare(GetParam(), format, store, DType::bf16, run), "");
      run.first_step = 1;  // sgd forgets its state at step 1
      ASSERT_EQ(compare(GetParam(), format, store, DType::f32, run), "");
    }
  }
}

TEST_P(Step, EqualsReferenceWithSpecialGradients) {
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      for (const DType grad : {DType::f32, DType::f16}) {
        Scenario run;
        run.special = true;
        ASSERT_EQ(compare(GetParam(), format, store, grad, run), "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Step, testing::ValuesIn(optimizers(true)), test_name);

// Powers of beta by square and multiply: late steps, and betas that never decay.
TEST(StepCount, LateStepsAndExtremeBetas) {
  OptimizerCase adamw = optimizers(false)[1];
  for (const double beta : {0.0, 0.5, 0.9, 0.999999}) {
    adamw.hyper.beta1 = beta;
    adamw.hyper.beta2 = beta;
    for (const std::int64_t step :
         {std::int64_t{1}, std::int64_t{2}, std::int64_t{1000003}, std::int64_t{1} << 40}) {
      Scenario run;
      run.first_step = step;
      ASSERT_EQ(compare(adamw, StateFormat::fp32, stores()[0], DType::f32, run), "") << beta << " " << step;
    }
  }
}

// Rules that measure a whole tensor first: several tiles and several threads' runs, whose sums are a tree.
TEST(Measured, LargeTensorsEqualTheReference) {
  for (const OptimizerCase& optimizer : optimizers(true)) {
    if (octavo::passes(optimizer.config.algorithm, optimizer.config.switches) < 2) continue;
    for (const StateFormat format : {StateFormat::fp32, StateFormat::int8, StateFormat::int4_rank1}) {
      std::vector<TensorSpec> list;
      for (const std::int64_t numel : {512, 513, 5000, 32768, 70001}) {
        const std::int64_t block = format == StateFormat::int8 && numel == 5000 ? 4096 : 0;
        list.push_back(
            tensor_spec(numel, DType::bf16, DType::bf16, octavo::WeightStore::residual16, format, block));
        give_shape(list.back());
      }
      TensorSet expected(optimizer.config, list, 11);
      TensorSet got = expected;
      TensorSet alone = expected;
      for (std::int64_t i = 1; i <= 2; ++i) {
        octavo::StepArgs args = step_args(optimizer, i);
        for (TensorSet* set : {&expected, &got, &alone}) set->fill_grads(70 + static_cast<std::uint64_t>(i));
        reference::step(expected.config(), expected.args(), args);
        args.threads = 3;
        ASSERT_TRUE(got.step(args).ok());
        args.threads = 1;
        ASSERT_TRUE(alone.step(args).ok());
      }
      EXPECT_EQ(got.difference(expected), "") << optimizer.name << " " << octavo::name(format);
      EXPECT_EQ(alone.difference(expected), "") << optimizer.name << " " << octavo::name(format);
    }
  }
}

// Axis scales: rows of less and of more than a tile or a run, axes that are folded, axes of length one, and
// tensors whose maxima several threads gather in parts.
TEST(Axes, EveryShapeEqualsTheReference) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {130, 700},  {2, 33000}, {33000, 2}, {64, 33}, {1024, 1, 9}, {48, 16, 3, 3},          {96, 50, 1},
      {1, 1, 300}, {1, 77},    {77, 1},    {1, 1},   {5, 4, 900},  {2, 1, 3, 1, 2, 1, 3, 5}};
  const std::vector<StoreCase> all = stores();
  const std::vector<std::string> implementations = supported_implementations();
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    const std::string& implementation = implementations[combination % implementations.size()];
    const ForcedImplementation forced(implementation);
    const StoreCase& store = all[combination % all.size()];
    const DType grad = octavo::all_dtypes()[combination++ % octavo::all_dtypes().size()];
    std::vector<TensorSpec> list;
    for (const std::vector<std::int64_t>& shape : shapes) {
      std::int64_t numel = 1;
      for (const std::int64_t size : shape) numel *= size;
      list.push_back(tensor_spec(numel, store.dtype, grad, store.store, StateFormat::int4_rank1));
      list.back().ndim = static_cast<int>(shape.size());
      std::copy(shape.begin(), shape.end(), list.back().shape.begin());
    }
    TensorSet expected(optimizer.config, list, combination);
    TensorSet got = expected;
    TensorSet alone = expected;
    for (std::int64_t i = 1; i <= 2; ++i) {
      octavo::StepArgs args = step_args(optimizer, i);
      for (TensorSet* set : {&expected, &got, &alone})
        set->fill_grads(70 + static_cast<std::uint64_t>(i), i == 2);
      reference::step(expected.config(), expected.args(), args);
      args.threads = 3;
      ASSERT_TRUE(got.step(args).ok());
      args.threads = 1;
      ASSERT_TRUE(alone.step(args).ok());
      ASSERT_EQ(got.difference(expected), "") << optimizer.name << ", " << implementation << ", step " << i;
      ASSERT_EQ(alone.difference(got), "") << optimizer.name << ", " << implementation << ", step " << i;
    }
  }
}

// Two ranks hold a half each; a hook adds what the other has measured. Then their halves are those of the
// whole.
TEST(Measured, ShardsEqualTheWholeWithAHook) {
  constexpr std::int64_t kHalf = 32768;
  struct Ranks {
    double sums[2][2];  // of each half
    std::size_t rank;
    bool adds;
  };
  const auto add = [](void* context, double* sums, std::int64_t count, void* /*stream*/) {
    auto& ranks = *static_cast<Ranks*>(context);
    ASSERT_EQ(count, 2);
    for (std::size_t i = 0; i < 2; ++i) {
      if (!ranks.adds) ranks.sums[ranks.rank][i] = sums[i];
      if (ranks.adds) sums[i] = ranks.sums[0][i] + ranks.sums[1][i];
    }
  };
  for (const OptimizerCase& optimizer : optimizers(true)) {
    if (octavo::passes(optimizer.config.algorithm, optimizer.config.switches) < 2) continue;
    const auto spec = [](std::int64_t numel) {
      return tensor_spec(numel, DType::f32, DType::f32, octavo::WeightStore::nearest, StateFormat::int8);
    };
    const TensorSpec whole_spec = spec(2 * kHalf);
    const TensorSpec half_spec = spec(kHalf);
    TensorSet whole(optimizer.config, {&whole_spec, 1}, 5);
    whole.fill_grads(9);
    std::vector<TensorSet> halves(2, TensorSet(optimizer.config, {&half_spec, 1}, 5));
    const auto bytes = static_cast<std::size_t>(4 * kHalf);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      TensorBuffers& to = halves[rank].tensors()[0];
      std::memcpy(to.param.data(), whole.tensors()[0].param.data() + rank * bytes, bytes);
      std::memcpy(to.grad.data(), whole.tensors()[0].grad.data() + rank * bytes, bytes);
    }
    octavo::StepArgs args = step_args(optimizer, 1);
    ASSERT_TRUE(whole.step(args).ok());
    Ranks ranks{};
    args.sums = {add, &ranks};
    for (const bool adds : {false, true}) {
      ranks.adds = adds;
      for (ranks.rank = 0; ranks.rank < 2; ++ranks.rank) {
        TensorSet copy = halves[ranks.rank];
        ASSERT_TRUE(copy.step(args).ok());
        if (!adds) continue;
        EXPECT_EQ(first_difference(copy.tensors()[0].param.data(),
                                   whole.tensors()[0].param.data() + ranks.rank * bytes, bytes / 4, 4),
                  "")
            << optimizer.name;
      }
    }
  }
}

// amsgrad: a NaN maximum stays NaN, as torch.maximum keeps it.
TEST(AmsGrad, NanInTheMaximumStays) {
  const OptimizerCase amsgrad = optimizers(false)[2];
  const TensorSpec spec =
      tensor_spec(64, DType::f32, DType::f32, octavo::WeightStore::nearest, StateFormat::fp32);
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    TensorSet set(amsgrad.config, {&spec, 1}, 3);
    set.tensors()[0].codes[2].as<float>()[5] = NAN;
    TensorSet expected = set;
    const octavo::StepArgs args = step_args(amsgrad, 2);
    ASSERT_TRUE(set.step(args).ok());
    reference::step(expected.config(), expected.args(), args);
    EXPECT_EQ(set.difference(expected), "") << implementation;
    EXPECT_TRUE(std::isnan(set.tensors()[0].codes[2].as<float>()[5])) << implementation;
  }
}

// An infinite parameter without decay is not turned into NaN by a multiplication with zero.
TEST(Decay, NoneLeavesAnInfiniteParameterAlone) {
  for (OptimizerCase optimizer : optimizers(true)) {
    optimizer.hyper.weight_decay = 0.0;
    const TensorSpec spec =
        tensor_spec(40, DType::f32, DType::f32, octavo::WeightStore::nearest, StateFormat::fp32);
    for (const std::string& implementation : supported_implementations()) {
      const ForcedImplementation forced(implementation);
      TensorSet set(optimizer.config, {&spec, 1}, 3);
      set.tensors()[0].param.as<float>()[33] = INFINITY;
      ASSERT_TRUE(set.step(step_args(optimizer, 1)).ok());
      EXPECT_EQ(set.tensors()[0].param.as<float>()[33], INFINITY) << implementation << " " << optimizer.name;
    }
  }
}

}  // namespace
}  // namespace test
