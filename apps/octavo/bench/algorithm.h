// What the benchmark and `octavo info` ask an algorithm's description: its switches by name, and numbers to
// run it with.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/describe.h>
#include <octavo/optimizer.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::cli {

// The algorithm as it is used most: without what switches add, unless it keeps no moments then (momentum).
GroupConfig usual_config(Algorithm algorithm);

// The names of the switches that are on, in the description's order.
std::vector<std::string_view> switch_names(const GroupConfig& config);
// The name of every switch of these algorithms, once.
std::vector<std::string_view> all_switches(std::span<const Algorithm> among);

// "optimizer" or "optimizer switch": the switches that usual_config has are not said.
std::string algorithm_label(const GroupConfig& config);

// The description's defaults, with weight decay, and a value for each switch that is on.
HyperParams usual_hyper(const GroupConfig& config);

}  // namespace octavo::cli
