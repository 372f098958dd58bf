// Compares the transducer loss with its joint network with the loss on logits from plain loops, with central
// differences of the sum over all alignments, and with itself for other tiles, threads and padding.
// SPDX-License-Identifier: MIT
#include "tests/transducer/joints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace test {
namespace {

const std::vector<ClipSize> kSizes = {{9, 4}, {1, 0}, {12, 6}, {5, 0}, {1, 5}, {12, 1}};
const std::vector<std::int64_t> kDurations = {0, 1, 2, 3, 4};

// A sum in double, and the sum of the magnitudes.
struct Sum {
  double value = 0.0, size = 0.0;
  void add(double x) {
    value += x;
    size += std::fabs(x);
  }
};

void expect_near(const std::vector<float>& got, const std::vector<Sum>& expected, double unit,
                 const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i].value, unit * expected[i].size) << what << " " << i;
  }
}

// Checks the chain rule over the gradient of the logits, which has the same bits.
void expect_gradients_of_plain(JointBatch& batch) {
  const auto logits = batch.lattice.gradient();
  std::vector<Sum> encoder(batch.encoder.size()), predictor(batch.predictor.size()),
      weight(batch.weight.size()), bias(batch.bias.size());
  batch.for_cells([&](std::int64_t b, std::int64_t t, std::int64_t u) {
    const std::vector<float> h = batch.units(b, t, u), mask = batch.mask(b, t, u);
    for (std::int64_t o = 0; o < batch.lattice.outputs; ++o) {
      const double d = batch.lattice.element(logits, b, t, u, o);
      bias[static_cast<std::size_t>(o)].add(d);
      for (std::int64_t k = 0; k < batch.hidden; ++k) {
        const auto at = static_cast<std::size_t>(k);
        weight[batch.unit(o, k)].add(d * static_cast<double>(h[at]));
        if (h[at] == 0.0F) continue;
        const double x = d * static_cast<double>(batch.weight[batch.unit(o, k)] * mask[at]);
        encoder[batch.unit(b * batch.lattice.frames + t, k)].add(x);
        predictor[batch.unit(b * batch.lattice.positions + u, k)].add(x);
      }
    }
  });
  const JointGradients got = batch.gradient();
  // Each term is rounded once for every addition that follows it, by half a unit in the last place.
  const double unit = 0x1p-24 * static_cast<double>(batch.lattice.outputs + 150);
  expect_near(got.bias, bias, unit, "bias");
  expect_near(got.weight, weight, unit, "weight");
  expect_near(got.encoder, encoder, unit, "encoder");
  expect_near(got.predictor, predictor, unit, "predictor");
}

TEST(TransducerJoint, EqualsTheLossOnPlainLogits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const double dropout : {0.0, 0.3}) {
      for (const auto& durations : {kDurations, std::vector<std::int64_t>{1, 2}, {}}) {
        JointBatch batch(kSizes, durations, 7, 21, 5, dtype);
        batch.dropout = dropout;
        batch.lattice.sigma = durations.empty() ? 0.0 : 0.05;
        batch.make_plain();
        const auto plain = batch.lattice.losses();
        EXPECT_EQ(batch.losses(), plain);
        if (durations.size() == 2) {
          EXPECT_EQ(plain[4], std::numeric_limits<float>::infinity());  // five labels in one frame
        }
        (void)batch.lattice.losses();  // fills the workspace again, for the gradient
        expect_gradients_of_plain(batch);
      }
    }
  }
}

