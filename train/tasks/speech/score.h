// The word errors of a manifest's recordings: in all, by language and speaker, the worst clips, and what
// could not be heard. No LibTorch: what hears is a function.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/listening.h"
#include "train/tasks/speech/manifest.h"
#include "train/tasks/speech/wer.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

struct GroupScore {
  WordErrors errors;
  std::int64_t clips = 0;
  double seconds = 0;

  void add(const WordErrors& more, double duration);
};

struct ScoredClip {
  std::int64_t number = 0;  // of the manifest's entries
  std::string place, audio;
  std::string reference, hypothesis;
  WordErrors errors;
};

// Does not depend on the order in which clips are added.
class Score {
 public:
  explicit Score(std::size_t most_worst) : most_worst_(most_worst) {}

  void add(std::int64_t number, std::string place, const ManifestEntry& entry, std::string heard);
  void add_unheard(LeftOutClip clip) { unheard_.push_back(std::move(clip)); }

  // By the value of a manifest's field; none: clips that do not say. Empty where no clip says.
  using Groups = std::map<std::optional<std::string>, GroupScore>;
  [[nodiscard]] const GroupScore& total() const { return total_; }
  [[nodiscard]] Groups languages() const { return said(languages_); }
  [[nodiscard]] Groups speakers() const { return said(speakers_); }
  // Those with the most errors first; of as many, the shorter one. Clips without errors are none.
  [[nodiscard]] const std::vector<ScoredClip>& worst() const { return worst_; }
  [[nodiscard]] const std::vector<LeftOutClip>& unheard() const { return unheard_; }

 private:
  static Groups said(const Groups& groups);

  std::size_t most_worst_;
  GroupScore total_;
  Groups languages_, speakers_;
  std::vector<ScoredClip> worst_;
  std::vector<LeftOutClip> unheard_;
};

struct ScoreOptions {
  std::optional<std::int64_t> limit = {};  // the first so many clips of the manifest; none: all
  std::size_t worst = 10;
  int rate = 16000;  // of the samples that are heard
  ListeningOptions listening = {};
};

struct ScoreEvents {
  std::function<bool()> stop;                                        // looked at after each batch
  std::function<void(std::int64_t clips, const GroupScore&)> heard;  // after each clip: how many are done
};

struct ManifestScore {
  Score score;
  std::int64_t clips = 0;       // that were to be heard
  std::int64_t clips_done = 0;  // fewer where `stop` asked for an end
};

// A clip that cannot be read is listed and keeps no other. Throws what `hear` and the events throw.
ManifestScore score_manifest(const Manifest& manifest, const HearBatch& hear, const ScoreOptions& options,
                             const ScoreEvents& events);

}  // namespace octavo::train
