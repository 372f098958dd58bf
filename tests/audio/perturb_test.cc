// Tests speed and noise perturbation, whose random numbers are counter-based.
// SPDX-License-Identifier: MIT
#include "train/audio/perturb.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace octavo_train {
namespace {

TEST(Perturb, SpeedsAreDrawnEquallyOftenAndByTheDrawAlone) {
  const std::array speeds = {0.9, 1.0, 1.1};
  std::array<int, 3> counts{};
  for (std::uint64_t draw = 0; draw < 3000; ++draw) {
    const double speed = draw_speed(speeds, {7, draw});
    EXPECT_EQ(speed, draw_speed(speeds, {7, draw}));
    for (std::size_t i = 0; i < 3; ++i) counts[i] += speed == speeds[i] ? 1 : 0;
  }
  EXPECT_EQ(counts[0] + counts[1] + counts[2], 3000);
  for (const int count : counts) EXPECT_NEAR(count, 1000, 100);
  int equal = 0;
  for (std::uint64_t draw = 0; draw < 300; ++draw) {
    equal += draw_speed(speeds, {7, draw}) == draw_speed(speeds, {8, draw}) ? 1 : 0;
  }
  EXPECT_LT(equal, 150);  // a different seed gives different speeds
}

TEST(Perturb, NoiseIsDrawnInItsRange) {
  std::array<int, 5> clips{};
  double lowest = 100, highest = 0;
  for (std::uint64_t draw = 0; draw < 5000; ++draw) {
    const NoiseDraw drawn = draw_noise(5, 10, 20, {3, draw});
    ASSERT_GE(drawn.clip, 0);
    ASSERT_LT(drawn.clip, 5);
    ASSERT_GE(drawn.start, 0);
    ASSERT_LT(drawn.start, 1);
    ++clips[static_cast<std::size_t>(drawn.clip)];
    lowest = std::min(lowest, drawn.snr);
    highest = std::max(highest, drawn.snr);
  }
  for (const int count : clips) EXPECT_NEAR(count, 1000, 120);
  EXPECT_NEAR(lowest, 10, 0.05);
  EXPECT_NEAR(highest, 20, 0.05);
}

TEST(Perturb, NoiseHasTheAskedRatioAndRepeats) {
  std::vector<float> voice(1000);
  for (std::size_t i = 0; i < voice.size(); ++i) voice[i] = i % 2 == 0 ? 0.5F : -0.5F;
  const std::vector<float> noise = {0.1F, 0.1F, -0.1F};
  std::vector<float> mixed = voice;
  add_noise(mixed, noise, {.clip = 0, .snr = 20, .start = 0.5});  // starts at the second sample of the noise
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    // The noise is a tenth as loud as the voice.
    ASSERT_NEAR(mixed[i] - voice[i], noise[(i + 1) % 3] / 0.1F * 0.05F, 1e-6);
  }
}

TEST(Perturb, SilenceHasNoRatio) {
  std::vector<float> silent(10, 0), voice(10, 0.5F);
  add_noise(silent, voice, {.clip = 0, .snr = 10, .start = 0});
  EXPECT_EQ(silent, std::vector<float>(10, 0));
  add_noise(voice, silent, {.clip = 0, .snr = 10, .start = 0});
  add_noise(voice, {}, {.clip = 0, .snr = 10, .start = 0});
  EXPECT_EQ(voice, std::vector<float>(10, 0.5F));
}

}  // namespace
}  // namespace octavo_train
