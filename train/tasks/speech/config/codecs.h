// Codecs for keys in configs of speech models: in the trainer's configs and in those of other programs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"
#include "train/tasks/speech/config/settings.h"

#include <cstdint>
#include <vector>

namespace octavo_train {

// TDT durations in frames: all different, and at least one above 0.
Codec<std::vector<std::int64_t>> duration_list();
// An odd number up to `high`: the kernel size of a convolution with the same number of frames on both sides.
Codec<std::int64_t> odd_number(std::int64_t high);
// A path, a list of paths, or a list of {path: …, weight: …}.
Codec<Manifests> manifest_list();
// A list of speeds, one of which is chosen for each draw: [0.9, 1.0, 1.1]. An empty list disables speed
// perturbation.
Codec<std::vector<double>> speed_list();
// A number, or the lowest and the highest number: [10, 20].
Codec<SnrRange> snr_range();

}  // namespace octavo_train
