// The tables of a plan's page, and how its data is read: what is missing, or of another type, counts as none.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <optional>
#include <string>

namespace octavo::train {

// A list of the plan; empty where it has none.
const Record& plan_list(const Record& plan, const char* name);
// The GPU that was asked for, or null.
Record planned_gpu(const Record& plan);

// Each is empty where the plan has nothing for it.
std::string planned_memory(const Record& plan);
std::string kernel_times(const Record& plan);
std::string planned_points(const Record& plan);

}  // namespace octavo::train
