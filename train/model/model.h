// The model of a run: built from its settings, or loaded from a checkpoint.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/config/settings.h"
#include "train/nn/named_tensors.h"
#include "train/task.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <string_view>

namespace octavo::train {

// With its first weights, in training mode. `bf16`: the weights of products are in bf16.
std::shared_ptr<torch::nn::Module> build_model(Task& task, const Settings& settings,
                                               const torch::Device& device, bool bf16);

// Puts a model that was built on the CPU in fp32 where it trains: see build_model().
void place_model(torch::nn::Module& model, const torch::Device& device, bool bf16);

// Its tensors by name. Buffers are what it keeps beside its parameters, such as statistics.
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

// `run` and `which`: see choose_checkpoint().
Result<LoadedModel> load_model(const std::string& run, std::string_view which, const DeviceName& device);

}  // namespace octavo::train
