// The devices that an engine works on: what it has found out about their pointers, and whose tables their
// workspaces hold. Pointers are checked again only when they change.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/plan.h"
#include "engine/registry.h"
#include "offload/queue.h"
#include "offload/staging.h"
#include "optimizers/backend.h"

#include <octavo/engine.h>

#include <array>
#include <memory>
#include <vector>

namespace octavo::engine {

// Of scalars that come down. As many as gradients are released while the CPU is behind: who finds none free
// waits.
inline constexpr std::size_t kScalarPlaces = 1024;
inline constexpr std::int64_t kScalarBytes = 64;  // of a place

struct DeviceState {
  Device device;
  std::unique_ptr<NormOps> work;
  std::uint64_t tables_of = 0;  // number of the plan whose tables are in the workspace
  // What was found to be right.
  const void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  void* stream = nullptr;
  std::array<const void*, 4> pointers{};
  const GradNorm* norm = nullptr;
  const void* staging_at = nullptr;
  // Of offloaded tensors: the queues, the device memory that states and scalars pass through, and where the
  // scalars of steps on the CPU come down, in places that are used in turn.
  std::unique_ptr<offload::Link> link;
  std::unique_ptr<offload::Staging> staging;
  offload::HostPiece scalars;
  std::vector<offload::Mark> scalars_read;
  std::size_t scalar_place = 0;
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

  // The queues of a device; made at the first use.
  Result<offload::Link*> link(const std::string& tag, Device device);
  // The host waits until they are empty.
  Status drain();
  // Whether queues were made by a process that this one was forked from.
  [[nodiscard]] bool forked() const;

 private:
  Status check_staging(const std::string& where, const Registry& registry, DeviceState& state,
                       const EngineDevice& given, std::int64_t needed) const;

  std::vector<DeviceState> states_;
  std::int64_t process_ = 0;  // that made queues
};

}  // namespace octavo::engine
