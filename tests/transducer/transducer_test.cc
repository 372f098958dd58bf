// Compares the transducer loss and its gradient with the sum over all alignments: published numbers,
// enumeration, central differences, and closed forms if a lattice is too large to enumerate.
// SPDX-License-Identifier: MIT
#include "tests/transducer/lattices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace test {
namespace {

const std::vector<std::vector<std::int64_t>> kDurationSets = {
    {0, 1, 2, 3, 4}, {4, 2, 0, 1}, {0, 1}, {0, 3}, {1}, {1, 2}, {2, 3}, {}};

// T = 4, labels 1 and 2, blank 3, durations 0 to 4.
LatticeBatch golden(bool with_durations) {
  LatticeBatch batch({{4, 2}}, with_durations ? kDurationSets[0] : std::vector<std::int64_t>(), 4, 1);
  batch.targets = {1, 2};
  for (std::int64_t t = 0; t < 4; ++t) {
    for (std::int64_t u = 0; u < 3; ++u) {
      for (std::int64_t k = 0; k < batch.outputs; ++k) {
        const auto x = static_cast<double>(t), y = static_cast<double>(u), z = static_cast<double>(k);
        const double logit =
            k < 4 ? std::sin(0.7 * x + 1.3 * y + 0.9 * z) : std::cos(0.5 * x + 0.8 * y + 0.6 * (z - 4));
        batch.set(0, t, u, k, static_cast<float>(logit));
      }
    }
  }
  return batch;
}

TEST(Transducer, HasTheGoldenNumbers) {
  struct Golden {
    double sigma, loss;
    std::vector<double> gradient;  // the gradient of cell (0, 0)
  };
  const Golden cases[] = {
      {0.0, 6.4293336, {.135684, -.632011, .359305, .137022, -.113439, -.060540, .039193, .072764, .062022}},
      {0.02,
       6.4923446,
       {.135684, -.633295, .359305, .138306, -.113875, -.060041, .039184, .072710, .062022}}};
  for (const Golden& expected : cases) {
    LatticeBatch batch = golden(true);
    batch.sigma = expected.sigma;
    EXPECT_NEAR(batch.losses()[0], expected.loss, 5e-7);
    EXPECT_EQ(reference::sum_alignments(batch.clip(0)).alignments, 80);
    const auto gradient = batch.gradient();
    for (std::int64_t k = 0; k < 9; ++k) {
      EXPECT_NEAR(batch.element(gradient, 0, 0, 0, k), expected.gradient[static_cast<std::size_t>(k)], 6e-7)
          << k;
    }
  }
  EXPECT_NEAR(golden(false).losses()[0], 6.0691095, 5e-7);
}

// Returns half a unit in the last place of the type, for values that are computed in double.
double rounding(DType dtype, double value) {
  const double unit = dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  return unit * std::fabs(value) + (dtype == DType::f16 ? 0x1p-25 : 0.0);
}

std::vector<ClipSize> tiny_sizes() {
  std::vector<ClipSize> sizes;
  for (std::int64_t frames = 1; frames <= 5; ++frames) {
    for (std::int64_t labels = 0; labels <= 3; ++labels) sizes.push_back({frames, labels});
  }
  return sizes;
}

TEST(Transducer, LossesEqualEnumeration) {
  int infinite = 0, finite = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& durations : kDurationSets) {
      LatticeBatch batch(tiny_sizes(), durations, 5, 7 + durations.size(), dtype);
      batch.sigma = durations.empty() ? 0.0 : 0.05;
      const std::vector<float> losses = batch.losses();
      for (std::int64_t b = 0; b < batch.batch(); ++b) {
        const auto expected = static_cast<double>(reference::transducer_loss(batch.clip(b)));
        const float got = losses[static_cast<std::size_t>(b)];
        if (std::isinf(expected)) {
          EXPECT_EQ(got, std::numeric_limits<float>::infinity()) << b;
          ++infinite;
        } else {
          EXPECT_NEAR(got, expected, 0x1p-24 * std::fabs(expected) + 1e-12) << b;
          ++finite;
        }
      }
    }
  }
  EXPECT_GT(infinite, 50);
  EXPECT_GT(finite, 300);
}

