// The devices of an engine. For each device this records the pointers that were checked, which are checked
// again only when they change, and the plan whose tables are in the workspace.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/engine.h"
#include "engine/registry.h"
#include "engine/step_plan.h"
#include "optimizers/backend.h"

#include <array>
#include <memory>
#include <vector>

namespace octavo::engine {

struct DeviceState {
  Device device;
  std::unique_ptr<NormOps> work;
  std::uint64_t tables_of = 0;  // number of the plan whose tables are in the workspace
  // These were checked.
  const void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  void* stream = nullptr;
  std::array<const void*, 4> pointers{};
  const GradNorm* norm = nullptr;
  const void* staging_at = nullptr;
};

class Devices {
 public:
  // Makes the state at the first use. Returns an error if the device cannot be used.
  Result<DeviceState*> of(const std::string& tag, Device device);
  // REQUIRES: `of` or `check` was called for the device.
  [[nodiscard]] DeviceState& known(Device device);

  // Checks the pointers, stream, workspace (at least `needed` bytes) and staging memory of one device.
  Status check(const Registry& registry, const EngineDevice& given, std::int64_t needed,
               std::int64_t staging);
  // Checks the buffer of `count` norms.
  Status check_norm(const std::string& where, Device device, const GradNorm* norm, std::size_t count);
  // Called before a plan uses a device. Makes the plan write its tables again if they are not in the
  // workspace or may have changed.
  void prepare_workspace(StepPlan& plan, const EngineDevice& given);
  // Makes the next check compare workspaces with the changed tensors again.
  void tensors_changed();

 private:
  Status check_staging(const std::string& where, const Registry& registry, DeviceState& state,
                       const EngineDevice& given, std::int64_t needed) const;

  std::vector<DeviceState> states_;
};

}  // namespace octavo::engine
