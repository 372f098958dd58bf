// SPDX-License-Identifier: MIT
#include "train/run/training_state.h"

#include "train/base/status.h"
#include "train/model/model.h"
#include "train/optim/gradients.h"

#include <torch/torch.h>

#include <utility>

namespace octavo_train {
namespace {

std::unique_ptr<Fp8> make_fp8(const Fp8Choice& choice, const TrainingSettings& training,
                              const NamedTensors& parameters, const ProcessGroup& process_group,
                              std::int64_t uses_of_weights) {
  if (!choice.enabled) return nullptr;
  const std::int64_t uses = uses_of_weights * training.gradient_accumulation_steps;
  return std::make_unique<Fp8>(training.fp8, parameters, uses,
                               process_group.leads() ? Fp8::Measuring::here : Fp8::Measuring::told);
}

}  // namespace

TrainingState::TrainingState(const TrainingSettings& training, const Fp8Choice& fp8_choice,
                             const torch::Device& device, ProcessGroup& process_group, Parts parts)
    : task(std::move(parts.task.task)),
      data(std::move(parts.task.data)),
      model(std::move(parts.model)),
      parameters(parameters_of(*model.module)),
      buffers(buffers_of(*model.module)),
      groups(std::move(parts.groups)),
      shards(std::move(parts.shards)),
      optimizer(std::make_unique<StepOptimizer>(training, groups, shards.get())),
      scaler(device, training.compute_dtype),
      fp8(make_fp8(fp8_choice, training, parameters, process_group, model.uses_of_weights)),
      gradients(make_gradients(process_group, groups, training, training.gradient_accumulation_steps,
                               shards.get(), optimizer.get())),
      counters(parts.counters) {
  if (model.set_gate != nullptr)
    model.set_gate([updater = optimizer.get()](const torch::nn::Module& module) { updater->wait(module); });
  components_.push_back(std::make_unique<ModelComponent>(tensors_of(*model.module)));
  components_.push_back(std::make_unique<LossScaleComponent>(scaler));
  if (fp8 != nullptr) components_.push_back(std::make_unique<Fp8Component>(*fp8));
  components_.push_back(std::make_unique<OptimizerComponent>(*optimizer));
}

// Components and gradients refer to the optimizer, the optimizer to the shards, and the model to the task.
TrainingState::~TrainingState() {
  components_.clear();
  gradients.reset();
  fp8.reset();
  optimizer.reset();
  shards.reset();
  model = {};
  task.reset();
}

SavedState TrainingState::save() const {
  optimizer->wait();
  std::vector<const Checkpointable*> all;
  for (const auto& component : components_) all.push_back(component.get());
  return {counters, collect_components(all)};
}

Result<RunState> TrainingState::load(const std::string& checkpoint, const BeforeLoad& before) {
  std::vector<Checkpointable*> all;
  for (const auto& component : components_) all.push_back(component.get());
  ASSIGN_OR_RETURN(const RunState saved, load_checkpoint(checkpoint, all, before));
  const RunState given = std::exchange(counters, saved);
  counters.first_step = given.first_step;
  counters.ranks = given.ranks;
  counters.batches_per_step = given.batches_per_step;
  counters.skipped_in_a_row = 0;  // a new start may skip ten steps again before it ends
  return saved;
}

MemoryByOwner TrainingState::memory() const {
  MemoryByOwner out;
  const StepOptimizer::Bytes bytes = optimizer->bytes();
  out.params = bytes_of(parameters);
  out.grads = gradients->bytes();
  out.states = bytes.states;
  out.master = bytes.master;
  out.workspace = bytes.workspace;
  out.host_states = bytes.host_states;
  out.host_master = bytes.host_master;
  out.host_copies = bytes.host_copies;
  out.fp8 = fp8 != nullptr ? fp8->bytes() : 0;
  out.communication = gradients->communication_bytes() + (shards != nullptr ? shards->padding_bytes() : 0);
  return out;
}

}  // namespace octavo_train