TEST(Transducer, GradientsEqualCentralDifferences) {
  const std::vector<ClipSize> sizes = {{4, 2}, {1, 0}, {1, 2}, {3, 3}, {4, 0}, {2, 1}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& durations : kDurationSets) {
      LatticeBatch batch(sizes, durations, 4, 11 + durations.size(), dtype);
      batch.sigma = durations.empty() ? 0.0 : 0.03;
      (void)batch.losses();
      const auto gradient = batch.gradient();
      for (std::int64_t b = 0; b < batch.batch(); ++b) {
        reference::TransducerClip clip = batch.clip(b);
        const bool ends = reference::sum_alignments(clip).alignments > 0;
        std::size_t token = 0, duration = 0;
        for (std::int64_t t = 0; t < clip.frames; ++t) {
          for (std::size_t u = 0; u <= clip.labels.size(); ++u) {
            for (std::int64_t k = 0; k < batch.outputs; ++k) {
              long double& x =
                  k < batch.tokens ? clip.token_logits[token++] : clip.duration_logits[duration++];
              constexpr long double kStep = 1e-5L;
              const long double was = x;
              x = was + kStep;
              const long double above = ends ? reference::transducer_loss(clip) : 0.0L;
              x = was - kStep;
              const long double below = ends ? reference::transducer_loss(clip) : 0.0L;
              x = was;
              const auto expected = static_cast<double>((above - below) / (2 * kStep));
              // The third derivative is below 1, so the error of differences is below the step's square.
              ASSERT_NEAR(batch.element(gradient, b, t, static_cast<std::int64_t>(u), k), expected,
                          rounding(dtype, expected) + 1e-10)
                  << "clip " << b << " cell " << t << ", " << u << " output " << k;
            }
          }
        }
      }
    }
  }
}

double log_choose(double n, double k) {
  return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
}

// Equal logits make all alignments of a length equally probable, so only their number matters.
TEST(Transducer, LongTranscriptsHaveTheirClosedForm) {
  constexpr std::int64_t kTokens = 3;
  for (const ClipSize size : {ClipSize{150, 3000}, {3500, 120}, {1, 2500}}) {
    const auto frames = static_cast<double>(size.frames), labels = static_cast<double>(size.labels);
    LatticeBatch rnnt({size}, {}, kTokens, 3, DType::f32, 0.0);
    double expected = (frames + labels) * std::log(3.0) - log_choose(frames + labels - 1, labels);
    EXPECT_NEAR(rnnt.losses()[0], expected, 1e-6 * expected);
    // With durations 0 and 1, j labels advance and the other frames are blanks.
    LatticeBatch tdt({size}, {0, 1}, kTokens, 3, DType::f32, 0.0);
    double log_p = -std::numeric_limits<double>::infinity();
    for (double j = 0; j <= std::min(labels, frames - 1); ++j) {
      const double blanks = frames - j;
      const double term =
          log_choose(blanks - 1 + labels, labels) + log_choose(labels, j) - (blanks + labels) * std::log(6.0);
      const double more = std::max(log_p, term);
      log_p = more + std::log(std::exp(log_p - more) + std::exp(term - more));
    }
    EXPECT_NEAR(tdt.losses()[0], -log_p, 1e-6 * -log_p);
    const auto gradient = tdt.gradient();
    double sum = 0.0, magnitude = 0.0;
    for (std::int64_t t = 0; t < size.frames; ++t) {
      for (std::int64_t u = 0; u <= size.labels; ++u) {
        for (std::int64_t k = 0; k < tdt.outputs; ++k) {
          const double g = tdt.element(gradient, 0, t, u, k);
          sum += g;
          magnitude += std::fabs(g);
        }
      }
    }
    EXPECT_NEAR(sum, 0.0, 1e-6 * magnitude);  // a softmax's gradient has no part along (1, …, 1)
    EXPECT_GT(magnitude, labels / 2);
  }
}

TEST(Transducer, ACertainAlignmentCostsNothing) {
  LatticeBatch batch({{2, 1}}, {0, 1}, 3, 5);
  batch.targets = {1};
  const float sure = 200.0F;
  for (std::int64_t t = 0; t < 2; ++t) {
    for (std::int64_t u = 0; u < 2; ++u) {
      for (std::int64_t k = 0; k < 5; ++k) batch.set(0, t, u, k, 0.0F);
    }
  }
  batch.set(0, 0, 0, 1, sure);  // the label with duration 0; then two blanks of one frame
  batch.set(0, 0, 0, 3, sure);
  for (std::int64_t t = 0; t < 2; ++t) {
    batch.set(0, t, 1, 2, sure);
    batch.set(0, t, 1, 4, sure);
  }
  EXPECT_EQ(batch.losses()[0], 0.0F);
  batch.set(0, 0, 0, 0, -std::numeric_limits<float>::infinity());  // an impossible token
  EXPECT_EQ(batch.losses()[0], 0.0F);
  const auto gradient = batch.gradient();
  for (std::int64_t k = 0; k < 5; ++k) EXPECT_NEAR(batch.element(gradient, 0, 0, 0, k), 0.0F, 1e-30);
}

}  // namespace
}  // namespace test
