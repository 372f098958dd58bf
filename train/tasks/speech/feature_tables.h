// The constants of the features: the window of a frame and the filters that make mel bands of a spectrum. An
// archive has its own; others are made from the settings. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/feature_settings.h"

#include <octavo/status.h>

#include <vector>

namespace octavo::train {

struct FeatureTables {
  std::vector<float> window;   // [window()]
  std::vector<float> filters;  // [features, bins()], row by row
};

// That the numbers make features: an error names the key.
Status check_features(const FeatureSettings& settings);

// A symmetric Hann window, and triangles that are equally wide on Slaney's mel scale, each with an area of 1.
// REQUIRES: check_features.
FeatureTables make_feature_tables(const FeatureSettings& settings);

}  // namespace octavo::train
