// Compares what all ranks of a run must have, and copies rank 0's weights to the others.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/distributed/process_group.h"
#include "train/run/agreement.h"
#include "train/run/training_state.h"
#include "train/task.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <vector>

namespace octavo_train {

// Facts for check_equal_across_ranks() before anything is read: the version, the device's type, and the
// settings without paths, which may differ on another machine.
std::vector<NamedText> settings_texts(const Settings& settings, const torch::Device& device);

// Facts of the data and of the model.
std::vector<NamedText> model_texts(const TaskData& data, const TrainingState& state);

// Gives all ranks the weights and buffers of rank 0: random numbers of different processors may differ in
// their last bits.
void share_weights(ProcessGroup& world, const torch::nn::Module& model);

}  // namespace octavo_train
