// Tests the properties of every transducer lattice: clips are independent of each other and of padding, bits
// depend on neither threads nor memory order, and reductions follow their definition.
// SPDX-License-Identifier: MIT
#include "tests/transducer/lattices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstring>
#include <vector>

namespace test {
namespace {

const std::vector<ClipSize> kSizes = {{9, 4}, {1, 0}, {12, 6}, {5, 0}, {1, 5}, {12, 1}};
const std::vector<std::int64_t> kDurations = {0, 1, 2, 3, 4};

TEST(TransducerBatch, AClipAloneHasTheSameBits) {
  LatticeBatch batch(kSizes, kDurations, 7, 1);
  batch.sigma = 0.02;
  const std::vector<float> losses = batch.losses();
  const auto gradient = batch.gradient();
  for (std::int64_t b = 0; b < batch.batch(); ++b) {
    const ClipSize size = kSizes[static_cast<std::size_t>(b)];
    LatticeBatch alone({size}, kDurations, 7, 1);
    alone.sigma = 0.02;
    for (std::int64_t u = 0; u < size.labels; ++u) {
      alone.targets[static_cast<std::size_t>(u)] =
          batch.targets[static_cast<std::size_t>(b * (batch.positions - 1) + u)];
    }
    for (std::int64_t t = 0; t < size.frames; ++t) {
      for (std::int64_t u = 0; u <= size.labels; ++u) {
        for (std::int64_t k = 0; k < batch.outputs; ++k)
          alone.set(0, t, u, k, batch.element(batch.logits, b, t, u, k));
      }
    }
    EXPECT_EQ(alone.losses()[0], losses[static_cast<std::size_t>(b)]);
    const auto own = alone.gradient();
    for (std::int64_t t = 0; t < batch.frames; ++t) {
      for (std::int64_t u = 0; u < batch.positions; ++u) {
        const bool real = t < size.frames && u <= size.labels;
        for (std::int64_t k = 0; k < batch.outputs; ++k) {
          const float expected = real ? alone.element(own, 0, t, u, k) : 0.0F;
          ASSERT_EQ(batch.element(gradient, b, t, u, k), expected) << b << " " << t << " " << u << " " << k;
        }
      }
    }
  }
}

TEST(TransducerBatch, ThreadsAndTheCallersFloatModeChangeNoBit) {
  LatticeBatch batch(kSizes, kDurations, 7, 2);
  auto args = batch.args();
  args.threads = 1;
  const auto losses = batch.losses(args);
  const auto gradient = batch.gradient(args);
  for (const int threads : {2, 3, 16}) {
    args.threads = threads;
    std::fesetround(threads == 3 ? FE_UPWARD : FE_TONEAREST);
    const auto again = batch.losses(args);
    const auto gradient_again = batch.gradient(args);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(again, losses);
    EXPECT_EQ(gradient_again, gradient);
  }
}

TEST(TransducerBatch, PartsOfOneTensorOrTensorsApartOrInPlace) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LatticeBatch batch(kSizes, kDurations, 7, 3, dtype);
    const auto losses = batch.losses();
    const auto gradient = batch.gradient();
    // The gradient is in separate, dense memory.
    const std::size_t each = batch.bytes_each(), rows = batch.count() / 12;
    std::vector<std::byte> tokens(rows * 7 * each), durations(rows * 5 * each);
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(&tokens[row * 7 * each], &batch.logits[row * 12 * each], 7 * each);
      std::memcpy(&durations[row * 5 * each], &batch.logits[(row * 12 + 7) * each], 5 * each);
    }
    auto args = batch.args();
    args.token_logits = {tokens.data(), {}};
    args.duration_logits = {durations.data(), {}};
    EXPECT_EQ(batch.losses(args), losses);
    EXPECT_EQ(batch.gradient(args), gradient);
    // The gradient replaces the logits.
    args = batch.args();
    EXPECT_EQ(batch.losses(args), losses);
    const std::vector<float> ones(kSizes.size(), 1.0F);
    auto* const data = batch.logits.data();
    ASSERT_TRUE(octavo::transducer_gradient(args, ones.data(), {data, batch.strides()},
                                            {data + 7 * each, batch.strides()})
                    .ok());
    EXPECT_EQ(batch.logits, gradient);
  }
}

