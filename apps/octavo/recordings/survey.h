// What is in manifests and the recordings that they name: every clip is decoded and looked at. Findings are
// facts about single clips, each with the line that has it; the rest are counts.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/recordings/parallel.h"

#include "train/tasks/speech/manifest.h"
#include "train/tasks/speech/tokenizer.h"

#include <octavo/status.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace octavo::recordings {

// The order is that of the page: what spoils a run comes first.
enum class Kind : std::uint8_t {
  bad_line,
  unreadable,
  silent,
  two_texts,
  unknown,
  no_text,
  fast,
  clipped,
  twice,
  more_audio,
  left_out
};
inline constexpr std::size_t kKinds = 11;

struct KindWords {
  const char* name;     // "unreadable"
  const char* meaning;  // a sentence for people
  bool serious;         // a run stops at it, skips it, or learns something wrong from it
};
const KindWords& words_of(Kind kind);

struct Finding {
  std::string place, audio, reason;
};

struct Findings {
  std::int64_t count = 0;
  std::vector<Finding> first;  // at most kListed
};
inline constexpr std::size_t kListed = 100;

struct Amount {
  std::int64_t clips = 0;
  double seconds = 0;
};

struct Survey {
  train::ManifestReport manifest;
  Amount heard;  // clips that could be decoded
  std::array<Findings, kKinds> findings;
  std::vector<float> durations, levels, peaks, pace;  // seconds; dBFS (RMS); dBFS; characters a second
  std::vector<float> tokens;                          // of a clip; empty without a tokenizer
  std::map<std::string, Amount> rates, formats, channels, languages, speakers;
  std::map<std::string, std::int64_t> characters;  // how often each comes
  std::map<std::string, std::int64_t> unknown;     // those that the tokenizer does not have
  double audio_seconds_per_second = 0;             // how fast decoding was

  [[nodiscard]] const Findings& of(Kind kind) const { return findings[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] std::int64_t serious() const;
};

struct SurveyPlan {
  train::ManifestOptions options;
  const train::Tokenizer* tokenizer = nullptr;  // none: any character is right
  int threads = 0;
};

// Beyond these a clip is a finding.
inline constexpr double kSilentPeak = 1e-3;     // -60 dBFS
inline constexpr double kClippedLevel = 0.999;  // of full scale
inline constexpr double kClippedShare = 1e-3;   // of the samples
inline constexpr double kFastest = 35;          // characters a second
inline constexpr double kMoreAudio = 1;         // seconds of a recording that no clip of the manifest has

Result<Survey> survey_recordings(std::span<const std::string> manifests, const SurveyPlan& plan,
                                 const std::function<void(std::int64_t done, std::int64_t all)>& advance);

}  // namespace octavo::recordings
