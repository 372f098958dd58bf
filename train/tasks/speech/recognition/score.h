// Computes word error rates: of a pair of texts, and of a manifest's recordings in total, by language, by
// speaker and for the worst clips. Also lists the clips that could not be transcribed. Does not use LibTorch:
// recognition is a function argument.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/word_diff.h"
#include "train/tasks/speech/manifest/manifest.h"
#include "train/tasks/speech/recognition/batch_recognition.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// The edits between the words of references and of hypotheses (train/base/word_diff.h), summed over clips.
struct WordErrors {
  std::int64_t substitutions = 0, deletions = 0, insertions = 0;
  std::int64_t words = 0;  // words of the references

  [[nodiscard]] std::int64_t errors() const { return substitutions + deletions + insertions; }
  // Returns the errors per word, which may exceed 1 if there are many insertions. Without reference words it
  // is 0, or infinite if there are errors.
  [[nodiscard]] double rate() const;
  WordErrors& operator+=(const WordErrors& other);
  friend bool operator==(const WordErrors&, const WordErrors&) = default;
};

WordErrors count_errors(const std::vector<AlignedWord>& alignment);
WordErrors word_errors(std::string_view reference, std::string_view hypothesis);

struct GroupScore {
  WordErrors errors;
  std::int64_t clips = 0;
  double seconds = 0;

  void add(const WordErrors& more, double duration);
};

struct ScoredClip {
  std::int64_t number = 0;  // index of the manifest's entry
  std::string place, audio;
  std::string reference, hypothesis;
  WordErrors errors;
};

// Accumulates the word errors of clips. The result does not depend on the order in which clips are added.
class Score {
 public:
  explicit Score(std::size_t most_worst) : most_worst_(most_worst) {}

  void add(std::int64_t number, std::string place, const ManifestEntry& entry, std::string hypothesis);
  void add_failed(SkippedClip clip) { failed_.push_back(std::move(clip)); }

  // Scores by the value of a manifest's field. The key nullopt holds the clips without the field. Empty if no
  // clip has the field.
  using Groups = std::map<std::optional<std::string>, GroupScore>;
  [[nodiscard]] const GroupScore& total() const { return total_; }
  [[nodiscard]] Groups languages() const { return named(languages_); }
  [[nodiscard]] Groups speakers() const { return named(speakers_); }
  // Returns the clips with the most errors, in descending order of errors; among equals, clips with fewer
  // reference words come first. Clips without errors are not included.
  [[nodiscard]] const std::vector<ScoredClip>& worst() const { return worst_; }
  [[nodiscard]] const std::vector<SkippedClip>& failed() const { return failed_; }

 private:
  static Groups named(const Groups& groups);

  std::size_t most_worst_;
  GroupScore total_;
  Groups languages_, speakers_;
  std::vector<ScoredClip> worst_;
  std::vector<SkippedClip> failed_;
};

struct ScoreOptions {
  std::optional<std::int64_t> limit = {};  // number of clips, from the first one on; nullopt: all
  std::size_t worst = 10;
  int rate = 16000;  // sample rate of the audio passed to recognition, in Hz
  BatchRecognitionOptions batches = {};
};

struct ScoreEvents {
  std::function<bool()> stop;                                       // queried before each batch; true: stop
  std::function<void(std::int64_t clips, const GroupScore&)> done;  // after each clip: clips done so far
};

struct ManifestScore {
  Score score;
  std::int64_t clips = 0;       // clips to transcribe
  std::int64_t clips_done = 0;  // less than `clips` if `stop` returned true
};

// Transcribes the clips of a manifest and computes their word errors. A clip that cannot be read is listed
// and does not stop the others. Throws what `transcribe` and the events throw.
ManifestScore score_manifest(const Manifest& manifest, const TranscribeBatch& transcribe,
                             const ScoreOptions& options, const ScoreEvents& events);

}  // namespace octavo_train
