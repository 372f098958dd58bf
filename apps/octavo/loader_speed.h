// Measures how fast several threads decode recordings: clips of a manifest, or generated clips.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/audio/audio.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::cli {

// A set of clips that is measured together.
struct ClipSet {
  std::string name;  // "FLAC 16000 Hz", or the manifest's path
  std::vector<octavo_train::AudioRequest> clips;
};

// Writes `count` clips into `folder`, in the format of `extension` and at `rate` Hz. Each is a different
// voice of tones over noise. Throws a Failure.
ClipSet make_clips(const std::string& folder, const std::string& extension, int rate, int count,
                   double seconds);

struct LoaderSpeed {
  // Clips read without an error, and their samples at the requested rate.
  std::int64_t clips = 0, samples = 0;
  std::int64_t bad = 0;
  std::string error;   // of the first bad clip
  double elapsed = 0;  // seconds
};

// Reads the clips in order, repeatedly, for `seconds` seconds, with `workers` threads that each read one clip
// at a time. REQUIRES: at least one clip, workers >= 1.
LoaderSpeed measure_loader(const ClipSet& set, int workers, double seconds);

}  // namespace octavo::cli
