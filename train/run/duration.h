// The message of a run that will take hours.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <cstdint>
#include <string>

namespace octavo_train {

// Measures the floating-point operations per second of a matmul on the CPU, in about 0.1 s.
double cpu_matmul_rate(ComputeType type);

// Returns how long the steps after `step` take if each takes `seconds`, and which settings would make the run
// shorter; empty if it is less than an hour. `shorter`: settings that make a step shorter; `how`: "about" or
// "at least".
std::string long_run_note(const Settings& settings, const std::string& shorter, std::int64_t step,
                          std::int64_t steps, double seconds, bool on_cpu, const std::string& how = "about");

}  // namespace octavo_train
