// Caches the features of recordings in a folder, so that later epochs and runs do not decode them again. Each
// clip has a separate safetensors file with the tensor `features` [frames, bands] in fp32. The file's name is
// a hash of the clip and of everything that determines the features, so models with different feature
// settings can share a folder.
//
// The features of a clip are computed again if the file does not match its checksum (it was truncated or
// changed), or if the recording's size and modification time differ from those in the file. A resumed run
// finds the files that it wrote before. If a file cannot be written, for example because the disk is full,
// the cache writes no more files, the run continues, and text() reports the problem. No LibTorch. All const
// functions may be called from any thread.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/features/feature_tables.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

// A part of a recording.
struct CachedClip {
  std::string audio;                // the recording's path
  double offset = 0, duration = 0;  // seconds
};

class FeatureCache {
 public:
  struct Report {
    std::int64_t found = 0, kept = 0;  // clips that were read from files, and written to files
    std::int64_t stale = 0;            // files that are damaged or belong to another recording
    std::string problem;               // why no more files are written; empty: there is no problem
  };

  // Opens a cache. Makes the folder if it does not exist, and returns an error if that fails.
  static Result<FeatureCache> open(const std::string& folder, const FeatureSettings& settings,
                                   const FeatureTables& tables);

  // Returns the cached features [frames, bands] in row-major order, or nothing if they must be computed. The
  // recording itself need not exist any more.
  [[nodiscard]] std::optional<std::vector<float>> find(const CachedClip& clip) const;
  // Writes the features [frames, bands] of a clip to the cache.
  void keep(const CachedClip& clip, std::span<const float> features) const;

  [[nodiscard]] Report report() const;
  [[nodiscard]] std::string text() const;                        // a line for the user
  [[nodiscard]] std::string path(const CachedClip& clip) const;  // of the clip's file

 private:
  struct Counts {
    std::mutex mutex;
    Report report;
  };
  FeatureCache() = default;
  void count(std::int64_t Report::*which) const;

  std::string folder_, settings_;
  std::int64_t bands_ = 0;
  std::unique_ptr<Counts> counts_ = std::make_unique<Counts>();
};

}  // namespace octavo_train
