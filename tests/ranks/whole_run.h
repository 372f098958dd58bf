// Helpers for complete trainings of tiny models, on the ranks of a process group and in one process, and for
// comparing their results.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/ranks/ranks.h"
#include "tests/train/run_support.h"
#include "train/console/console.h"
#include "train/run/start.h"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train::ranks {

using octavo_train::NamedTensors;
using octavo_train::Words;

inline constexpr std::int64_t kSteps = 20;

inline constexpr const char* kImages = R"(model: {name: convnet, n_block: 2, width: 8}
data: {image_size: 8, train_images: 256, validation_images: 16, dataloader_num_workers: 0}
training:
  learning_rate: 1.0e-2
  compute_dtype: float32
  per_device_train_batch_size: 4
  per_device_eval_batch_size: 4
  warmup_steps: 2
  max_steps: 20
  eval_steps: null
  save_steps: null
  logging_steps: 5
  device: cpu
)";

// A run whose folder is under scratch() and is the same on all ranks.
class WholeRun : public octavo_train::TinyRun {
 public:
  explicit WholeRun(const std::string& name) : TinyRun(scratch(), name), text_yaml(yaml) {
    yaml = kImages + ("output_dir: \"" + out + "\"\n");
  }

  std::string text_yaml;  // the config of a language model, to be used instead

  // Called after training, while the run still exists.
  std::function<void(const octavo_train::TrainingState&)> look = [](const octavo_train::TrainingState&) {};
  NamedTensors parameters, buffers;  // copied at the end of the run

  // Trains on all ranks of `process_group`, or in this process alone if it is null. Returns an empty string,
  // or the error.
  std::string go(ProcessGroup* process_group, std::unique_ptr<octavo_train::Task> task, const Words& words) {
    auto config = octavo_train::parse(yaml, "run.yaml", words);
    if (!config.ok()) return config.status().message();
    octavo_train::Recorder listener;
    octavo_train::Heartbeat heartbeat(listener);
    const std::shared_ptr<ProcessGroup> borrowed(process_group, [](ProcessGroup*) {});
    auto run = octavo_train::start_run(*config, heartbeat, octavo_train::Purpose::run,
                                       process_group == nullptr ? nullptr : borrowed, std::move(task));
    if (!run.ok()) return run.status().message();
    const auto outcome = (*run)->trainer->run();
    said += listener.said;
    look(*(*run)->state);
    parameters = copied((*run)->state->parameters);
    buffers = copied((*run)->state->buffers);
    return outcome.ok() ? std::string() : outcome.status().message();
  }

 private:
  static NamedTensors copied(const NamedTensors& tensors) {
    NamedTensors out;
    for (const auto& [name, tensor] : tensors) out.emplace_back(name, tensor.detach().clone());
    return out;
  }
};

// Returns the bytes of all tensors.
inline std::string bytes_of(const NamedTensors& tensors) {
  std::string out;
  for (const auto& [name, tensor] : tensors) {
    const torch::Tensor flat = tensor.contiguous();
    out.append(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
  }
  return out;
}

// Returns true if `bytes` is the same on all ranks.
inline bool same_on_ranks(ProcessGroup& process_group, const std::string& bytes) {
  const std::string mine = std::to_string(std::hash<std::string>()(bytes));
  for (const std::string& each : process_group.gather(mine))
    if (each != mine) return false;
  return true;
}

}  // namespace octavo_train::ranks
