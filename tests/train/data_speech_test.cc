// Tests the clips of the task `speech` and the masks of SpecAugment, which are functions of numbers alone.
// SPDX-License-Identifier: MIT
#include "train/data/mix.h"
#include "train/tasks/speech/data/generator.h"
#include "train/tasks/speech/features/spec_augment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace octavo_train {
namespace {

constexpr std::int64_t kBands = 24;

GeneratorSettings settings() {
  GeneratorSettings out;
  out.seconds = 3;
  out.tokens = 9;
  out.vary = 0.5;
  out.noise = 0.2;
  out.seed = 7;
  return out;
}

std::vector<float> features(const GeneratorSettings& all, const ClipSpec& plan, std::int64_t bands = kBands) {
  std::vector<float> out(static_cast<std::size_t>(plan.frames * bands));
  make_features(all, plan, bands, out);
  return out;
}

TEST(Clips, AreFunctionsOfTheirNumbers) {
  const GeneratorSettings all = settings();
  std::set<std::int64_t> lengths;
  std::map<std::int64_t, int> heard;
  for (std::uint64_t number = 0; number < 200; ++number) {
    const ClipSpec plan = plan_clip(all, 5, number), again = plan_clip(all, 5, number);
    EXPECT_EQ(plan.tokens, again.tokens);
    EXPECT_EQ(features(all, plan), features(all, again));
    EXPECT_GE(plan.frames, 150);
    EXPECT_LE(plan.frames, 300);
    EXPECT_EQ(static_cast<std::int64_t>(plan.tokens.size()), 9 * plan.frames / 300);
    lengths.insert(plan.frames);
    for (const std::int64_t token : plan.tokens) ++heard[token];
  }
  EXPECT_GT(lengths.size(), 50U);
  ASSERT_EQ(heard.size(), 5U) << "all tokens, and no others";
  EXPECT_EQ(heard.begin()->first, 0);
  for (const auto& [token, count] : heard) EXPECT_GT(count, 150) << token;
  GeneratorSettings other = all;
  other.seed = 8;
  EXPECT_NE(plan_clip(all, 5, 3).tokens, plan_clip(other, 5, 3).tokens);
  const ClipSpec longest = plan_clip(all, 5, 3, true);
  EXPECT_EQ(longest.frames, clip_frames(all));
  EXPECT_EQ(longest.tokens.size(), 9U);
  other.seconds = 0.16;
  other.tokens = 1;
  other.vary = 0.99;
  EXPECT_EQ(plan_clip(other, 5, 1).frames, kShortestToken);
  other.seconds = 4.35;
  EXPECT_EQ(clip_frames(other), 435);
}

// Hashes the bits of a clip, which must be the same on every machine and with every compiler.
TEST(Clips, HaveTheSameBitsEverywhere) {
  const GeneratorSettings all = settings();
  std::uint64_t sum = 0;
  for (const float each : features(all, plan_clip(all, 100, 42))) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &each, sizeof bits);
    sum = mix(sum ^ bits);
  }
  EXPECT_EQ(sum, 5319463873117265943U);
}

TEST(Clips, NoiseIsAsLoudAsAsked) {
  GeneratorSettings all = settings();
  all.noise = 0.5;
  all.seconds = 20;
  const ClipSpec loud = plan_clip(all, 5, 1, true);
  const std::vector<float> noisy = features(all, loud);
  all.noise = 0;
  const std::vector<float> clean = features(all, loud);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < clean.size(); ++i) {
    const auto off = static_cast<double>(noisy[i] - clean[i]);
    sum += off;
    squares += off * off;
  }
  const auto count = static_cast<double>(clean.size());
  EXPECT_NEAR(sum / count, 0, 4 * 0.5 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.5, 0.01);
}

// Without noise, each frame is nearest to the pattern of its own token.
TEST(Clips, TokensCanBeToldApart) {
  GeneratorSettings all = settings();
  all.noise = 0;
  all.tokens = 1;
  constexpr std::int64_t kTokens = 32, kWide = 80;
  std::vector<std::vector<float>> loudest(kTokens);
  for (std::int64_t token = 0; token < kTokens; ++token) {
    const ClipSpec plan{.key = 1, .frames = 40, .tokens = {token}};
    const std::vector<float> made = features(all, plan, kWide);
    loudest[static_cast<std::size_t>(token)].assign(made.begin() + 22 * kWide, made.begin() + 23 * kWide);
  }
  for (std::size_t a = 0; a < kTokens; ++a) {
    double own = 0;
    for (const float each : loudest[a]) own += static_cast<double>(each * each);
    EXPECT_GT(own, 4) << a;
    for (std::size_t b = 0; b < a; ++b) {
      double apart = 0;
      for (std::size_t i = 0; i < kWide; ++i)
        apart += std::pow(static_cast<double>(loudest[a][i] - loudest[b][i]), 2);
      EXPECT_GT(apart, 2) << a << " and " << b;
    }
  }
}

