// bf16 weights with 16 residual bits are an fp32 master in bits; with 8 bits, an fp32 master rounded to 24
// bits at every step; in both the bf16 half alone is the weight to within one bf16 rounding.
// SPDX-License-Identifier: MIT
#include "reference/formats.h"
#include "support/buffers.h"
#include "support/cases.h"
#include "support/random.h"

#include <cmath>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;
using octavo::WeightStore;

constexpr std::int64_t kNumel = 3001;
constexpr int kSteps = 100;

float joined16(const TensorBuffers& t, std::int64_t i) {
  const std::uint32_t high = t.param.as<std::uint16_t>()[i];
  return reference::from_bits((high << 16) + static_cast<std::uint32_t>(t.residual.as<std::int16_t>()[i]));
}

TensorSet make(const OptimizerCase& optimizer, StateFormat format, DType dtype, WeightStore store) {
  const TensorSpec spec = tensor_spec(kNumel, dtype, DType::f32, store, format);
  TensorSet set(optimizer.config, {&spec, 1}, 11);
  return set;
}

// A master starts from its bf16 weights, so the fp32 run starts from the same values.
void copy_params(const TensorSet& from, TensorSet& to) {
  const TensorBuffers& source = from.tensors()[0];
  for (std::int64_t i = 0; i < kNumel; ++i) {
    to.tensors()[0].param.as<float>()[i] = reference::load(DType::bf16, source.param.data(), i);
  }
}

TEST(SplitMaster, Bf16Plus16EqualsFp32InBits) {
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (const OptimizerCase& optimizer : optimizers(false)) {
      for (const StateFormat format : {StateFormat::fp32, StateFormat::int8}) {
        TensorSet split = make(optimizer, format, DType::bf16, WeightStore::residual16);
        TensorSet whole = make(optimizer, format, DType::f32, WeightStore::nearest);
        copy_params(split, whole);
        for (int i = 1; i <= kSteps; ++i) {
          split.fill_grads(static_cast<std::uint64_t>(i));
          whole.fill_grads(static_cast<std::uint64_t>(i));
          ASSERT_TRUE(split.step(step_args(optimizer, i)).ok());
          ASSERT_TRUE(whole.step(step_args(optimizer, i)).ok());
          for (std::int64_t k = 0; k < kNumel; ++k) {
            ASSERT_EQ(reference::bits_of(joined16(split.tensors()[0], k)),
                      reference::bits_of(whole.tensors()[0].param.as<float>()[k]))
                << implementation << " " << optimizer.name << " step " << i << " element " << k;
          }
        }
        for (std::size_t slot = 0; slot < 3; ++slot) {
          EXPECT_TRUE(std::ranges::equal(split.tensors()[0].codes[slot].bytes(),
                                         whole.tensors()[0].codes[slot].bytes()));
        }
      }
    }
  }
}

TEST(SplitMaster, TheBf16HalfIsNearTheMaster) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet split = make(adamw, StateFormat::fp32, DType::bf16, WeightStore::residual16);
  for (int i = 1; i <= 10; ++i) ASSERT_TRUE(split.step(step_args(adamw, i)).ok());
  for (std::int64_t k = 0; k < kNumel; ++k) {
    const float master = joined16(split.tensors()[0], k);
    const float half = reference::load(DType::bf16, split.tensors()[0].param.data(), k);
    ASSERT_LE(std::fabs(half - master), std::ldexp(1.0f, std::max(std::ilogb(half), -126) - 8))
        << k;  // half an ulp
  }
}

// 24 bits keep what bf16 alone loses: steps below half a bf16 ulp add up.
TEST(SplitMaster, SmallStepsAddUpWithEightBits) {
  OptimizerCase sgd = optimizers(false)[3];
  sgd.hyper.weight_decay = 0.0;
  sgd.hyper.lr = 0x1p-14;  // 1/128 of a bf16 ulp at 1, twice the resolution of 24 bits
  const auto run = [&](WeightStore store) {
    TensorSet set = make(sgd, StateFormat::fp32, DType::bf16, store);
    for (std::int64_t k = 0; k < kNumel; ++k) {
      reference::store_nearest(DType::bf16, set.tensors()[0].param.data(), k, 1.0f);
      set.tensors()[0].grad.as<float>()[k] = -1.0f;
    }
    for (int i = 1; i <= 256; ++i) EXPECT_TRUE(set.step(step_args(sgd, i)).ok());
    return reference::load(DType::bf16, set.tensors()[0].param.data(), kNumel - 1);
  };
  EXPECT_EQ(run(WeightStore::nearest), 1.0f);
  EXPECT_EQ(run(WeightStore::residual8), 1.0f + 256 * 0x1p-14f);
  EXPECT_EQ(run(WeightStore::residual16), 1.0f + 256 * 0x1p-14f);
}

}  // namespace
}  // namespace test
