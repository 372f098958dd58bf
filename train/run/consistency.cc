// SPDX-License-Identifier: MIT
#include "train/run/consistency.h"

#include "train/config/paths.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <sstream>
#include <string>

namespace octavo::train {

std::vector<SharedFact> settings_facts(const Session& session) {
  Settings settings = without_paths(session.settings);
  settings.training.num_gpus.reset();  // machines may have different numbers of ranks
  return {{"version of octavo", std::string(version())},
          {"device", session.device.is_cpu() ? "cpu" : c10::DeviceTypeName(session.device.type())},
          {"config", to_yaml(settings)}};
}

std::vector<SharedFact> model_facts(const Session& session) {
  std::ostringstream parameters;
  for (const auto& [name, tensor] : session.parameters)
    parameters << name << ' ' << tensor.sizes() << ' ' << tensor.scalar_type() << '\n';
  for (const auto& [name, tensor] : session.buffers)
    parameters << name << ' ' << tensor.sizes() << ' ' << tensor.scalar_type() << '\n';
  return {{"data",
           session.task->data_record().dump(1) + '\n' + std::to_string(session.task->samples()) + " samples"},
          {"model", parameters.str()}};
}

void share_weights(Session& session) {
  World& world = *session.world;
  if (!world.grouped()) return;
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors_of(*session.model)) {
    const torch::Tensor sent = tensor.contiguous();
    world.broadcast(sent, 0).wait();
    if (!sent.is_same(tensor)) tensor.copy_(sent);
  }
  world.take_traffic();  // it is no part of the first step's
}

}  // namespace octavo::train
