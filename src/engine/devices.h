// The devices that an engine works on: what it has found out about their pointers, and whose tables their
// workspaces hold. Pointers are checked again only when they change.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/plan.h"
#include "engine/registry.h"
#include "optimizers/backend.h"

#include <octavo/engine.h>

#include <array>
#include <memory>
#include <vector>

namespace octavo::engine {

struct DeviceState {
  Device device;
  std::unique_ptr<DeviceWork> work;
  std::uint64_t tables_of = 0;  // number of the plan whose tables are in the workspace
  // What was found to be right.
  const void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  void* stream = nullptr;
  std::array<const void*, 4> pointers{};
  const GradNorm* norm = nullptr;
  const void* staging_at = nullptr;
};

class Devices {
 public:
  // Made at the first use; an error where the device cannot be used.
  Result<DeviceState*> of(const std::string& tag, Device device);
  // The state of a device that `of` or `check` has made.
  [[nodiscard]] DeviceState& known(Device device);

  // The pointers, stream, workspace (of at least `needed` bytes) and staging memory of one device.
  Status check(const Registry& registry, const EngineDevice& given, std::int64_t needed,
               std::int64_t staging);
  // A norm's buffer.
  Status check_norm(const std::string& where, Device device, const GradNorm* norm, std::size_t count);
  // Before a plan works on a device: its tables are written again where they are not there, or may have
  // changed.
  void enter(Plan& plan, const EngineDevice& given);
  // Tensors have changed: workspaces must be compared with them again.
  void tensors_changed();

 private:
  Status check_staging(const std::string& where, const Registry& registry, DeviceState& state,
                       const EngineDevice& given, std::int64_t needed) const;

  std::vector<DeviceState> states_;
};

}  // namespace octavo::engine
