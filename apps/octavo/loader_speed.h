// How fast recordings are decoded: clips of a manifest, or of our own making, by several threads.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/audio/audio.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::cli {

// Clips that are measured together.
struct ClipSet {
  std::string name;  // "FLAC 16000 Hz", or the manifest's path
  std::vector<train::AudioRequest> clips;
};

// Writes `count` clips into `folder` by these extension and rate: a voice of tones over noise, each another.
// Throws a Failure.
ClipSet make_clips(const std::string& folder, const std::string& extension, int rate, int count,
                   double seconds);

struct LoaderSpeed {
  std::int64_t clips = 0, samples = 0;  // read without an error; at the asked rate
  std::int64_t bad = 0;
  std::string error;   // the first of the bad ones
  double elapsed = 0;  // seconds
};

// Reads them in their order, again and again, for `seconds`: `workers` threads, each a clip at a time.
// REQUIRES: some clips, workers >= 1.
LoaderSpeed measure_loader(const ClipSet& set, int workers, double seconds);

}  // namespace octavo::cli