TEST(TransducerJoint, HasTheGoldenNumbers) {
  // There is a unit for each cell, which is 1 there and 0 elsewhere, so its weights are the logits.
  JointBatch batch({{4, 2}}, kDurations, 4, 12, 1);
  batch.lattice.targets = {1, 2};
  std::fill(batch.bias.begin(), batch.bias.end(), 0.0F);
  for (std::int64_t k = 0; k < 12; ++k) {
    const std::int64_t t = k / 3, u = k % 3;
    for (std::int64_t i = 0; i < 4; ++i) batch.encoder[batch.unit(i, k)] = i == t ? 0.0F : -2.0F;
    for (std::int64_t i = 0; i < 3; ++i) batch.predictor[batch.unit(i, k)] = i == u ? 1.0F : -1.0F;
    for (std::int64_t o = 0; o < 9; ++o) {
      const auto x = static_cast<double>(t), y = static_cast<double>(u), z = static_cast<double>(o);
      const double logit =
          o < 4 ? std::sin(0.7 * x + 1.3 * y + 0.9 * z) : std::cos(0.5 * x + 0.8 * y + 0.6 * (z - 4));
      batch.weight[batch.unit(o, k)] = static_cast<float>(logit);
    }
  }
  const double expected[] = {.135684,  -.633295, .359305, .138306, -.113875,
                             -.060041, .039184,  .072710, .062022};
  batch.lattice.sigma = 0.02;
  EXPECT_NEAR(batch.losses()[0], 6.4923446, 5e-7);
  const JointGradients gradient = batch.gradient();
  for (std::int64_t o = 0; o < 9; ++o) EXPECT_NEAR(gradient.weight[batch.unit(o, 0)], expected[o], 6e-7) << o;
}

// Returns the loss of all clips by enumeration, in long double from the parameters on.
long double loss_of(const JointBatch& batch) {
  long double sum = 0.0L;
  for (std::int64_t b = 0; b < batch.lattice.batch(); ++b) {
    reference::TransducerClip clip = batch.lattice.clip(b);
    clip.token_logits.clear();
    clip.duration_logits.clear();
    for (std::int64_t t = 0; t < clip.frames; ++t) {
      for (std::int64_t u = 0; u <= static_cast<std::int64_t>(clip.labels.size()); ++u) {
        for (std::int64_t o = 0; o < batch.lattice.outputs; ++o) {
          long double x = batch.bias[static_cast<std::size_t>(o)];
          for (std::int64_t k = 0; k < batch.hidden; ++k) {
            const long double f = batch.encoder[batch.unit(b * batch.lattice.frames + t, k)];
            const long double g = batch.predictor[batch.unit(b * batch.lattice.positions + u, k)];
            x += std::max(0.0L, f + g) * static_cast<long double>(batch.weight[batch.unit(o, k)]);
          }
          (o < clip.tokens ? clip.token_logits : clip.duration_logits).push_back(x);
        }
      }
    }
    sum += reference::transducer_loss(clip);
  }
  return sum;
}

TEST(TransducerJoint, GradientsEqualCentralDifferences) {
  for (const auto& durations : {std::vector<std::int64_t>{0, 1, 2}, {2, 1}, {}}) {
    JointBatch batch({{3, 2}, {1, 0}, {3, 1}}, durations, 4, 3, 77);
    batch.lattice.sigma = durations.empty() ? 0.0 : 0.03;
    const JointGradients got = batch.gradient();
    const auto compare = [&](std::vector<float>& values, const std::vector<float>& gradient,
                             const char* what) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float was = values[i];
        if (std::isnan(was)) {
          EXPECT_EQ(gradient[i], 0.0F) << what << " " << i;
          continue;
        }
        constexpr float kStep = 0x1p-10F;  // no unit of this seed is closer to zero
        values[i] = was + kStep;
        const float above = values[i];
        const long double loss_above = loss_of(batch);
        values[i] = was - kStep;
        const long double loss_below = loss_of(batch), step = above - values[i];
        values[i] = was;
        const auto expected = static_cast<double>((loss_above - loss_below) / step);
        // The tolerance is the step's square times a third derivative below 4 over 6, and the rounding of
        // fp32.
        EXPECT_NEAR(gradient[i], expected, 1e-6 + 2e-6 * std::fabs(expected)) << what << " " << i;
      }
    };
    batch.for_cells([&](std::int64_t b, std::int64_t t, std::int64_t u) {
      for (std::int64_t k = 0; k < batch.hidden; ++k) {
        const float sum = batch.encoder[batch.unit(b * batch.lattice.frames + t, k)] +
                          batch.predictor[batch.unit(b * batch.lattice.positions + u, k)];
        ASSERT_GT(std::fabs(sum), 2.0F * 0x1p-10F);
      }
    });
    compare(batch.encoder, got.encoder, "encoder");
    compare(batch.predictor, got.predictor, "predictor");
    compare(batch.weight, got.weight, "weight");
    compare(batch.bias, got.bias, "bias");
  }
}

