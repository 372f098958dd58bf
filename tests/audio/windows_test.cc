// Tests long recordings: windows cover them, and labels recognized twice in an overlap appear once in the
// result.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace octavo_train {
namespace {

using testing::ElementsAre;

TEST(Windows, CoverARecordingAndOverlap) {
  EXPECT_THAT(cut_windows(1, 250, 25), ElementsAre(RecognitionWindow{0, 1}));
  EXPECT_THAT(cut_windows(300, 250, 25), ElementsAre(RecognitionWindow{0, 300}));
  EXPECT_THAT(cut_windows(301, 250, 25), ElementsAre(RecognitionWindow{0, 176}, RecognitionWindow{125, 176}));
  EXPECT_THAT(cut_windows(7, 2, 0), ElementsAre(RecognitionWindow{0, 2}, RecognitionWindow{1, 2},
                                                RecognitionWindow{3, 2}, RecognitionWindow{5, 2}));
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

// Returns the fake transcript of one window: the labels in it, shifted by up to `jitter` frames. Within
// `deaf` frames of an edge inside the recording, some labels are missing or replaced.
Transcript transcribe(const Transcript& all, const RecognitionWindow& window, std::int64_t frames,
                      std::int64_t jitter, std::int64_t deaf, std::mt19937& random) {
  Transcript out;
  for (const Emission& each : all) {
    std::int64_t frame =
        each.frame - window.first + std::uniform_int_distribution<std::int64_t>(-jitter, jitter)(random);
    if (each.frame < window.first || each.frame >= window.end()) continue;
    frame = std::clamp<std::int64_t>(frame, out.empty() ? 0 : out.back().frame, window.frames - 1);
    const bool near_begin = window.first > 0 && each.frame < window.first + deaf;
    const bool near_end = window.end() < frames && each.frame >= window.end() - deaf;
    Emission emission{each.token, frame, each.duration};
    if (near_begin || near_end) {
      if (random() % 3 == 0) continue;
      if (random() % 3 == 0) emission.token += 1000;  // replaced by another label
    }
    out.push_back(emission);
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
    std::vector<RecognizedWindow> recognized;
    for (const RecognitionWindow& window : cut_windows(frames, 100, 25))
      recognized.push_back({window, transcribe(all, window, frames, 1, 12, random)});
    ASSERT_GT(recognized.size(), 3U);
    const Transcript merged = merge_windows(recognized, begins);
    EXPECT_EQ(tokens_of(merged), tokens_of(all)) << "seed " << seed;
    for (std::size_t i = 1; i < merged.size(); ++i) EXPECT_GE(merged[i].frame, merged[i - 1].frame);
  }
}

Transcript merged(const Transcript& a, const Transcript& b) {
  return merge_windows({{{0, 100}, a}, {{60, 100}, b}}, begins);  // the overlap is frames 60 to 100
}

TEST(Windows, TheSeamIsWhereBothHaveTheSame) {
  // The label nearest to the middle, 80, is the seam: the labels after it are those of the second window.
  EXPECT_THAT(merged({{101, 79, 0}, {1, 80, 2}, {102, 90, 1}}, {{101, 17, 1}, {102, 31, 1}, {103, 50, 1}}),
              ElementsAre(Emission{101, 79, 0}, Emission{102, 91, 1}, Emission{103, 110, 1}));
  // Equal labels at different times are separate labels.
  EXPECT_THAT(tokens_of(merged({{101, 66, 1}, {101, 76, 1}}, {{101, 26, 1}})), ElementsAre(101, 101, 101));
}

TEST(Windows, WithoutACommonLabelItIsBetweenWords) {
  const auto tokens = [](const Transcript& a, const Transcript& b) { return tokens_of(merged(a, b)); };
  EXPECT_THAT(
      tokens({{101, 70, 1}, {1, 79, 1}, {2, 81, 1}, {102, 95, 1}}, {{105, 17, 1}, {3, 21, 1}, {106, 28, 1}}),
      ElementsAre(101, 1, 2, 106));
  // Both windows recognize the one word differently: the first window's label stays.
  EXPECT_THAT(tokens({{101, 78, 3}}, {{104, 19, 1}, {105, 24, 1}}), ElementsAre(101, 105));
  // Each window places the word beyond the seam, on the other's side: the word is kept nevertheless.
  EXPECT_THAT(tokens({{101, 82, 1}}, {{104, 18, 1}, {105, 50, 1}}), ElementsAre(104, 105));
  // One window recognized nothing.
  EXPECT_THAT(tokens({}, {{101, 30, 1}}), ElementsAre(101));
  EXPECT_THAT(tokens({{101, 30, 1}, {102, 70, 1}}, {}), ElementsAre(101, 102));
  // The language has no spaces.
  EXPECT_THAT(tokens({{1, 50, 1}, {2, 85, 1}}, {{3, 20, 1}, {4, 60, 1}, {5, 90, 1}}),
              ElementsAre(1, 2, 4, 5));
}

}  // namespace
}  // namespace octavo_train
