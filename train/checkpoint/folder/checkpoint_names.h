// The names of checkpoints (see checkpoint_folder.h), and the removal of crashed writers' leftovers.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <optional>
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

}  // namespace octavo_train
