// SPDX-License-Identifier: MIT
#include "train/model/model.h"

#include "train/checkpoint/tensors.h"
#include "train/config/config.h"
#include "train/device/device.h"
#include "train/formats/safetensors.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <utility>

namespace octavo_train {
namespace {

// The files that loading a model needs. The optimizer's file, the largest, is not read.
constexpr std::array<std::string_view, 3> kFilesOfAModel = {"model.safetensors", "state.json", "config.yaml"};

}  // namespace

// Weights are initialized on the CPU in fp32, so that they are the same on every device.
TaskModel build_model(Task& task, const Settings& settings, const torch::Device& device, bool bf16) {
  seed_random(settings.training.seed, 0, 0);
  TaskModel model = task.build(settings);
  place_model(*model.module, device, bf16);
  return model;
}

// Moves matmul weights to bf16. Vectors (biases, norms) and buffers stay in fp32: they are small, and
// statistics need it.
//
// cuDNN is set to deterministic algorithms, so that a resumed run is bitwise equal to an uninterrupted one.
// TF32 is turned off, because torch would use it in cuDNN for fp32.
void place_model(torch::nn::Module& model, const torch::Device& device, bool bf16) {
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setAllowTF32CuDNN(false);
  for (torch::Tensor& param : model.parameters()) {
    if (bf16 && param.dim() >= 2) param.set_data(param.detach().to(torch::kBFloat16));
  }
  model.to(device);
  model.train();
}

NamedTensors parameters_of(const torch::nn::Module& model) { return model.named_parameters().pairs(); }

NamedTensors buffers_of(const torch::nn::Module& model) { return model.named_buffers().pairs(); }

NamedTensors tensors_of(const torch::nn::Module& model) {
  NamedTensors out = parameters_of(model), buffers = buffers_of(model);
  out.insert(out.end(), buffers.begin(), buffers.end());
  return out;
}

Result<LoadedModel> load_model(const std::string& run, std::string_view which, const DeviceName& wanted) {
  LoadedModel out;
  ASSIGN_OR_RETURN(out.checkpoint, choose_checkpoint(run, which, kFilesOfAModel));
  const std::string& path = out.checkpoint.path;
  ASSIGN_OR_RETURN(const auto config, load(path + "/config.yaml"));
  out.settings = config.settings;
  ASSIGN_OR_RETURN(out.device, choose_device(wanted));
  ASSIGN_OR_RETURN(auto read, Safetensors::open(path + "/model.safetensors"));
  const bool bf16 =
      std::ranges::any_of(read.tensors(), [](const auto& each) { return each.dtype == "BF16"; });
  out.task = make_task(out.settings.task);
  out.model = build_model(*out.task, out.settings, out.device, bf16).module;
  RETURN_IF_ERROR(load_weights(path, tensors_of(*out.model)));
  out.model->eval();
  return out;
}

}  // namespace octavo_train
