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
inline constexpr std::string_view kLatestPartialName = ".latest.partial";

enum class CheckpointState { complete, partial, replaced };

struct CheckpointName {
  std::int64_t step = 0;
  CheckpointState state = CheckpointState::complete;

  [[nodiscard]] std::string text() const;
  static std::optional<CheckpointName> parse(std::string_view text);  // of text() alone: not checkpoint-007
  friend bool operator==(const CheckpointName&, const CheckpointName&) = default;
};

// RUN/checkpoint-STEP and the like.
std::string checkpoint_path(const std::string& run_folder, CheckpointName name);

// The checkpoint names of a run folder, highest step first. No folder: none.
Result<std::vector<CheckpointName>> checkpoint_names(const std::string& run_folder);

// Whether something, even a dangling link, has this path.
[[nodiscard]] bool path_exists(const std::string& path);

Status rename_path(const std::string& from, const std::string& to);

// Removes partial checkpoints, and replaced ones whose place is taken.
Status remove_leftovers(const std::string& run_folder);

}  // namespace octavo::train
