// The parts of an engine together: engine.cc changes what it knows and begins steps, run.cc takes norms and
// steps, release.cc steps gradients that arrive early.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/devices.h"
#include "engine/plans.h"
#include "engine/registry.h"

#include <octavo/engine.h>

#include <vector>

namespace octavo {

struct Engine::Impl {
  explicit Impl(Algorithm algorithm) : registry(algorithm) {}

  engine::Registry registry;
  engine::Plans plans;
  engine::Devices devices;
  engine::Plan* begun = nullptr;  // in `plans`
  std::uint64_t plan_numbers = 0;
  std::vector<std::uint32_t> ready;  // tensors, since the last finish
  std::int64_t failed_tensor = -1;

  Status fail(engine::Failure failure) {
    failed_tensor = failure.tensor;
    return std::move(failure.status);
  }
  // Plans and workspaces were made for other tensors.
  void tensors_changed() {
    begun = nullptr;
    plans.clear();
    devices.tensors_changed();
  }

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
};

}  // namespace octavo