TEST(TransducerJoint, TilesAndThreadsChangeNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    JointBatch batch(kSizes, kDurations, 7, 70, 6, dtype);
    batch.dropout = 0.1;
    const auto losses = batch.losses();
    const JointGradients gradient = batch.gradient();
    for (const std::int64_t cells : {1, 2, 5, 7, 30, 61, 1 << 20}) {
      batch.tile_cells = cells;
      const TransducerJoint joint = batch.joint();
      TransducerArgs args = batch.args();
      args.threads = static_cast<int>(1 + cells % 3);
      EXPECT_EQ(batch.losses(args, joint), losses) << cells;
      EXPECT_EQ(batch.gradient(args, joint, std::vector<float>(kSizes.size(), 1.0F)), gradient) << cells;
    }
  }
}

TEST(TransducerJoint, AClipAloneHasTheSameBits) {
  JointBatch batch(kSizes, kDurations, 7, 10, 8);
  batch.dropout = 0.25;
  const auto losses = batch.losses();
  const JointGradients gradient = batch.gradient();
  for (std::int64_t b = 0; b < batch.lattice.batch(); ++b) {
    const auto at = static_cast<std::size_t>(b);
    const ClipSize size = kSizes[at];
    JointBatch alone({size}, kDurations, 7, 10, 8);
    alone.dropout = 0.25;
    alone.weight = batch.weight;
    alone.bias = batch.bias;
    alone.samples = {batch.samples[at]};
    const auto first = batch.lattice.targets.begin() + b * (batch.lattice.positions - 1);
    alone.lattice.targets.assign(first, first + size.labels);
    const auto cut = [&](const std::vector<float>& from, std::int64_t rows, std::int64_t count) {
      const auto begin = from.begin() + b * rows * batch.hidden;
      return std::vector<float>(begin, begin + count * batch.hidden);
    };
    alone.encoder = cut(batch.encoder, batch.lattice.frames, size.frames);
    alone.predictor = cut(batch.predictor, batch.lattice.positions, size.labels + 1);
    EXPECT_EQ(alone.losses()[0], losses[at]);
    const JointGradients own = alone.gradient();
    EXPECT_EQ(own.encoder, cut(gradient.encoder, batch.lattice.frames, size.frames));
    EXPECT_EQ(own.predictor, cut(gradient.predictor, batch.lattice.positions, size.labels + 1));
  }
}

TEST(TransducerJoint, DropoutFollowsSeedStepSampleAndLayer) {
  JointBatch batch({{4, 2}, {4, 2}}, kDurations, 5, 16, 9);
  const auto without = batch.losses();
  batch.dropout = 0.5;
  const TransducerJoint joint = batch.joint();
  const auto losses = batch.losses(batch.args(), joint);
  EXPECT_NE(losses[0], without[0]);
  for (int change = 0; change < 4; ++change) {
    TransducerArgs args = batch.args();
    TransducerJoint other = joint;
    args.seed += change == 0;
    args.step += change == 1;
    other.layer += change == 2;
    const std::vector<std::int64_t> samples = {batch.samples[0], 5};
    if (change == 3) other.samples = samples.data();
    const auto changed = batch.losses(args, other);
    EXPECT_EQ(changed[0] == losses[0], change == 3) << change;
    EXPECT_NE(changed[1], losses[1]) << change;
  }
}

