// SPDX-License-Identifier: MIT
#include "train/run/errors.h"

#include "train/device/device.h"
#include "train/distributed/agreement.h"
#include "train/optim/fp8.h"
#include "train/predict/advise.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

std::vector<std::string> helps(const RunConfig& config, const Services& services, const Task& task,
                               bool evaluating) {
  Settings settings = *config.settings;
  settings.training.fp8.enabled = config.fp8.enabled;
  Fp8Settings fp8 = settings.training.fp8;
  fp8.enabled = true;
  const auto fp8_choice = choose_fp8(fp8, services.device);
  FullDevice full{settings, task, config.prediction.get()};
  full.gpu = !services.device.is_cpu();
  full.fp8 = full.gpu && fp8_choice.ok() && fp8_choice->enabled;
  full.ranks = services.process_group->ranks();
  full.evaluating = evaluating;
  std::vector<std::string> out = memory_help(full);
  if (full.gpu) out.emplace_back("octavo plan CONFIG --advise lists what helps together");
  for (const std::string& last : task.text().memory_advice) out.push_back(last);
  return out;
}

}  // namespace

Status explain(const RunConfig& config, const Services& services, const TrainingState& state,
               const c10::Error& error, bool evaluating) {
  std::string what = error_text(error);
  // The CPU's allocator throws a plain c10::Error.
  const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                      what.find("can't allocate memory") != std::string::npos;
  if (!memory) return Status::failed("LibTorch: " + what);
  what = what.substr(0, what.find(" Including non-PyTorch"));  // torch's advice; ours follows
  const DeviceMemory device = device_memory(services.device);
  MemoryByOwner owners = state.memory();
  owners.activations = std::max<std::int64_t>(device.peak - owners.peak(), 0);
  const TrainingSettings& training = config.training();
  const std::int64_t rows =
      evaluating ? training.per_device_eval_batch_size : training.per_device_train_batch_size;
  return Status::failed(explain_out_of_memory(
      what, owners, device,
      {state.task->text().batch(rows), helps(config, services, *state.task, evaluating)}));
}

}  // namespace octavo_train
