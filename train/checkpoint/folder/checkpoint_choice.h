// Ranks a run's checkpoints by a metric, decides which are kept, and chooses one of them: implements
// `--checkpoint best|latest|STEP` of every command that reads a trained model. Everything is read from the
// checkpoint folders themselves; see evaluation_file.h.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/evaluation_file.h"

#include <cstdint>
#include <optional>
#include <span>
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
