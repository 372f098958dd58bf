// Derives what the benchmark and `octavo info` need from an algorithm's description: the names of its
// switches, and hyperparameters to run it with.
// SPDX-License-Identifier: MIT
#pragma once

#include "cli/cli.h"

#include <octavo/describe.h>
#include <octavo/layout.h>
#include <octavo/engine.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::cli {

// Returns the most common configuration: without the moments that switches add, unless the algorithm has no
// moments without them (then momentum is on).
GroupConfig usual_config(Algorithm algorithm);

// The names of the switches that are on, in the description's order.
std::vector<std::string_view> switch_names(const GroupConfig& config);
// The name of every switch of these algorithms, once.
std::vector<std::string_view> all_switches(std::span<const Algorithm> among);

// Returns "optimizer" or "optimizer switch". Switches that usual_config turns on are omitted.
std::string algorithm_label(const GroupConfig& config);

// Returns the description's defaults, plus weight decay and a value for each switch that is on.
HyperParams usual_hyper(const GroupConfig& config);
// Returns the same as an engine takes it.
octavo_step_args usual_options(const GroupConfig& config);
// Returns a parameter of this spec as an engine takes it, without its memory.
octavo_engine_tensor engine_tensor(const TensorSpec& spec, Device device);

// Returns the result of `call`. An EngineError becomes a Failure, as check() makes it of a Status.
template <class Call>
auto or_failure(Call&& call) {
  try {
    return call();
  } catch (const EngineError& error) {
    throw Failure(error.status() == 1 ? kExitUsage : kExitFailure, error.what());
  }
}

}  // namespace octavo::cli
