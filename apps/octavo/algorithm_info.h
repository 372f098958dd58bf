// The descriptions of the algorithms for `octavo info`: as JSON, and as a table of it.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/describe.h>

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::cli {

// What an algorithm is called, keeps and takes.
nlohmann::ordered_json algorithm_json(const AlgorithmInfo& info);

// A row for each of a list of them.
std::string algorithm_table(const nlohmann::ordered_json& algorithms);

}  // namespace octavo::cli
