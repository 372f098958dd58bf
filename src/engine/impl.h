// The parts of an engine together: engine.cc changes what it knows and begins steps, run.cc takes norms and
// steps, release.cc steps gradients that arrive early. The files of engine/offload/ do the same for tensors
// whose states are in host memory: grad_offload.cc copies gradients down, norm_with_host_grads.cc takes their
// norm, offload_step.cc steps; order.cc defines which call waits for which work.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/devices.h"
#include "engine/plans.h"
#include "engine/registry.h"
#include "offload/host_arena.h"

#include <octavo/engine.h>

#include <vector>

namespace octavo {

struct Engine::Impl {
  explicit Impl(Algorithm algorithm) : registry(algorithm) {}

  // Members that come later use those before them; what is under way uses all.
  offload::HostArena memory;
  engine::Registry registry;
  engine::Devices devices;
  engine::Plans plans;
  engine::Plan* begun = nullptr;              // in `plans`
  std::vector<std::uint8_t> held;             // which of its gradients are in host memory; empty: none
  std::vector<std::uint8_t> next_host_grads;  // likewise, of what is about to be begun
  std::uint64_t plan_numbers = 0;
  std::vector<std::uint32_t> ready;  // tensors, since the last finish
  std::int64_t failed_tensor = -1;

  Status fail(engine::Failure failure) {
    failed_tensor = failure.tensor;
    return std::move(failure.status);
  }
  // Plans and workspaces were made for other tensors. REQUIRES: nothing is under way.
  void tensors_changed() {
    begun = nullptr;
    plans.clear();
    devices.tensors_changed();
  }
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<EnginePlan> begin(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                           std::span<const DType> dtypes, bool with_norm);
  engine::Failure check_grads(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                              std::span<const DType> dtypes) const;
  engine::Failure check_new(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                            std::span<const DType> dtypes) const;

  // What every call with EngineArgs checks: that something was begun, numbers, and all devices of it.
  Status check_args(const EngineArgs& args);
  static const EngineDevice* find(const EngineArgs& args, Device device);
  Status check_parts(std::span<const EngineNormPart> parts);
  Status call(EngineCombine combine, const char* why) const;

  Status norm(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine);
  // `norm` replaces those of the devices; null: it does not.
  engine::Failure check_step(const EngineArgs& args, const GradNorm* norm);
  Result<StepReport> step(const EngineArgs& args, const GradNorm* norm);
  Result<StepReport> step(engine::Cohort& cohort, const EngineArgs& args, const GradNorm* norm);

  Result<StepReport> release(const EngineArgs& args, GradNorm* own, EngineCombine combine);
  Status finish(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine);
  std::vector<const GradNorm*> owns(Device device) const;

  // --- Offload ---

  // Work that failed after its call had returned: nobody knows what states hold, and every call fails.
  Status broken;
  bool sums_wanted = false;  // somebody has asked for norms, so gradients that are taken are summed at once
  // Host memory that gradients pass on their way to a sum.
  struct TransferBuffer {
    offload::HostBuffer buffer;
    offload::Fence free;
  };
  std::vector<TransferBuffer> transfer_buffers;
  offload::HostBuffer norm_memory;  // what norms over held gradients are joined in
  offload::Fence norm_sent;

  // Whether the engine can be used: not in a forked process, and not when work has failed.
  Status check_alive();
  // Keeps an error of queued work.
  Status record_error(Status status);
  Status drain() { return record_error(devices.drain()); }
  // Tensors, orders or plans may be changed: nothing is under way.
  Status wait_until_idle();
  // `queue` goes on behind a fence.
  static Status order_after(offload::Queue& queue, const offload::Fence& fence) {
    return fence.passed() ? fence.wait() : queue.order_after(fence);
  }
  static Status order_after(offload::Queue& queue, const offload::PendingFence& pending);
  static bool pins(Device device) { return device.kind == DeviceKind::cuda; }

  engine::Failure find_host_grads(std::span<const std::uint32_t> handles, std::vector<const void*>& grads,
                                  std::vector<DType>& dtypes);
  Status wait_for_counts(std::span<const std::uint32_t> handles);
  Status reserve_copies(std::span<const std::uint32_t> handles);
  Status reserve_gradients(std::span<const std::uint32_t> handles, std::span<const DType> dtypes);
  Status reserve_gradient(std::uint32_t handle, std::int64_t bytes);
  // Whether gradients are held as they were when the step was begun.
  engine::Failure check_host_grads() const;
  // `with_sums`: those of the norm are taken on the way.
  Status take(std::uint32_t handle, const void* grad, DType dtype, DType kept, offload::DeviceQueues& queues,
              bool with_sums);
  Result<TransferBuffer*> transfer_buffer(std::int64_t bytes, bool pin);
  std::int64_t expected_grad_bytes() const;
  Result<offload::Fence> copy_params(std::span<const std::uint32_t> handles, EngineCopy way,
                                     offload::DeviceQueues& queues, const offload::Fence& caller);
  Status refresh(std::span<const std::uint32_t> handles, EngineCopy way, Device device, void* stream);
  // An error where a graph is captured, which keeps nothing.
  Status check_uncaptured(const char* call, Device device, void* stream);
  Status wait(std::span<const std::uint32_t> handles, EngineWait what, Device device, void* stream);
  static Status order(offload::DeviceQueues& queues, void* stream, const offload::PendingFence& pending);
  // The caller's streams go on behind all weights of these devices.
  Status order_all(const EngineArgs& args);
  // Offloaded tensors of a device among these (none: all of it).
  std::vector<std::uint32_t> offloaded_of(std::span<const std::uint32_t> handles, Device device) const;

  Status measure(engine::NormSet& set, const EngineDevice& given, GradNorm* out, int threads);
  Result<offload::GradSums*> sums_of(std::uint32_t handle, int threads);

  std::int64_t staging_bytes(Device device) const;
  engine::Failure check_offloaded(const engine::Cohort& cohort, const EngineDevice& given);
  Result<StepReport> step_offloaded(engine::Cohort& cohort, const EngineDevice& given, StepArgs args);
  Status bring_down(engine::Cohort& cohort, offload::DeviceQueues& queues, const offload::Fence& caller);
  Result<offload::Fence> bring_scalars(engine::DeviceState& state, StepArgs& args, const EngineDevice& given);
};

}  // namespace octavo
