// Computes the data of a page on which a reader changes settings: a prediction, predictions for a few other
// sizes, states in every format, and all supported GPUs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/predict/predict.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo_train {

// Returns the data for plan_page() (train/report/page.h). `name`: the config's name. Takes one or two
// seconds.
Result<nlohmann::ordered_json> what_if(const std::string& name, const LoadWith& load,
                                       const PredictionRequest& request, const Prediction& now);

}  // namespace octavo_train
