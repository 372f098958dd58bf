// Defines the config keys for recordings: manifests, batches, perturbation, tokenizer and features. Also
// defines the defaults that depend on the config, for recordings and for pretrained models. Does not use
// LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/task_config.h"

#include <vector>

namespace octavo_train {

std::vector<Key> speech_input_keys();  // model.tokenizer and model.preprocessor
std::vector<Key> recording_keys();     // data
Status check_recordings(const Config& config);

// See TaskConfig::recipe.
std::vector<Default> speech_recipe(const Config& config);

}  // namespace octavo_train
