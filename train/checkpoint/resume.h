// Finds the checkpoint that a run resumes from, and checks that it is still the same run.
//
// `resume_from_checkpoint: true` resumes only the same experiment on the same data. If the learning rate, the
// model or the data has changed, the run fails with an error that names the remedy. `allow_changes`
// (--resume) and the path of a checkpoint resume despite changes. Settings that only make a run longer or
// change its log are never refused. Every change is printed and recorded.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/settings.h"
#include "train/console/console.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo_train {

// Returns the checkpoint to resume from; empty if there is none. `restarted`: the launcher has restarted the
// run, which then resumes from its newest checkpoint, no matter how it was started first.
Result<std::string> find_resume(const Settings& settings, bool restarted, Console& console);

// Returns an error if the folder has checkpoints newer than `step` and the settings name an older one. They
// must be removed first: otherwise the next start would resume from them.
Status check_newest(const Settings& settings, std::int64_t step);

// The changes since a checkpoint, as they are printed and recorded.
using Changes = std::vector<std::string>;

// Refuses to resume if the data makes it another run. `changed` lists the differences; empty if the data is
// the same.
Status continue_data(const std::string& checkpoint, const Settings& settings,
                     const std::vector<std::string>& changed, Changes& changes);

// Returns the settings that a checkpoint was saved with.
Result<Settings> saved_settings(const std::string& checkpoint);

// Compares the settings with the checkpoint's, whose state is `then`. The micro-batches per step of
// `settings` are those of a run with `ranks` ranks.
Status continue_settings(const std::string& checkpoint, const RunState& then, const Settings& settings,
                         std::int64_t ranks, Changes& changes, Console& console);

// Returns the number of micro-batches per step of each rank. A run that resumes with the checkpoint's batch
// settings keeps the checkpoint's batches per step, for any number of ranks. If the ranks cannot divide them,
// the error lists the possible values. Changed batch settings are used as given: continue_settings() compares
// them. `checkpoint` is empty for a new run.
Result<std::int64_t> micro_batches_per_rank(const Settings& given, std::int64_t ranks,
                                            const std::string& checkpoint);

// Returns an unused folder for a second run: output_dir with a number appended.
std::string free_folder(const Settings& settings);

}  // namespace octavo_train
