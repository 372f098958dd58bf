// Chooses one checkpoint of a run: implements `--checkpoint best|latest|STEP` of every command that reads a
// trained model.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

struct ChosenCheckpoint {
  std::string path;
  std::string why;                   // if the best was chosen: "best by loss: 1.25"; else empty
  std::vector<std::string> skipped;  // a message for each better or newer checkpoint that is not complete
};

// Chooses a checkpoint. `run` is a run's folder, or a checkpoint's folder, which is then the choice. `which`
// is latest, best or the number of a step; empty means latest. The best is determined by the metric that the
// newest evaluated checkpoint names (the run's save_best), or else by that checkpoint's first metric. The
// chosen checkpoint passes verify_checkpoint(), completely or for the given files. If a checkpoint was
// requested by its step and does not pass, that is an error. Errors list the existing checkpoints.
Result<ChosenCheckpoint> choose_checkpoint(const std::string& run, std::string_view which,
                                           std::span<const std::string_view> files = {});

}  // namespace octavo_train
