// Rules between keys, asked once all values are known.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"

namespace octavo::train {

// Settles what two keys say together (max_steps and num_train_epochs), then refuses what contradicts itself
// or cannot be done yet. Errors name both places.
Status settle_and_check(Config& config);

}  // namespace octavo::train
