// Splits a manifest in two: one for training, one for evaluation. Clips with the same value of a field (by
// default the recording) stay on the same side. Lines are copied unchanged, except that relative paths are
// adjusted if a part is in another folder.
//
// The held-out part consists of the groups with the lowest seeded hashes, so the order of the lines does not
// matter.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <string>

namespace octavo::recordings {

struct SplitOptions {
  double share = 0.05;                      // share of the clips to hold out, above 0 and below 1
  std::optional<std::int64_t> clips;        // number of clips to hold out instead
  std::string together = "audio_filepath";  // or text, speaker, lang: the field whose clips stay together
  std::uint64_t seed = 1;
};

struct SplitPart {
  std::string lines;
  std::int64_t clips = 0, groups = 0;
  double seconds = 0;
};

struct Split {
  SplitPart train, val;
};

// Reads `manifest`. The parts' lines are meant for files in the given folders. Holds out the fewest groups
// that contain at least the requested clips. Returns an error if no clip would be left to train on, if a line
// is not an entry, or if it lacks the field.
Result<Split> split_manifest(const std::string& manifest, const SplitOptions& plan,
                             const std::string& train_folder, const std::string& val_folder);

}  // namespace octavo::recordings
