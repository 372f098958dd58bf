// One checkpoint of a run by a word: `--checkpoint best|latest|STEP` of every command that reads a trained
// model.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/folder/checkpoint_folder.h"

#include <octavo/status.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

struct ChosenCheckpoint {
  std::string path;
  std::string why;                   // of the best: "best by loss: 1.25"; else empty
  std::vector<std::string> skipped;  // a message for each that would have come first, but is not whole
};

// `run`: a run's folder, or a checkpoint's, which is then the one. `which`: latest, best or the number of a
// step; empty: latest. The best is by the metric that the newest evaluated checkpoint names (the run's
// save_best), or by the first one that it has. The one that is chosen verifies, as a whole or in the given
// files; one that is named by its step must. Errors say which checkpoints are there.
Result<ChosenCheckpoint> choose_checkpoint(const std::string& run, std::string_view which,
                                           std::span<const std::string_view> files = {});

}  // namespace octavo::train
