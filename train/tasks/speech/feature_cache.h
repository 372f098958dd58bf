// Features of recordings in a folder, so that later epochs and runs need not decode them again. Each clip is
// a file of its own, which Python's safetensors reads: a tensor `features` [frames, bands] in fp32. Its name
// depends on the clip and on all that makes features, so models with other settings share a folder.
//
// A file that was cut short or changed does not fit its checksum, and one of a recording that was replaced
// does not fit its size and date: the clip is then made again. A run that was stopped finds what it had.
// Where a file cannot be written, as on a full disk, nothing more is, the run goes on, and text() says so. No
// LibTorch; any thread may call what is const.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/feature_tables.h"

#include <octavo/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

// A part of a recording.
struct CachedClip {
  std::string audio;  // its path
  double offset = 0, duration = 0;
};

class FeatureCache {
 public:
  struct Report {
    std::int64_t found = 0, kept = 0;
    std::int64_t stale = 0;  // found, but damaged or of another recording
    std::string problem;     // why nothing more is kept; empty: nothing is wrong
  };

  // Makes the folder where it is missing. An error where it cannot be written to.
  static Result<FeatureCache> open(const std::string& folder, const FeatureSettings& settings,
                                   const FeatureTables& tables);
  FeatureCache(FeatureCache&&) noexcept;
  FeatureCache& operator=(FeatureCache&&) noexcept;
  ~FeatureCache();

  // [frames, bands], row by row; none where they have to be made. A recording that is gone is not missed.
  [[nodiscard]] std::optional<std::vector<float>> find(const CachedClip& clip) const;
  void keep(const CachedClip& clip, std::span<const float> features) const;

  [[nodiscard]] Report report() const;
  [[nodiscard]] std::string text() const;  // a line for the user
  [[nodiscard]] std::string path(const CachedClip& clip) const;

 private:
  struct State;
  explicit FeatureCache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace octavo::train
