// Which checkpoint a run resumes from, and whether it is still the same run.
//
// `resume_from_checkpoint: true` resumes only the same experiment on the same text. If the learning rate, the
// model or the text has changed, that is an error that says what to do. `changed` (--resume) and the path of
// a checkpoint resume all the same. Settings that only make a run longer or change its log are never refused.
// Every change is shown and recorded.
// SPDX-License-Identifier: MIT
#pragma once

#include "console.h"
#include "train/config/settings.h"
#include "train/data/text_files.h"

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// The checkpoint to go on from; empty: none.
Result<std::string> find_resume(const Settings& settings, Console& console);

// To resume from an older checkpoint of the folder, the newer ones must be removed first: otherwise the next
// start would resume from them.
Status check_newest(const Settings& settings, std::int64_t step);

// What has changed since a checkpoint, as it is said and recorded.
using Changes = std::vector<std::string>;

// The text that the run goes on with. `then`: as the checkpoint has it; none in one of version 0.1, which
// held out the end of all the files together.
Result<TextRecord> continue_text(const std::string& checkpoint, const Settings& settings,
                                 const std::optional<TextRecord>& then, const std::vector<std::string>& train,
                                 const std::optional<std::vector<std::string>>& validation, Changes& changes);

// Compares the settings with the checkpoint's.
Status continue_settings(const std::string& checkpoint, const Settings& settings, Changes& changes,
                         Console& console);

// A run that has done all its steps: what to do instead.
std::string nothing_to_do(const Settings& settings, const std::string& checkpoint, std::int64_t step,
                          std::int64_t steps);

}  // namespace octavo::train
