// A ClipSource that reads the recordings of manifests. data.bad_clips decides whether a bad clip ends the run
// or is skipped and listed.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/length_buckets.h"
#include "train/tasks/speech/data/clip_reader.h"
#include "train/tasks/speech/data/clip_source.h"
#include "train/tasks/speech/data/skipped_clips.h"
#include "train/tasks/speech/features/feature_cache.h"
#include "train/tasks/speech/features/featurizer.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

class Recordings : public ClipSource {
 public:
  // Opens the manifests, tokenizer and features that the config's `data` and `model` keys name. Reads no
  // recording. `origin` is the archive of the model, or null.
  static Result<std::unique_ptr<ClipSource>> open(const Settings& settings, const SpeechModelSettings& model,
                                                  const SpeechArchive* origin);

  [[nodiscard]] std::int64_t samples() const override { return train_.size(); }
  [[nodiscard]] std::int64_t validation_samples() const override;
  [[nodiscard]] nlohmann::ordered_json record() const override;
  [[nodiscard]] DataChange compare(const nlohmann::ordered_json& record) const override;
  [[nodiscard]] std::shared_ptr<const Batches> batches() const override { return plan_; }
  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override;
  [[nodiscard]] Batch largest(const Order& order, std::int64_t rows) const override;
  [[nodiscard]] Batch largest_to_evaluate(const Order& order, std::int64_t rows) const override;
  [[nodiscard]] Batch validation(std::int64_t first, std::int64_t rows) const override;
  [[nodiscard]] std::string clip_name(std::uint64_t number) const override;
  [[nodiscard]] std::string text(std::span<const std::int64_t> tokens) const override;
  [[nodiscard]] ClipSize longest() const override { return longest_; }
  [[nodiscard]] std::int64_t most_rows(std::int64_t rows) const override;
  [[nodiscard]] TaskText describe() const override;
  Status set_run_folder(const std::string& folder) override { return skipped_.list_in(folder); }
  [[nodiscard]] const FeatureSettings* features() const override { return &features_; }
  [[nodiscard]] FeatureTables feature_tables() const override { return tables_; }
  [[nodiscard]] const Tokenizer* tokenizer() const override { return &tokenizer_; }

 private:
  struct Opened;
  explicit Recordings(Opened opened);

  [[nodiscard]] ClipCost cost(std::int64_t sample) const;
  struct Longest {
    double seconds;
    std::int64_t tokens = 0;
  };
  [[nodiscard]] Longest longest_of(const Manifest& manifest) const;
  [[nodiscard]] ClipSize size_of(const Longest& clip) const;
  [[nodiscard]] ClipSize find_longest() const;
  [[nodiscard]] Batch of_noise(const ClipSize& size, const Order& order, std::int64_t rows) const;
  [[nodiscard]] double longest_seconds() const;
  // Returns the clip, or the reason why it is bad. With data.cache_features the clip has its features.
  [[nodiscard]] Result<LoadedClip> heard(const ManifestEntry& entry, std::optional<std::uint64_t> draw) const;
  // Returns the clip, or nullopt if it is bad and is skipped. Throws octavo::Error if it is bad and
  // data.bad_clips is error.
  [[nodiscard]] std::optional<LoadedClip> clip(const Manifest& manifest, std::int64_t index,
                                               std::optional<std::uint64_t> draw) const;

  RecordingSettings settings_;
  Tokenizer tokenizer_;
  FeatureSettings features_;
  FeatureTables tables_;
  std::optional<FeatureCache> cache_;     // data.cache_features
  std::optional<Featurizer> featurizer_;  // computes the features that the cache stores
  Manifest train_, validation_;
  std::optional<Manifest> noise_;
  std::int64_t most_evaluated_;
  std::unique_ptr<const ClipReader> reader_;
  std::shared_ptr<const LengthBuckets> plan_;
  ClipSize longest_;
  mutable SkippedClips skipped_;
};

}  // namespace octavo_train
