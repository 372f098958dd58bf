// The message of a run that will take hours.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <cstdint>
#include <string>

namespace octavo::train {

// Floating-point operations a second of a matmul on the CPU. Takes about a tenth of a second.
double cpu_matmul_rate(ComputeType type);

// Where `step` of `steps` are done and each takes `seconds`: how long the rest takes and which settings make
// it shorter; `shorter`: what would make a step shorter; `how`: "about" or "at least". Empty below an hour.
std::string long_run_note(const Settings& settings, const std::string& shorter, std::int64_t step,
                          std::int64_t steps, double seconds, bool on_cpu, const std::string& how = "about");

}  // namespace octavo::train
