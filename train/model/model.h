// Builds the model of a run from its settings, or loads it from a checkpoint.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/config/settings.h"
#include "train/nn/named_tensors.h"
#include "train/task.h"

#include <torch/types.h>

#include <memory>
#include <string>
#include <string_view>

namespace octavo_train {

// Returns the model with its initial weights, in training mode. `bf16`: matmul weights are in bf16.
TaskModel build_model(Task& task, const Settings& settings, const torch::Device& device, bool bf16);

// Moves a model that was built on the CPU in fp32 to its training device and dtypes: see build_model().
void place_model(torch::nn::Module& model, const torch::Device& device, bool bf16);

// Return the model's tensors by name. Buffers are tensors other than parameters, such as statistics.
NamedTensors parameters_of(const torch::nn::Module& model);
NamedTensors buffers_of(const torch::nn::Module& model);
NamedTensors tensors_of(const torch::nn::Module& model);  // parameters, then buffers

// A trained model, loaded from a checkpoint, in evaluation mode.
struct LoadedModel {
  Settings settings;
  torch::Device device{torch::kCPU};
  std::unique_ptr<Task> task;
  std::shared_ptr<torch::nn::Module> model;
  ChosenCheckpoint checkpoint;
};

// Loads a model. For `run` and `which` see choose_checkpoint().
Result<LoadedModel> load_model(const std::string& run, std::string_view which, const DeviceName& device);

}  // namespace octavo_train
