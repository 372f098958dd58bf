// Generates synthetic clips of an artificial language: features and transcripts depend only on the settings
// and the clip's number. A token is a pattern of three frequency bands whose level rises and falls over the
// token's frames, so that two equal tokens in a row can be told apart. Tokens follow each other with pauses,
// over noise. A clip has the same bits on every machine.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/config/settings.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

inline constexpr std::int64_t kFramesPerSecond = 100;
inline constexpr std::int64_t kShortestToken = 16;  // in frames; two frames of the encoder

// The description of a clip from which its features are computed.
struct ClipSpec {
  std::uint64_t key = 0;  // of the clip's random numbers
  std::int64_t frames = 0;
  std::vector<std::int64_t> tokens;
};

// Returns the number of frames of the longest clip, rounded down. The 1e-6 compensates for binary rounding
// errors, as of 4.35 * 100.
inline std::int64_t clip_frames(const GeneratorSettings& settings) {
  return static_cast<std::int64_t>(settings.seconds * static_cast<double>(kFramesPerSecond) + 1e-6);
}

// Returns clip `number`, with tokens 0 … vocabulary - 1. If `longest` is true, the clip has the maximum
// length.
ClipSpec plan_clip(const GeneratorSettings& settings, std::int64_t vocabulary, std::uint64_t number,
                   bool longest = false);

// Computes the features [frames, bands] of a clip.
void make_features(const GeneratorSettings& settings, const ClipSpec& plan, std::int64_t bands,
                   std::span<float> features);

// Returns the unique text of a token: "ba", "be", …, "bebo". A transcript has spaces between the tokens.
std::string token_text(std::int64_t token);
std::string transcript(std::span<const std::int64_t> tokens);

}  // namespace octavo_train
