// Types of keys that say which recordings are trained on.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"
#include "train/tasks/speech/recording_settings.h"

#include <vector>

namespace octavo::train {

// A path, a list of paths, or a list of {path: …, weight: …}.
Codec<Manifests> manifest_list();
// Speeds of which each draw takes one: [0.9, 1.0, 1.1]. An empty list is none.
Codec<std::vector<double>> speed_list();
// A number, or the lowest and the highest: [10, 20].
Codec<SnrRange> snr_range();

}  // namespace octavo::train
