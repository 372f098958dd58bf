// Names, finds, verifies and removes the checkpoints of a run folder. The names in it mean:
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

inline constexpr std::string_view kLatestName = "latest";
inline constexpr std::string_view kBestName = "best";

enum class CheckpointState { complete, partial, replaced };

struct CheckpointName {
  std::int64_t step = 0;
  CheckpointState state = CheckpointState::complete;
  int number = 0;  // of a partial or replaced one; above 0 if a leftover has the name

  [[nodiscard]] std::string text() const;
  // Parses only what text() returns: not checkpoint-007.
  static std::optional<CheckpointName> parse(std::string_view text);
  friend bool operator==(const CheckpointName&, const CheckpointName&) = default;
};

// Returns the path in the run folder, such as RUN/checkpoint-STEP.
std::string checkpoint_path(const std::string& run_folder, CheckpointName name);

// Returns an unused name with this step and state. REQUIRES: state is partial or replaced.
CheckpointName free_name(const std::string& run_folder, std::int64_t step, CheckpointState state);

// Returns the checkpoint names in a run folder, highest step and number first. Returns none if there is no
// folder.
Result<std::vector<CheckpointName>> checkpoint_names(const std::string& run_folder);

// Returns true if anything exists at this path, even a dangling link.
[[nodiscard]] bool path_exists(const std::string& path);

Status rename_path(const std::string& from, const std::string& to);

// Makes RUN/LINK a link to the checkpoint of this name. The link is replaced by a rename, so that it always
// exists.
Status point_link(const std::string& run_folder, std::string_view link, const std::string& name);

// Removes partial checkpoints, replaced checkpoints whose step has a complete one, and temporary links of an
// interrupted point_link(). If one cannot be removed, the others still are, and the first error is returned.
Status remove_leftovers(const std::string& run_folder);

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
