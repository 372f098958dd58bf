// How the ranks of a run start it: a stage that fails on one rank fails on all ranks. Settings, data and
// model are compared before the first step, and all ranks get rank 0's weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/distributed/process_group.h"
#include "train/run/training_state.h"
#include "train/task.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

// Runs a stage on every rank. If it fails on any rank, by a status or an exception, all ranks return the
// error of the lowest rank that failed, which names that rank. Without a process group, exceptions of the
// stage pass through.
Status run_on_all_ranks(ProcessGroup& process_group, const std::function<Status()>& stage);

// A text that must be equal on all ranks.
struct NamedText {
  std::string name;  // "settings"
  std::string text;  // lines
};

// Returns an error, equal on all ranks, if a text differs. It names the text, the ranks, and the first line
// that differs. Ranks exchange hashes, and then the text that differs. REQUIRES: the same names on all ranks.
Status check_equal_across_ranks(ProcessGroup& process_group, std::span<const NamedText> texts);

// Facts for check_equal_across_ranks() before anything is read: the version, the device's type, and the
// settings without paths, which may differ on another machine.
std::vector<NamedText> settings_texts(const Settings& settings, const torch::Device& device);

// Facts of the data and of the model.
std::vector<NamedText> model_texts(const TaskData& data, const TrainingState& state);

// Gives all ranks the weights and buffers of rank 0: random numbers of different processors may differ in
// their last bits.
void share_weights(ProcessGroup& process_group, const torch::nn::Module& model);

}  // namespace octavo_train
