// bf16 weights with 16 residual bits are an fp32 master in bits; with 8 bits, an fp32 master rounded to 24
// bits at every step; in both the bf16 half alone is the weight to within one bf16 rounding.
// SPDX-License-Identifier: MIT
#include "tests/reference/formats.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

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

// A step that changes no value: it reads each master and writes it again.
struct Pair {
  std::uint16_t weight;
  std::int32_t residual;
};

std::uint32_t master_bits(const Pair& p, int unit) {
  const bool left_over = (p.weight & 0x7FFF) == 0 && p.residual < 0;
  const auto added = static_cast<std::uint32_t>(left_over ? 0 : p.residual * unit);
  return (static_cast<std::uint32_t>(p.weight) << 16) + added;
}

template <class Residual>
void expect_pairs_read_back(WeightStore store, std::int64_t count, auto&& pair_at) {
  constexpr int kUnit = sizeof(Residual) == 1 ? 256 : 1;
  OptimizerCase sgd = optimizers(false)[3];
  sgd.hyper.lr = sgd.hyper.weight_decay = 0.0;
  const TensorSpec spec = tensor_spec(count, DType::bf16, DType::bf16, store, StateFormat::fp32);
  TensorSet set(sgd.config, {&spec, 1}, 1);
  TensorBuffers& t = set.tensors()[0];
  std::fill_n(t.grad.as<std::uint16_t>(), count, std::uint16_t{0});
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    for (std::int64_t i = 0; i < count; ++i) {
      const Pair p = pair_at(i);
      t.param.as<std::uint16_t>()[i] = p.weight;
      t.residual.as<Residual>()[i] = static_cast<Residual>(p.residual);
    }
    ASSERT_TRUE(set.step(step_args(sgd, 1)).ok());
    for (std::int64_t i = 0; i < count; ++i) {
      const Pair before = pair_at(i);
      const Pair after{t.param.as<std::uint16_t>()[i], t.residual.as<Residual>()[i]};
      const float expected = reference::from_bits(master_bits(before, kUnit));
      const float got = reference::from_bits(master_bits(after, kUnit));
      const bool finite_half = (before.weight & 0x7FFF) < 0x7F80;
      const bool same = finite_half            ? std::isfinite(got) && got == expected
                        : std::isnan(expected) ? std::isnan(got)
                                               : got == expected;
      const bool encoders = expected != 0.0F && !std::isnan(expected);  // ±0 and NaN have one form each
      const bool kept = before.weight == after.weight && before.residual == after.residual;
      ASSERT_TRUE(same && (kept || !encoders))
          << implementation << " weight " << before.weight << " residual " << before.residual << ": got "
          << got << " (" << after.weight << ", " << after.residual << "), expected " << expected;
    }
  }
}

std::int64_t fewer_residuals() { return std::getenv("OCTAVO_TEST_QUICK") != nullptr ? 17 : 1; }

// A weight that user code sets to zero keeps its old residual, a pair that no encoder writes; it must not
// become NaN. All other pairs of a finite weight and a residual are written by an encoder and stay.
TEST(SplitMaster, EveryPairOfEightBitsReadsBack) {
  const std::int64_t stride = fewer_residuals();  // of 255: both ends stay in
  const std::int64_t residuals = 255 / stride + 1;
  expect_pairs_read_back<std::int8_t>(WeightStore::residual8, 65536 * residuals, [=](std::int64_t i) {
    return Pair{static_cast<std::uint16_t>(i % 65536), static_cast<std::int32_t>(i / 65536 * stride - 128)};
  });
}

TEST(SplitMaster, PairsOfSixteenBitsReadBack) {
  const std::int64_t stride = 257 * fewer_residuals();  // of 65535: both ends stay in
  const std::int64_t residuals = 65535 / stride + 1;
  expect_pairs_read_back<std::int16_t>(WeightStore::residual16, 65536 * residuals, [=](std::int64_t i) {
    return Pair{static_cast<std::uint16_t>(i % 65536), static_cast<std::int32_t>(i / 65536 * stride - 32768)};
  });
  // Every residual beside weights at the edges: zeros, the smallest, the largest, infinity, each with both
  // signs.
  expect_pairs_read_back<std::int16_t>(WeightStore::residual16, 8 * 65536, [](std::int64_t i) {
    constexpr std::array<std::uint16_t, 4> kEdges = {0x0000, 0x0001, 0x7F7F, 0x7F80};
    const auto sign = static_cast<std::uint16_t>((i & 4) != 0 ? 0x8000 : 0);
    return Pair{static_cast<std::uint16_t>(kEdges[static_cast<std::size_t>(i & 3)] | sign),
                static_cast<std::int32_t>(i / 8 - 32768)};
  });
}

}  // namespace
}  // namespace test
