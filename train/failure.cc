// SPDX-License-Identifier: MIT
#include "failure.h"

#include "device.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace octavo::train {

Status explain(const Session& session, const c10::Error& error, bool evaluating) {
  std::string what = error_text(error);
  // The CPU's allocator throws a plain c10::Error.
  const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                      what.find("can't allocate memory") != std::string::npos;
  if (!memory) return Status::failed("LibTorch: " + what);
  what = what.substr(0, what.find(" Including non-PyTorch"));  // torch's advice; ours follows
  const DeviceMemory device = device_memory(session.device);
  MemoryByOwner owners = session.owners();
  owners.activations = std::max<std::int64_t>(device.peak - owners.peak(), 0);
  const TrainingSettings& training = session.settings.training;
  const std::int64_t rows =
      evaluating ? training.per_device_eval_batch_size : training.per_device_train_batch_size;
  return Status::failed(explain_out_of_memory(
      what, owners, device, session.settings,
      {session.task->batch_text(rows), session.task->memory_advice(), session.task->batches() == nullptr},
      evaluating));
}

Status status_of(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return Status(own != nullptr ? own->code() : StatusCode::failed, error.what());
}

}  // namespace octavo::train
