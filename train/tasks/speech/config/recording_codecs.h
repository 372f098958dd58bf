// The types of the config keys for recordings.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"
#include "train/tasks/speech/config/recording_settings.h"

#include <vector>

namespace octavo_train {

// Accepts a path, a list of paths, or a list of {path: …, weight: …}.
Codec<Manifests> manifest_list();
// Accepts a list of speeds, one of which is chosen for each draw: [0.9, 1.0, 1.1]. An empty list disables
// speed perturbation.
Codec<std::vector<double>> speed_list();
// Accepts a number, or the lowest and the highest number: [10, 20].
Codec<SnrRange> snr_range();

}  // namespace octavo_train
