// Surveys manifests and their recordings by decoding every clip. Findings are facts about single clips, each
// with its line in the manifest; the other results are counts.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/recordings/parallel.h"

#include "train/tasks/speech/manifest/manifest.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <octavo/status.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace octavo::recordings {

// Kinds are in the order of the page: findings that spoil a run come first.
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
  const char* meaning;  // a sentence for the page
  bool serious;         // a run stops at the clip, skips it, or learns something wrong from it
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
  octavo_train::ManifestReport manifest;
  Amount decoded;
  std::array<Findings, kKinds> findings;
  std::vector<float> durations, levels, peaks, pace;  // seconds; dBFS (RMS); dBFS; characters per second
  std::vector<float> tokens;                          // per clip; empty without a tokenizer
  std::map<std::string, Amount> rates, formats, channels, languages, speakers;
  std::map<std::string, std::int64_t> characters;  // number of occurrences
  std::map<std::string, std::int64_t> unknown;     // characters without a token
  double audio_seconds_per_second = 0;             // decoding speed

  [[nodiscard]] const Findings& of(Kind kind) const { return findings[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] std::int64_t serious() const;
};

struct SurveyOptions {
  octavo_train::ManifestOptions options;
  const octavo_train::Tokenizer* tokenizer = nullptr;  // null: no character is a finding
  int threads = 0;
};

// A clip beyond one of these thresholds is a finding.
inline constexpr double kSilentPeak = 1e-3;     // -60 dBFS
inline constexpr double kClippedLevel = 0.999;  // share of full scale
inline constexpr double kClippedShare = 1e-3;   // share of the samples
inline constexpr double kFastest = 35;          // characters per second
inline constexpr double kMoreAudio = 1;         // seconds of a recording that no clip of the manifest covers

Result<Survey> survey_recordings(std::span<const std::string> manifests, const SurveyOptions& plan,
                                 const std::function<void(std::int64_t done, std::int64_t all)>& advance);

// Returns an HTML page about the survey, which needs no network.
std::string survey_page(const std::string& title, const Survey& survey);

}  // namespace octavo::recordings
