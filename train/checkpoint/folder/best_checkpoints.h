// Finds the best checkpoints of a run by a metric, and decides which checkpoints are kept. Everything is read
// from the checkpoint folders themselves; see evaluation_file.h.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/evaluation_file.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

struct RankedCheckpoint {
  CheckpointRef checkpoint;
  double value = 0;
};

// Returns the checkpoints that were evaluated by `metric`, the best first. Of equal checkpoints the older
// comes first: a later one ranks higher only if it is better. Checkpoints whose value is NaN, and those whose
// record cannot be read, are skipped. Only the records are read: verify_checkpoint() checks that a checkpoint
// is complete.
std::vector<RankedCheckpoint> rank_checkpoints(const std::string& run_folder, std::string_view metric);

// Returns true if a checkpoint of `step` with this value would be among the best `limit` checkpoints of
// earlier steps.
bool is_among_best(const std::string& run_folder, const Metric& metric, std::int64_t step,
                   std::int64_t limit);

struct KeepRule {
  // The number of newest checkpoints to keep, >= 1. nullopt: all except those that were saved only for their
  // metric.
  std::optional<std::int64_t> newest = {};
  std::string metric = {};  // also keeps the best checkpoints by this metric; empty: none
  std::int64_t best = 1;
};

// Removes the checkpoints that the rule does not keep, with remove_checkpoints(). It never removes the
// newest.
Status prune_checkpoints(const std::string& run_folder, const KeepRule& rule);

// Makes the link `best` point to the best existing checkpoint; if there is none, does nothing. The link is
// for users and their paths: no code reads it.
Status point_best(const std::string& run_folder, std::string_view metric);

}  // namespace octavo_train
