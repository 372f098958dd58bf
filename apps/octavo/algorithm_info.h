// Describes the algorithms for `octavo info`, as JSON and as a table.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/describe.h>

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::cli {

// Returns the algorithm's name, moments, switches and options.
nlohmann::ordered_json algorithm_json(const AlgorithmInfo& info);

// Returns a table with one row for each element of `algorithms`.
std::string algorithm_table(const nlohmann::ordered_json& algorithms);

}  // namespace octavo::cli
