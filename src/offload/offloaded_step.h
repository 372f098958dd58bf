// Steps of tensors whose states are in host memory. They are StepBackends, so an engine's cohort has one in
// the place of make_cuda_step; `step` queues its work on the link and returns.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/queue.h"
#include "offload/staging.h"
#include "optimizers/backend.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace octavo::offload {

// Where a weight or a gradient will be free to use: when `queued` (of the host's queue; empty: it is already)
// has passed, `fence` is there (null: nothing is left) and orders the rest.
struct PendingFence {
  Fence queued;
  std::shared_ptr<Fence> fence;
};

// One tensor of an offloaded step. States are in host memory; param and grad are the device's.
struct OffloadedTensor {
  TensorArgs args;
  void* host_param = nullptr;  // Residence::host: the parameter's copy in host memory
  std::uint32_t order = 0;     // updated by this order, then by place
};

// What its steps queue may be under way when it is destroyed: it waits for that, or leaves it with all that
// it needs. workspace_bytes is 0: the caller's stream may write into the workspace while a step is under way,
// so tables lie in the staging memory.
class OffloadedStep : public StepBackend {
 public:
  // Of device memory for all of it; the same for all steps of one device, which share one Staging.
  [[nodiscard]] virtual std::int64_t staging_bytes() const = 0;
  // Whether some gradient of the next step is in host memory; at first: none is. staging_bytes may change.
  virtual void expect_held(bool /*any*/) {}
  // Before `step`: the staging memory, which was placed and has staging_bytes; the caller's fence, of the
  // stream that StepArgs has (gradients in device memory, scalars and weights are written before it); and the
  // gradients in host memory by tensor (null: in device memory, where bind_grads says). Spans need not
  // outlive the call.
  struct Call {
    Staging* staging = nullptr;  // make_streamed_step
    Fence caller{};
    std::span<const void* const> held{};  // of all tensors, or empty: none
    std::span<const Fence> complete{};    // of `held`, or empty
    Fence scalars{};                      // make_host_step: those of StepArgs are there behind it
  };
  virtual void prepare(const Call& call) = 0;
  // After `step`, by tensor: when its weight is up to date (which is not before its gradient was read), and
  // when its gradient was read, on the device or, where it is held, in host memory.
  [[nodiscard]] virtual const PendingFence& weight(std::size_t tensor) const = 0;
  [[nodiscard]] virtual const PendingFence& gradient(std::size_t tensor) const = 0;
};

// How much of a streamed step is under way at once. A tensor that is cut takes a copy for each of its
// buffers, so batches hold usual layers whole: of ViT-g's 1.1B elements in 8 bits there are 120, with 160
// copies each way; of 30 MiB, 200 and 680.
struct StreamSizes {
  std::int64_t batch = std::int64_t{40} << 20;  // bytes of a batch, gradients among them: held or not
  std::int64_t all = std::int64_t{64} << 20;    // of all batches on the device, at least two with gradients
};

// REQUIRES as make_cuda_step: checked tensors. `link` outlives the result. `counts`: as there, advanced
// besides StepScalars::step. On the CPU scalars are read, and reports and counts written, before `step`
// returns; on a GPU they are in device memory, and read as they are on the caller's stream then. A guard
// needs a norm, and a SumHook is not supported.
Result<std::unique_ptr<OffloadedStep>> make_streamed_step(const GroupConfig& config,
                                                          std::span<const OffloadedTensor> tensors,
                                                          DeviceQueues& queues,
                                                          std::span<std::int64_t* const> counts = {},
                                                          StreamSizes sizes = {});
// Step counts are in host memory: `counts` of all tensors, advanced by the host's queue when a step was taken
// (StepArgs::step is not looked at). Scalars of StepArgs are in host memory, too, and stay until the host's
// queue has passed. Every gradient is held. The CPU's work is cut in jobs of so many elements, or of one
// tensor: some milliseconds, of which waking its threads is a small part, and less of a copy.
inline constexpr std::int64_t kHostJob = std::int64_t{1} << 24;
Result<std::unique_ptr<OffloadedStep>> make_host_step(const GroupConfig& config,
                                                      std::span<const OffloadedTensor> tensors,
                                                      DeviceQueues& queues,
                                                      std::span<std::int64_t* const> counts,
                                                      std::int64_t job = kHostJob);

}  // namespace octavo::offload
