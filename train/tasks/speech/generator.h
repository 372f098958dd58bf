// Clips of a language that nobody speaks: features and transcripts as functions of numbers. A token is a
// pattern of three bands, loud and quiet again over its frames, so that two equal ones in a row are heard as
// two; tokens follow each other, with pauses, over noise. The same clip has the same bits everywhere.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/settings.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

inline constexpr std::int64_t kFramesPerSecond = 100;
inline constexpr std::int64_t kShortestToken = 16;  // frames: two of the encoder's

// What a clip is before its features are made.
struct ClipPlan {
  std::uint64_t key = 0;  // of its random numbers
  std::int64_t frames = 0;
  std::vector<std::int64_t> tokens;
};

// Of the longest clip; rounded down, but for 4.35 * 100.
inline std::int64_t clip_frames(const GeneratorSettings& settings) {
  return static_cast<std::int64_t>(settings.seconds * static_cast<double>(kFramesPerSecond) + 1e-6);
}

// Clip `number` of tokens 0 … vocabulary - 1; `longest`: as long as any, whatever its number says.
ClipPlan plan_clip(const GeneratorSettings& settings, std::int64_t vocabulary, std::uint64_t number,
                   bool longest = false);

// The features of its frames, [frames, bands].
void make_features(const GeneratorSettings& settings, const ClipPlan& plan, std::int64_t bands,
                   std::span<float> features);

// What a token is written as: "ba", "be", …, "bebo"; no two are equal. A transcript has spaces between them.
std::string token_text(std::int64_t token);
std::string transcript(std::span<const std::int64_t> tokens);

}  // namespace octavo::train
