// Long recordings: windows cover them, and what was heard twice in an overlap is there once.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace octavo::train {
namespace {

using testing::ElementsAre;

TEST(Windows, CoverARecordingAndOverlap) {
  EXPECT_THAT(cut_windows(1, 250, 25), ElementsAre(HearingWindow{0, 1}));
  EXPECT_THAT(cut_windows(300, 250, 25), ElementsAre(HearingWindow{0, 300}));
  EXPECT_THAT(cut_windows(301, 250, 25), ElementsAre(HearingWindow{0, 176}, HearingWindow{125, 176}));
  EXPECT_THAT(cut_windows(7, 2, 0), ElementsAre(HearingWindow{0, 2}, HearingWindow{1, 2}, HearingWindow{3, 2},
                                                HearingWindow{5, 2}));
  for (const std::int64_t longest : {1, 7, 250}) {
    for (const std::int64_t margin : {0, 1, 25}) {
      for (std::int64_t frames = 1; frames < 40000; frames = frames * 5 / 3 + 1) {
        const auto windows = cut_windows(frames, longest, margin);
        EXPECT_EQ(windows.front().first, 0);
        EXPECT_EQ(windows.back().end(), frames);
        for (std::size_t i = 0; i < windows.size(); ++i) {
          EXPECT_EQ(windows[i].frames, windows[0].frames);
          EXPECT_LE(windows[i].frames, longest + 2 * margin);
          if (i == 0) continue;
          EXPECT_GE(windows[i - 1].end() - windows[i].first, 2 * margin) << frames;
        }
      }
    }
  }
}

// Tokens from 100 on begin a word.
bool begins(std::int64_t token) { return token >= 100; }

std::vector<std::int64_t> tokens_of(const Transcript& transcript) {
  std::vector<std::int64_t> out;
  for (const Emission& each : transcript) out.push_back(each.token);
  return out;
}

// What a window hears of a recording: labels in it, timed by up to `jitter` frames otherwise, and near an
// edge that is none of the recording's some are missed or taken for others.
Transcript hear(const Transcript& all, const HearingWindow& window, std::int64_t frames, std::int64_t jitter,
                std::int64_t deaf, std::mt19937& random) {
  Transcript out;
  for (const Emission& each : all) {
    std::int64_t frame =
        each.frame - window.first + std::uniform_int_distribution<std::int64_t>(-jitter, jitter)(random);
    if (each.frame < window.first || each.frame >= window.end()) continue;
    frame = std::clamp<std::int64_t>(frame, out.empty() ? 0 : out.back().frame, window.frames - 1);
    const bool near_begin = window.first > 0 && each.frame < window.first + deaf;
    const bool near_end = window.end() < frames && each.frame >= window.end() - deaf;
    Emission heard{each.token, frame, each.duration};
    if (near_begin || near_end) {
      if (random() % 3 == 0) continue;
      if (random() % 3 == 0) heard.token += 1000;  // another word
    }
    out.push_back(heard);
  }
  return out;
}

TEST(Windows, NoLabelIsLostOrDoubled) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const std::int64_t frames = 400 + static_cast<std::int64_t>(random() % 2000);
    Transcript all;
    for (std::int64_t frame = 0; frame < frames; frame += 1 + static_cast<std::int64_t>(random() % 6))
      all.push_back({static_cast<std::int64_t>(random() % 140), frame, 1});
    std::vector<WindowHeard> heard;
    for (const HearingWindow& window : cut_windows(frames, 100, 25))
      heard.push_back({window, hear(all, window, frames, 1, 12, random)});
    ASSERT_GT(heard.size(), 3U);
    const Transcript merged = merge_windows(heard, begins);
    EXPECT_EQ(tokens_of(merged), tokens_of(all)) << "seed " << seed;
    for (std::size_t i = 1; i < merged.size(); ++i) EXPECT_GE(merged[i].frame, merged[i - 1].frame);
  }
}

Transcript merged(const Transcript& a, const Transcript& b) {
  return merge_windows({{{0, 100}, a}, {{60, 100}, b}}, begins);  // the overlap is 60 to 100
}

TEST(Windows, TheSeamIsWhereBothHeardTheSame) {
  // What follows the label that is nearest to the middle, 80, is as the second window heard it.
  EXPECT_THAT(merged({{101, 79, 0}, {1, 80, 2}, {102, 90, 1}}, {{101, 17, 1}, {102, 31, 1}, {103, 50, 1}}),
              ElementsAre(Emission{101, 79, 0}, Emission{102, 91, 1}, Emission{103, 110, 1}));
  // The same label at another time is another one.
  EXPECT_THAT(tokens_of(merged({{101, 66, 1}, {101, 76, 1}}, {{101, 26, 1}})), ElementsAre(101, 101, 101));
}

TEST(Windows, WithoutACommonLabelItIsBetweenWords) {
  const auto tokens = [](const Transcript& a, const Transcript& b) { return tokens_of(merged(a, b)); };
  EXPECT_THAT(
      tokens({{101, 70, 1}, {1, 79, 1}, {2, 81, 1}, {102, 95, 1}}, {{105, 17, 1}, {3, 21, 1}, {106, 28, 1}}),
      ElementsAre(101, 1, 2, 106));
  // One word, heard as two: the first window's stays.
  EXPECT_THAT(tokens({{101, 78, 3}}, {{104, 19, 1}, {105, 24, 1}}), ElementsAre(101, 105));
  // Both begin it on the other's side: it is there all the same.
  EXPECT_THAT(tokens({{101, 82, 1}}, {{104, 18, 1}, {105, 50, 1}}), ElementsAre(104, 105));
  // One heard nothing.
  EXPECT_THAT(tokens({}, {{101, 30, 1}}), ElementsAre(101));
  EXPECT_THAT(tokens({{101, 30, 1}, {102, 70, 1}}, {}), ElementsAre(101, 102));
  // A language without spaces.
  EXPECT_THAT(tokens({{1, 50, 1}, {2, 85, 1}}, {{3, 20, 1}, {4, 60, 1}, {5, 90, 1}}),
              ElementsAre(1, 2, 4, 5));
}

}  // namespace
}  // namespace octavo::train