TEST(TransducerBatch, LabelsMayLieInRowsOfAnyLength) {
  LatticeBatch batch(kSizes, kDurations, 7, 4);
  const auto losses = batch.losses();
  const std::int64_t width = batch.positions - 1, stride = width + 3;
  std::vector<std::int64_t> wide(kSizes.size() * static_cast<std::size_t>(stride), 99);
  for (std::int64_t b = 0; b < batch.batch(); ++b) {
    for (std::int64_t u = 0; u < width; ++u)
      wide[static_cast<std::size_t>(b * stride + u)] = batch.targets[static_cast<std::size_t>(b * width + u)];
  }
  auto args = batch.args();
  args.targets = wide.data();
  args.target_stride = stride;
  EXPECT_EQ(batch.losses(args), losses);
}

TEST(TransducerBatch, ReductionsAreWhatTheySay) {
  LatticeBatch batch(kSizes, kDurations, 7, 5);
  const auto losses = batch.losses();
  const auto gradient = batch.gradient();
  double sum = 0.0, each = 0.0, labels = 0.0;
  for (std::size_t b = 0; b < kSizes.size(); ++b) {
    const auto loss = static_cast<double>(losses[b]);
    sum += loss;
    each += loss / static_cast<double>(std::max<std::int64_t>(1, kSizes[b].labels));
    labels += static_cast<double>(kSizes[b].labels);
  }
  const auto clips = static_cast<double>(kSizes.size());
  const std::tuple<TransducerReduction, double> cases[] = {{TransducerReduction::sum, sum},
                                                           {TransducerReduction::mean_batch, sum / clips},
                                                           {TransducerReduction::mean, each / clips},
                                                           {TransducerReduction::mean_volume, sum / labels}};
  for (const auto& [reduction, expected] : cases) {
    batch.reduction = reduction;
    EXPECT_NEAR(batch.losses()[0], expected, 1e-6 * expected);
    const auto reduced = batch.gradient(batch.args(), {2.0F});
    for (std::int64_t b = 0; b < batch.batch(); ++b) {
      const auto own =
          static_cast<double>(std::max<std::int64_t>(1, kSizes[static_cast<std::size_t>(b)].labels));
      const double weight = reduction == TransducerReduction::sum          ? 1.0
                            : reduction == TransducerReduction::mean_batch ? 1.0 / clips
                            : reduction == TransducerReduction::mean       ? 1.0 / clips / own
                                                                           : 1.0 / labels;
      for (std::int64_t k = 0; k < batch.outputs; ++k) {
        const double whole = 2.0 * weight * static_cast<double>(batch.element(gradient, b, 0, 0, k));
        EXPECT_NEAR(batch.element(reduced, b, 0, 0, k), whole, 2e-7 * std::fabs(whole));
      }
    }
  }
  // No clip has a label: nothing is divided by zero.
  for (const auto reduction : {TransducerReduction::mean, TransducerReduction::mean_volume}) {
    LatticeBatch empty({{3, 0}}, kDurations, 4, 6);
    const float loss = empty.losses()[0];
    empty.reduction = reduction;
    EXPECT_EQ(empty.losses()[0], loss);
    EXPECT_TRUE(std::isfinite(loss));
  }
}

TEST(TransducerBatch, EachClipHasItsOwnUpstreamGradient) {
  LatticeBatch batch({{4, 2}, {4, 2}}, kDurations, 5, 7);
  (void)batch.losses();
  const auto gradient = batch.gradient();
  const auto scaled = batch.gradient(batch.args(), {-4.0F, 0.0F});
  for (std::int64_t k = 0; k < batch.outputs; ++k) {
    EXPECT_EQ(batch.element(scaled, 0, 1, 1, k), -4.0F * batch.element(gradient, 0, 1, 1, k));
    EXPECT_EQ(batch.element(scaled, 1, 1, 1, k), 0.0F);
  }
}

