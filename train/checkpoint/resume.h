// Which checkpoint a run resumes from, and whether it is still the same run.
//
// `resume_from_checkpoint: true` resumes only the same experiment on the same data. If the learning rate, the
// model or the data has changed, that is an error that says what to do. `changed` (--resume) and the path of
// a checkpoint resume all the same. Settings that only make a run longer or change its log are never refused.
// Every change is shown and recorded.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/run_state.h"
#include "train/config/settings.h"
#include "train/console/console.h"

#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::train {

// The checkpoint to go on from; empty: none. `restarted`: the launcher has started the run again, which then
// goes on from its newest checkpoint, however it began.
Result<std::string> find_resume(const Settings& settings, bool restarted, Console& console);

// To resume from an older checkpoint of the folder, the newer ones must be removed first: otherwise the next
// start would resume from them.
Status check_newest(const Settings& settings, std::int64_t step);

// What has changed since a checkpoint, as it is said and recorded.
using Changes = std::vector<std::string>;

// Refuses data that makes it another run. `changed`: why it does; empty: it does not.
Status continue_data(const std::string& checkpoint, const Settings& settings,
                     const std::vector<std::string>& changed, Changes& changes);

// The settings that a checkpoint was saved with.
Result<Settings> saved_settings(const std::string& checkpoint);

// Compares the settings with the checkpoint's, whose state is `then`. The passes of `settings` are those of
// `ranks` ranks.
Status continue_settings(const std::string& checkpoint, const RunState& then, const Settings& settings,
                         std::int64_t ranks, Changes& changes, Console& console);

// A folder that a second run could have: output_dir with a number after it.
std::string free_folder(const Settings& settings);

}  // namespace octavo::train