TEST(TransducerJoint, OnlyWhatIsWantedIsWritten) {
  JointBatch batch(kSizes, kDurations, 7, 10, 10);
  const JointGradients all = batch.gradient();
  const TransducerJoint joint = batch.joint();
  const std::vector<float> ones(kSizes.size(), 1.0F);
  for (int which = 0; which < 4; ++which) {
    JointGradients some = batch.empty(), expected = batch.empty();
    const auto want = [&](int number, std::vector<float>& of, std::vector<float>& to,
                          const std::vector<float>& from) -> float* {
      if (number != which) return nullptr;
      to = from;
      return of.data();
    };
    const TransducerJointGrads grads{want(0, some.encoder, expected.encoder, all.encoder),
                                     want(1, some.predictor, expected.predictor, all.predictor),
                                     want(2, some.weight, expected.weight, all.weight),
                                     want(3, some.bias, expected.bias, all.bias)};
    JointBatch::check(octavo::transducer_joint_gradient(batch.args(), joint, ones.data(), grads));
    EXPECT_EQ(some, expected) << which;
  }
  // A network without a bias equals one whose bias is zero.
  std::fill(batch.bias.begin(), batch.bias.end(), 0.0F);
  const auto zero = batch.losses();
  TransducerJoint bare = batch.joint();
  bare.bias = nullptr;
  EXPECT_EQ(batch.losses(batch.args(), bare), zero);
  // A bias may be fp32 if the network is not.
  JointBatch half(kSizes, kDurations, 7, 10, 10, DType::bf16);
  const auto losses = half.losses();
  TransducerJoint wide = half.joint();
  wide.bias = half.bias.data();
  wide.bias_dtype = DType::f32;
  EXPECT_EQ(half.losses(half.args(), wide), losses);
}

TEST(TransducerJoint, UpstreamGradientsReductionsAndOmega) {
  JointBatch batch(kSizes, kDurations, 7, 10, 11);
  batch.make_plain();
  for (const auto reduction : {TransducerReduction::mean, TransducerReduction::mean_volume,
                               TransducerReduction::mean_batch, TransducerReduction::sum}) {
    batch.lattice.reduction = reduction;
    const TransducerJoint joint = batch.joint();
    TransducerArgs args = batch.args();
    args.omega = 0.5;
    for (args.step = 0; args.step < 6; ++args.step) {
      TransducerArgs plain = batch.lattice.args();
      plain.omega = 0.5;
      plain.seed = args.seed;
      plain.step = args.step;
      const auto expected = batch.lattice.losses(plain);  // first: both use one workspace
      EXPECT_EQ(batch.losses(args, joint), expected);
      const JointGradients twice = batch.gradient(args, joint, {2.0F});
      JointGradients once = batch.gradient(args, joint, {1.0F});
      for (float& x : once.weight) x *= 2.0F;
      EXPECT_EQ(once.weight, twice.weight);
    }
  }
  batch.lattice.reduction = TransducerReduction::none;
  const TransducerJoint joint = batch.joint();
  (void)batch.losses(batch.args(), joint);
  std::vector<float> upstream(kSizes.size(), 0.0F);
  upstream[2] = 1.0F;
  const JointGradients one = batch.gradient(batch.args(), joint, upstream);
  for (std::int64_t b = 0; b < batch.lattice.batch(); ++b) {
    EXPECT_EQ(one.encoder[batch.unit(b * batch.lattice.frames, 0)] != 0.0F ||
                  one.encoder[batch.unit(b * batch.lattice.frames, 1)] != 0.0F,
              b == 2);
  }
}

TEST(TransducerJoint, ClipsThatCannotEndOrAreNotNumbersHarmNoOther) {
  JointBatch batch({{3, 2}, {3, 3}, {3, 1}}, {1, 2}, 5, 6, 12);  // three labels need four frames
  const auto before = batch.losses();
  const JointGradients gradient = batch.gradient();
  const std::size_t rows = static_cast<std::size_t>(batch.lattice.frames * batch.hidden);
  EXPECT_EQ(before[1], std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < rows; ++i) EXPECT_EQ(gradient.encoder[rows + i], 0.0F);
  batch.encoder[2 * rows] = std::nanf("");
  const auto losses = batch.losses();
  EXPECT_EQ(losses[0], before[0]);
  EXPECT_TRUE(std::isnan(losses[2]));
  const JointGradients bad = batch.gradient();
  for (std::size_t i = 0; i < 2 * rows; ++i) EXPECT_EQ(bad.encoder[i], gradient.encoder[i]);
}

}  // namespace
}  // namespace test
