// The constant tables of the features: the window of a frame and the filterbank that maps a spectrum to mel
// bands. A `.nemo` archive contains its tables; all others are computed from the settings. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/config/model_settings.h"

#include <vector>

namespace octavo_train {

struct FeatureTables {
  std::vector<float> window;   // [window()]
  std::vector<float> filters;  // [features, bins()], row-major
};

// Returns an error that names the key if features cannot be computed with these settings.
Status check_features(const FeatureSettings& settings);

// Computes a symmetric Hann window, and triangular filters that are equally wide on Slaney's mel scale, each
// with an area of 1. REQUIRES: check_features(settings) returned no error.
FeatureTables make_feature_tables(const FeatureSettings& settings);

}  // namespace octavo_train
