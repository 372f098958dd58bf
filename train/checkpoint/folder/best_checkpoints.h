// The best checkpoints of a run by a metric, and which checkpoints are kept. All of it is read from the
// folders themselves: see evaluation_file.h.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/evaluation_file.h"

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

struct RankedCheckpoint {
  CheckpointRef checkpoint;
  double value = 0;
};

// The checkpoints that were evaluated by `metric`, the best first, of equal ones the older: a later one takes
// its place only where it is better. One without a number, and one whose record cannot be read, is not among
// them. Nothing but the records is read: verify_checkpoint() says whether one is whole.
std::vector<RankedCheckpoint> rank_checkpoints(const std::string& run_folder, std::string_view metric);

// Whether a checkpoint of `step` with this value would be among the best `limit` of those before it.
bool is_among_best(const std::string& run_folder, const Metric& metric, std::int64_t step,
                   std::int64_t limit);

struct KeepRule {
  // >= 1; none: all but those that were saved for their metric alone.
  std::optional<std::int64_t> newest = {};
  std::string metric = {};  // besides them the best by this one; empty: none
  std::int64_t best = 1;
};

// Removes what the rule does not keep, by remove_checkpoints(); never the newest.
Status prune_checkpoints(const std::string& run_folder, const KeepRule& rule);

// Makes the link `best` name the best one that is there; none: nothing. For people and for paths: no code
// reads it.
Status point_best(const std::string& run_folder, std::string_view metric);

}  // namespace octavo::train
