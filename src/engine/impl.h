// The parts of an engine together: engine.cc changes what is registered and begins steps, run.cc computes
// norms and steps, release.cc steps gradients that arrive early, and offload_calls.cc checks and forwards the
// calls about tensors whose states are in host memory to src/offload.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/devices.h"
#include "engine/engine.h"
#include "engine/plan_cache.h"
#include "engine/registry.h"
#include "offload/offload.h"

#include <vector>

namespace octavo::engine {

struct Engine::Impl {
  explicit Impl(Algorithm algorithm) : registry(algorithm), offload(registry.tag()) {}

  // Later members use earlier ones, and queued work uses all of them.
  engine::Registry registry;
  engine::Devices devices;
  offload::Offload offload;
  engine::PlanCache plans;
  engine::StepPlan* begun = nullptr;       // in `plans`
  std::vector<std::uint8_t> on_host;       // 1: that gradient is in host memory; empty: none is
  std::vector<std::uint8_t> next_on_host;  // the same for the gradients of the current begin
  std::uint64_t plan_numbers = 0;
  std::vector<std::uint32_t> ready;  // handles, since the last finish
  std::int64_t failed_tensor = -1;

  Status fail(engine::Failure failure) {
    failed_tensor = failure.tensor;
    return std::move(failure.status);
  }
  // Drops the plans, which were made for other tensors. REQUIRES: no work is queued.
  void tensors_changed() {
    begun = nullptr;
    plans.clear();
    devices.tensors_changed();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<EnginePlan> begin(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                           std::span<const DType> dtypes, bool with_norm);
  engine::Failure check_grads(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                              std::span<const DType> dtypes) const;
  engine::Failure check_new(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                            std::span<const DType> dtypes) const;

  // Checks that a begin is current, the numbers, and all devices of it.
  Status check_args(const EngineArgs& args);
  static const EngineDevice* find(const EngineArgs& args, Device device);
  Status check_parts(std::span<const EngineNormPart> parts);
  Status call(EngineCombine combine, const char* why) const;

  Status norm(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine);
  // `norm`, if not null, replaces the norms of the devices.
  engine::Failure check_step(const EngineArgs& args, const GradNorm* norm);
  Result<StepReport> step(const EngineArgs& args, const GradNorm* norm);
  Result<StepReport> step(engine::Cohort& cohort, const EngineArgs& args, const GradNorm* norm);

  Result<StepReport> release(const EngineArgs& args, GradNorm* own, EngineCombine combine);
  Status finish(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine);
  std::vector<const GradNorm*> owns(Device device) const;

  // --- Tensors whose states are in host memory ---

  ~Impl() { (void)offload.synchronize(); }
  // Blocks until no work is queued, so that tensors, orders or plans may change.
  Status wait_until_idle();
  // Replaces the null gradients of tensors whose gradients are in host memory, and records their indices.
  engine::Failure find_host_grads(std::span<const std::uint32_t> handles, std::vector<const void*>& grads,
                                  std::vector<DType>& dtypes);
  // Returns a failure if gradients have moved to or from host memory since begin.
  engine::Failure check_host_grads() const;
  // Allocates host memory for the copies of parameters and gradients of tensors that the CPU steps.
  Status reserve_host_params(std::span<const std::uint32_t> handles);
  Status reserve_host_grads(std::span<const std::uint32_t> handles, std::span<const DType> dtypes);
  // Returns an error if `stream` is captured, because a graph cannot hold the work.
  Status check_uncaptured(const char* call, Device device, void* stream);
  // The offloaded tensors of a device among `handles`, or of all tensors if `handles` is empty.
  std::vector<offload::OffloadedTensor*> offloaded_of(std::span<const std::uint32_t> handles,
                                                      Device device) const;
  // Orders the caller's streams after all weights of offloaded tensors.
  Status order_after_weights(const EngineArgs& args);
  Status measure(engine::NormSet& set, const EngineDevice& given, GradNorm* out, int threads);
  std::int64_t staging_bytes(Device device) const;
  engine::Failure check_offloaded(const engine::Cohort& cohort, const EngineDevice& given);
  Result<StepReport> step_offloaded(engine::Cohort& cohort, const EngineDevice& given, StepArgs args);
};

}  // namespace octavo::engine
