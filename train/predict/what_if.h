// A plan with its surroundings, for a page on which a reader changes settings: plans at a few sizes, states
// in every format, and all known GPUs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/predict/advise.h"
#include "train/predict/plan.h"

#include <octavo/status.h>

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::train {

// The data of plan_page(), train/report/plan_page.h. `name`: of the config. Takes a second or two.
Result<nlohmann::ordered_json> what_if(const std::string& name, const LoadWith& load,
                                       const PlanRequest& request, const Plan& now);

}  // namespace octavo::train
