// Formats the output of `octavo evaluate`, as text for a terminal and as JSON.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/recognition/score.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::cli {

// The text shows only the start of long lists; the JSON has all elements.
std::string evaluation_text(const octavo_train::ManifestScore& score);
nlohmann::ordered_json evaluation_json(const octavo_train::ManifestScore& score);

}  // namespace octavo::cli
