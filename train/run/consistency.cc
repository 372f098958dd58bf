// SPDX-License-Identifier: MIT
#include "train/run/consistency.h"

#include "train/config/config.h"
#include "train/config/paths.h"
#include "train/model/model.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <sstream>
#include <string>

namespace octavo_train {

std::vector<NamedText> settings_texts(const Settings& given, const torch::Device& device) {
  Settings settings = without_paths(given);
  settings.training.num_gpus.reset();  // machines may have different numbers of ranks
  return {{"version of octavo", std::string(octavo::version())},
          {"device", device.is_cpu() ? "cpu" : c10::DeviceTypeName(device.type())},
          {"config", to_yaml(settings)}};
}

std::vector<NamedText> model_texts(const TaskData& data, const TrainingState& state) {
  std::ostringstream parameters;
  for (const NamedTensors* tensors : {&state.parameters, &state.buffers}) {
    for (const auto& [name, tensor] : *tensors)
      parameters << name << ' ' << tensor.sizes() << ' ' << tensor.scalar_type() << '\n';
  }
  return {{"data", data.record.dump(1) + '\n' + std::to_string(data.samples) + " samples"},
          {"model", parameters.str()}};
}

void share_weights(ProcessGroup& world, const torch::nn::Module& model) {
  if (!world.grouped()) return;
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors_of(model)) {
    const torch::Tensor sent = tensor.contiguous();
    world.broadcast(sent, 0).wait();
    if (!sent.is_same(tensor)) tensor.copy_(sent);
  }
  world.take_traffic();  // it is no part of the first step's
}

}  // namespace octavo_train
