// The checkpoints of a run folder: found, verified, thinned out. What the names mean:
//
//   checkpoint-STEP            a checkpoint, complete when it got this name
//   latest                     a link to the one written last
//   .checkpoint-STEP.partial   one being written or removed: never read, removed by the next writer
//   .checkpoint-STEP.replaced  the one of before, while a new one of the same step takes its place; it counts
//                              as checkpoint-STEP where a crash left it alone
//
// Where a leftover cannot be removed (it belongs to another user, or is open on another node of a network
// file system), the next writer takes .checkpoint-STEP.partial.1 and so on, and warns.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

struct CheckpointRef {
  std::int64_t step = 0;
  std::string path;
  friend bool operator==(const CheckpointRef&, const CheckpointRef&) = default;
};

// Newest (highest step) first, by name alone. A run folder that is not there or cannot be read has none.
std::vector<CheckpointRef> list_checkpoints(const std::string& run_folder);

// Checks that every file that checksums.txt lists is there, of its size and hash, and that the folder's name
// has the step of state.json. The error names what is torn and how. Reads all files, or only those of `files`
// where they are given; all of them must be listed.
Status verify_checkpoint(const std::string& path, std::span<const std::string_view> files = {});

struct NewestCheckpoint {
  std::optional<CheckpointRef> found;
  std::vector<std::string> skipped;  // a message for each newer one that verify_checkpoint() refused
};

// The newest one that verifies, as a whole or in the given files. No run folder, or none in it: nothing
// found, and no error.
Result<NewestCheckpoint> newest_checkpoint(const std::string& run_folder,
                                           std::span<const std::string_view> files = {});

// Removes these, never the one that `latest` names, and what crashed writers left. Each is renamed first: a
// crash leaves no checkpoint with files missing. What cannot be removed does not keep the others; the error
// is of the first. REQUIRES: they are of this run folder, and no CheckpointWriter of it is alive, except
// committed ones.
Status remove_checkpoints(const std::string& run_folder, std::vector<CheckpointRef> which);

}  // namespace octavo::train