TEST(TransducerBatch, AClipThatCannotEndOrIsNotANumberStaysAlone) {
  LatticeBatch batch({{3, 2}, {3, 3}, {3, 1}}, {1, 2}, 5, 8);  // three labels need four frames
  batch.set(2, 1, 0, 3, std::nanf(""));
  const auto losses = batch.losses();
  EXPECT_TRUE(std::isfinite(losses[0]));
  EXPECT_EQ(losses[1], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(losses[2]));
  const auto gradient = batch.gradient();
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t k = 0; k < batch.outputs; ++k) {
      EXPECT_TRUE(std::isfinite(batch.element(gradient, 0, t, 1, k)));
      EXPECT_EQ(batch.element(gradient, 1, t, 1, k), 0.0F);
      EXPECT_EQ(std::isnan(batch.element(gradient, 2, t, 1, k)), t > 0);  // a label takes a frame
    }
  }
  batch.reduction = TransducerReduction::mean_batch;
  EXPECT_TRUE(std::isnan(batch.losses()[0]));
}

TEST(TransducerBatch, CellsThatNoAlignmentPassesDoNotMatter) {
  LatticeBatch batch({{3, 2}}, {1, 2}, 5, 8);  // all labels in one frame, then a blank
  const auto losses = batch.losses();
  const auto gradient = batch.gradient();
  // (0, 1) cannot be reached, and from (1, 0) there are too few frames.
  for (const auto& [t, u] : {std::pair{0, 1}, {1, 0}}) {
    for (std::int64_t k = 0; k < batch.outputs; ++k) {
      EXPECT_EQ(batch.element(gradient, 0, t, u, k), 0.0F);
      batch.set(0, t, u, k, std::nanf(""));
    }
  }
  EXPECT_EQ(batch.losses(), losses);
  EXPECT_TRUE(std::isfinite(losses[0]));
  EXPECT_EQ(batch.gradient(), gradient);
}

TEST(TransducerBatch, OmegaTakesPlainRnntByTheDraw) {
  LatticeBatch batch(kSizes, kDurations, 7, 9);
  batch.sigma = 0.1;
  auto tdt = batch.args();
  const auto as_tdt = batch.losses(tdt);
  auto rnnt = tdt;
  rnnt.kind = TransducerKind::rnnt;
  rnnt.durations = {};
  rnnt.sigma = 0.0;
  const auto as_rnnt = batch.losses(rnnt);
  EXPECT_NE(as_tdt, as_rnnt);
  tdt.omega = 0.25;
  tdt.seed = 5;
  int taken = 0;
  for (tdt.step = 0; tdt.step < 64; ++tdt.step) {
    const bool drawn = octavo::draws_rnnt(0.25, 5, tdt.step);
    taken += drawn ? 1 : 0;
    EXPECT_EQ(batch.losses(tdt), drawn ? as_rnnt : as_tdt);
    if (!drawn) continue;
    const auto gradient = batch.gradient(tdt);
    for (std::int64_t k = 7; k < 12; ++k) EXPECT_EQ(batch.element(gradient, 0, 0, 0, k), 0.0F);
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, 64);
  constexpr int kDraws = 100000;
  for (const double omega : {0.0, 0.1, 0.5, 1.0}) {
    int count = 0;
    for (int i = 0; i < kDraws; ++i)
      count += octavo::draws_rnnt(omega, 42, static_cast<std::uint64_t>(i)) ? 1 : 0;
    EXPECT_NEAR(count, omega * kDraws, 6.0 * std::sqrt(kDraws * omega * (1.0 - omega)));
  }
}

}  // namespace
}  // namespace test