TEST(Clips, EqualTokensInARowHaveAGap) {
  GeneratorSettings all = settings();
  all.noise = 0;
  const ClipSpec plan{.key = 5, .frames = 80, .tokens = {3, 3}};
  const std::vector<float> made = features(all, plan);
  const auto power = [&](std::int64_t frame) {
    double out = 0;
    for (std::int64_t band = 0; band < kBands; ++band)
      out += std::pow(static_cast<double>(made[static_cast<std::size_t>(frame * kBands + band)]), 2);
    return out;
  };
  EXPECT_LT(power(39) + power(40), 0.1 * (power(22) + power(62)));
}

TEST(Clips, TextOfTokens) {
  EXPECT_EQ(token_text(0), "ba");
  EXPECT_EQ(token_text(1), "be");
  EXPECT_EQ(token_text(5), "da");
  EXPECT_EQ(token_text(79), "zu");
  EXPECT_EQ(token_text(80), "beba");
  EXPECT_EQ(transcript(std::vector<std::int64_t>{0, 5, 80}), "ba da beba");
  EXPECT_EQ(transcript({}), "");
  std::set<std::string> all;
  for (std::int64_t token = 0; token < 8192; ++token) all.insert(token_text(token));
  EXPECT_EQ(all.size(), 8192U);
}

SpecAugmentSettings nemo() {
  return {.freq_masks = 2, .time_masks = 10, .freq_width = 27, .time_width = 0.05};
}

TEST(SpecAugment, PartsAreWithinNemosLimitsAndReachThem) {
  constexpr std::int64_t kFrames = 1999, kAll = 128;
  std::int64_t widest = 0, narrowest = 1000, first = 1000, last = 0, high = 0, wide = 0;
  for (std::uint64_t draw = 0; draw < 2000; ++draw) {
    const Masks masks = draw_masks(nemo(), kFrames, kAll, {1, 2, draw});
    ASSERT_EQ(masks.time.size(), 10U);
    ASSERT_EQ(masks.frequency.size(), 2U);
    for (const MaskSpan& each : masks.time) {
      ASSERT_GE(each.start, 0);
      ASSERT_LE(each.end, kFrames);
      widest = std::max(widest, each.end - each.start);
      narrowest = std::min(narrowest, each.end - each.start);
      first = std::min(first, each.start);
      last = std::max(last, each.end);
    }
    for (const MaskSpan& each : masks.frequency) {
      ASSERT_GE(each.start, 0);
      ASSERT_LE(each.end, kAll);
      high = std::max(high, each.end);
      wide = std::max(wide, each.end - each.start);
    }
  }
  EXPECT_EQ(widest, 99) << "floor(r * 0.05 * 1999), r < 1";
  EXPECT_EQ(narrowest, 0);
  EXPECT_EQ(first, 0);
  EXPECT_GE(last, kFrames - 2);
  EXPECT_EQ(wide, 26);
  EXPECT_GE(high, kAll - 1);
}

TEST(SpecAugment, DependsOnSeedStepAndDrawAlone) {
  const MaskKey key{5, 6, 7};
  const auto time = [](const MaskKey& of, std::int64_t frames = 800) {
    return draw_masks(nemo(), frames, 80, of).time;
  };
  EXPECT_EQ(time(key), time(key));
  EXPECT_NE(time(key), time({5, 6, 8}));
  EXPECT_NE(time(key), time({5, 7, 7}));
  EXPECT_NE(time(key), time({6, 6, 7}));
  EXPECT_NE(time(key), time(key, 700));
}

TEST(SpecAugment, WidthsInFramesAndShortClips) {
  SpecAugmentSettings frames = nemo();
  frames.time_width = 100;
  std::int64_t widest = 0;
  for (std::uint64_t draw = 0; draw < 500; ++draw) {
    for (const MaskSpan& each : draw_masks(frames, 400, 80, {1, 1, draw}).time)
      widest = std::max(widest, each.end - each.start);
    // A mask wider than the clip or the bands is cut to them.
    const Masks tiny = draw_masks(frames, 3, 8, {1, 1, draw});
    for (const MaskSpan& each : tiny.time) ASSERT_TRUE(each.start >= 0 && each.end <= 3);
    for (const MaskSpan& each : tiny.frequency) ASSERT_TRUE(each.start >= 0 && each.end <= 8);
  }
  EXPECT_EQ(widest, 99);
  const Masks none = draw_masks({}, 100, 80, {1, 1, 1});
  EXPECT_TRUE(none.time.empty() && none.frequency.empty());
}

}  // namespace
}  // namespace octavo_train
