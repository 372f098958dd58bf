// Finds, verifies and removes the checkpoints of a run folder. The names in it mean:
//
//   checkpoint-STEP            a complete checkpoint
//   latest                     a link to the checkpoint written last
//   .checkpoint-STEP.partial   being written or removed: never read, removed by the next writer
//   .checkpoint-STEP.replaced  the previous checkpoint of a step, while a new one replaces it; it counts as
//                              checkpoint-STEP if a crash left no checkpoint-STEP
//
// If a leftover cannot be removed (it belongs to another user, or is open on another node of a network file
// system), the next writer uses .checkpoint-STEP.partial.1 and so on, and warns.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

struct CheckpointRef {
  std::int64_t step = 0;
  std::string path;
  friend bool operator==(const CheckpointRef&, const CheckpointRef&) = default;
};

// Returns the checkpoints, newest (highest step) first, by name only. Returns an empty list if the run folder
// does not exist or cannot be read.
std::vector<CheckpointRef> list_checkpoints(const std::string& run_folder);

// Checks that every file listed in checksums.txt exists and has the listed size and hash, and that the
// folder's name has the step of state.json. The error names the damaged file and the difference. Reads all
// files, or only `files` if given; each of `files` must be listed.
Status verify_checkpoint(const std::string& path, std::span<const std::string_view> files = {});

struct NewestCheckpoint {
  std::optional<CheckpointRef> found;
  std::vector<std::string> skipped;  // a message for each newer checkpoint that failed verify_checkpoint()
};

// Returns the newest checkpoint that passes verify_checkpoint(), completely or for the given files. If there
// is no run folder or no checkpoint in it, `found` is empty, and that is not an error.
Result<NewestCheckpoint> newest_checkpoint(const std::string& run_folder,
                                           std::span<const std::string_view> files = {});

// Removes these checkpoints, except the one that `latest` names, and the leftovers of crashed writers. Each
// folder is renamed first, so a crash leaves no checkpoint with missing files. If one cannot be removed, the
// others still are, and the first error is returned. REQUIRES: the checkpoints belong to this run folder, and
// no CheckpointWriter of it is alive, except committed ones.
Status remove_checkpoints(const std::string& run_folder, std::vector<CheckpointRef> which);

}  // namespace octavo_train
