// What `octavo evaluate` says: a page for a terminal, and the same as JSON.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/score.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::cli {

// Of long lists the first are shown; the JSON has all.
std::string evaluation_text(const train::ManifestScore& score);
nlohmann::ordered_json evaluation_json(const train::ManifestScore& score);

}  // namespace octavo::cli
