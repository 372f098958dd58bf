// The tables of a plan's page, and functions that read its data. A member that is missing, or has an
// unexpected type, counts as absent.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <optional>
#include <string>

namespace octavo_train {

// Returns a list of the plan, or an empty list if the plan does not have it.
const Record& plan_list(const Record& plan, const char* name);
// Returns the requested GPU, or null.
Record planned_gpu(const Record& plan);

// Each returns HTML, or an empty text if the plan has no data for it.
std::string planned_memory(const Record& plan);
std::string kernel_times(const Record& plan);
std::string planned_points(const Record& plan);

}  // namespace octavo_train
