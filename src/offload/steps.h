// Steps of tensors whose states are in host memory. They are StepBackends, so an engine's cohort has one in
// the place of make_cuda_step; `step` queues its work on the link and returns.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/queue.h"
#include "optimizers/backend.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace octavo::offload {

// Where a weight or a gradient will be free to use: when `queued` (of the host's queue; empty: it is already)
// has passed, `mark` is there and orders the rest.
struct Promise {
  Mark queued;
  std::shared_ptr<Mark> mark;
};

// One tensor of an offloaded step. States are in host memory; param is the device's. `grad` of `args` is
// memory of the device, or of the host where `held` is there.
struct OffloadedTensor {
  TensorArgs args;
  void* host_param = nullptr;  // Residence::host: the parameter's copy in host memory
  std::uint32_t order = 0;     // updated by this order, then by place
  // A gradient that was taken: where it is in host memory, or null, and when it is complete there.
  const void* held = nullptr;
  Mark complete;
};

class OffloadedStep : public StepBackend {
 public:
  // Of device memory for all of it; the same for all steps of one device, which use it one after the other.
  [[nodiscard]] virtual std::int64_t staging_bytes() const = 0;
  // Before `step`: the staging memory, the caller's mark (gradients in device memory and scalars are written
  // behind it), and the gradients in host memory by tensor (null: in device memory, where bind_grads says).
  struct Call {
    std::span<std::byte> staging;
    Mark caller;
    std::span<const void* const> held;
    std::span<const Mark> complete;  // of `held`, or empty
  };
  virtual void prepare(const Call& call) = 0;
  // After `step`, by tensor: when its weight is up to date, and when its gradient was read.
  [[nodiscard]] virtual const Promise& weight(std::size_t tensor) const = 0;
  [[nodiscard]] virtual const Promise& gradient(std::size_t tensor) const = 0;
};

// REQUIRES as make_cuda_step: checked tensors. `link` outlives the result. `counts`: as there, of the whole
// tensors, in device memory; empty: StepArgs::step counts.
Result<std::unique_ptr<OffloadedStep>> make_streamed_step(const GroupConfig& config,
                                                          std::span<const OffloadedTensor> tensors,
                                                          Link& link,
                                                          std::span<std::int64_t* const> counts = {});
// Step counts are in host memory: `counts`, advanced by the host's queue when a step was taken
// (StepArgs::step is not looked at). Scalars of StepArgs are the device's and are copied down.
Result<std::unique_ptr<OffloadedStep>> make_host_step(const GroupConfig& config,
                                                      std::span<const OffloadedTensor> tensors, Link& link,
                                                      std::span<std::int64_t* const> counts);

}  // namespace octavo::offload
