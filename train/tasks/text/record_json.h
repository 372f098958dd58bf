// Converts the record of a run's text to and from the JSON in checkpoints.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/text/text_files.h"

#include <nlohmann/json_fwd.hpp>

namespace octavo_train {

nlohmann::ordered_json to_json(const TextRecord& record);

// Throws nlohmann::json::exception if the JSON is not a record. Returns an error if its numbers contradict
// each other.
Result<TextRecord> text_record(const nlohmann::ordered_json& json);

}  // namespace octavo_train
