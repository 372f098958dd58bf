// A manifest in two: one to train on, one to evaluate on. Clips that belong together (of one recording,
// unless another field is named) are on the same side. Lines are copied as they are; relative paths change
// where a part lies in another folder.
//
// The held-out part is the groups whose hash with the seed is lowest, so the order of the lines does not
// matter.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <string>

namespace octavo::recordings {

enum class SplitField : std::uint8_t { audio, text, speaker, lang };

struct SplitPlan {
  double share = 0.05;                // of the clips that are held out, above 0 and below 1
  std::optional<std::int64_t> clips;  // so many instead
  SplitField together = SplitField::audio;
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

// Reads `manifest`; the parts' lines are for files in the folders given. As many groups are held out as it
// takes to have at least the clips that the plan asks for. An error where nothing would be left to train on,
// a line is no entry, or has no such field.
Result<Split> split_manifest(const std::string& manifest, const SplitPlan& plan,
                             const std::string& train_folder, const std::string& val_folder);

}  // namespace octavo::recordings
