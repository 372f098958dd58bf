// The names of checkpoint_folder.h, and what crashed writers leave under them.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

inline constexpr std::string_view kLatestName = "latest";
inline constexpr std::string_view kBestName = "best";

enum class CheckpointState { complete, partial, replaced };

struct CheckpointName {
  std::int64_t step = 0;
  CheckpointState state = CheckpointState::complete;
  int number =
      0;  // of a partial or replaced one: above 0 where a leftover that cannot be removed has the name

  [[nodiscard]] std::string text() const;
  static std::optional<CheckpointName> parse(std::string_view text);  // of text() alone: not checkpoint-007
  friend bool operator==(const CheckpointName&, const CheckpointName&) = default;
};

// RUN/checkpoint-STEP and the like.
std::string checkpoint_path(const std::string& run_folder, CheckpointName name);

// The name of this step and state that nothing in the run folder has. REQUIRES: partial or replaced.
CheckpointName free_name(const std::string& run_folder, std::int64_t step, CheckpointState state);

// The checkpoint names of a run folder, highest step and number first. No folder: none.
Result<std::vector<CheckpointName>> checkpoint_names(const std::string& run_folder);

// Whether something, even a dangling link, has this path.
[[nodiscard]] bool path_exists(const std::string& path);

Status rename_path(const std::string& from, const std::string& to);

// Makes RUN/LINK a link to the checkpoint of that name. It is replaced by a rename, so that it is never
// missing.
Status point_link(const std::string& run_folder, std::string_view link, const std::string& name);

// Removes partial checkpoints, replaced ones whose name is taken, and links that point_link() did not finish.
// The error is of the first that stays; the others are removed all the same.
Status remove_leftovers(const std::string& run_folder);

}  // namespace octavo::train
