// The step of tensors whose states are in host memory. One call takes everything that the step needs, queues
// its work and returns the fences of the weights and gradients.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/queue.h"
#include "offload/staging.h"

#include "formula/step_args.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace octavo::offload {

// One tensor of an offloaded step. The states are in host memory; the parameter is the device's.
struct StepTensor {
  TensorArgs args;
  void* host_param = nullptr;  // Residence::host: the parameter's copy in host memory
  std::uint32_t order = 0;     // tensors are updated in this order; equal ones in the order of the list
};

// The gradient of one tensor: in device memory, or in host memory once `complete` has passed.
struct StepGrad {
  const void* data = nullptr;
  bool on_host = false;
  Fence complete{};
};

// Everything that one step needs. The spans are read before the call returns.
struct StepCall {
  StepArgs args;                      // `stream` is the caller's
  std::span<const StepGrad> grads{};  // one per tensor
  // Work of the caller's stream: it writes weights, scalars and gradients in device memory before this fence.
  Fence caller{};
  Fence scalars{};                 // make_host_step: the scalars are in host memory after this fence
  std::span<std::byte> staging{};  // device memory, at least staging_bytes()
};

// The weight is up to date, and the gradient has been read, after these fences. A tensor without elements, or
// one whose step was skipped on the CPU, has empty ones.
struct TensorFences {
  PendingFence weight, gradient;
};

struct StepResult {
  StepReport report;
  std::vector<TensorFences> tensors;  // one per tensor
};

// The destructor waits for the work that still needs this object; other queued work owns what it needs.
class OffloadedStep {
 public:
  OffloadedStep() = default;
  OffloadedStep(const OffloadedStep&) = delete;
  OffloadedStep& operator=(const OffloadedStep&) = delete;
  virtual ~OffloadedStep() = default;

  // The number of bytes of device memory that `step` needs as StepCall::staging. `host_grads`: some gradients
  // of the step are in host memory. All steps of one device share the memory.
  [[nodiscard]] virtual std::int64_t staging_bytes(bool host_grads) const = 0;
  virtual Result<StepResult> step(const StepCall& call) = 0;
};

// Limits of the work that a streamed step has under way. A divided tensor needs one copy for each of its
// buffers, so a batch holds complete layers of usual size: ViT-g's 1.1B elements in 8 bits are 120 batches
// with 160 copies in each direction. With batches of 30 MiB they would be 200 batches with 680 copies.
struct StreamSizes {
  std::int64_t batch = std::int64_t{40} << 20;  // bytes of a batch, gradients included
  std::int64_t all = std::int64_t{64} << 20;    // bytes of all batches on the device
};

// REQUIRES: checked tensors, and `staging` and its queues outlive the result. `counts`: step counts that a
// step advances, besides StepScalars::step. On the CPU the scalars are read, and reports and counts written,
// before `step` returns. On a GPU they are in device memory and keep the order of the caller's stream. A
// guard needs a norm. A SumHook is not supported.
Result<std::unique_ptr<OffloadedStep>> make_streamed_step(const GroupConfig& config,
                                                          std::span<const StepTensor> tensors,
                                                          Staging& staging,
                                                          std::span<std::int64_t* const> counts = {},
                                                          StreamSizes sizes = {});

// REQUIRES: every gradient is in host memory. `counts` are the step counts of all tensors, in host memory.
// The host queue advances them (StepArgs::step is ignored) and reads the scalars of StepArgs, which are in
// host memory too. The CPU's work is divided into jobs of at most `job` elements, or of one tensor: a job
// takes some milliseconds, so waking the threads is a small part of it, and copies overlap with other jobs.
inline constexpr std::int64_t kHostJob = std::int64_t{1} << 24;
Result<std::unique_ptr<OffloadedStep>> make_host_step(const GroupConfig& config,
                                                      std::span<const StepTensor> tensors,
                                                      DeviceQueues& queues,
                                                      std::span<std::int64_t* const> counts,
                                                      std::int64_t job = kHostJob);

}  // namespace octavo::offload
