// SPDX-License-Identifier: MIT
#include "engine/devices.h"

#include "offload/staging.h"
#include "optimizers/checks.h"
#include "status/first_error.h"

#include <algorithm>

namespace octavo::engine {

Result<DeviceState*> Devices::of(const std::string& tag, Device device) {
  const auto at = std::ranges::find_if(states_, [&](const auto& state) { return state.device == device; });
  if (at != states_.end()) return &*at;
  if (Status bad = check_device(tag, device); !bad.ok()) return bad;
  DeviceState state;
  state.device = device;
  if (device.kind == DeviceKind::cpu) {
    state.work = make_cpu_norm_ops();
  } else {
    auto made = make_cuda_norm_ops(tag, device.index);
    if (!made.ok()) return made.status();
    state.work = std::move(*made);
  }
  return &states_.emplace_back(std::move(state));
}

DeviceState& Devices::known(Device device) {
  return *std::ranges::find_if(states_, [&](const auto& state) { return state.device == device; });
}

Status Devices::check(const Registry& registry, const EngineDevice& given, std::int64_t needed,
                      std::int64_t staging) {
  const auto found = of(registry.tag(), given.device);
  if (!found.ok()) return found.status();
  DeviceState& state = **found;
  const auto where = [&] { return registry.tag() + " " + name_of(given.device); };

  if (static_cast<std::int64_t>(given.workspace.size()) < needed ||
      given.workspace.data() != state.workspace || given.workspace.size() != state.workspace_bytes) {
    if (Status bad = check_workspace(where(), given.workspace, needed, "Engine::workspace_bytes"); !bad.ok())
      return bad;
    if (Status bad = state.work->check_pointer(where() + " workspace", given.workspace.data()); !bad.ok())
      return bad;
    if (const auto other = registry.ranges().find(given.workspace.data(), given.workspace.size())) {
      return Status::invalid(where() + " workspace: overlaps " + engine::name_of(*other) +
                             "; it must not share memory with a buffer of the step");
    }
    state.workspace = given.workspace.data();
    state.workspace_bytes = given.workspace.size();
    state.tables_of = 0;
  }
  const std::array<const void*, 4> pointers{given.loss_scale, given.found_inf, given.norm, given.report};
  static constexpr const char* kNames[] = {" loss_scale", " found_inf", " norm", " report"};
  static constexpr std::int64_t kSizes[] = {4, 4, sizeof(GradNorm), sizeof(StepReport)};
  static constexpr std::int64_t kAlignments[] = {4, 4, alignof(GradNorm), alignof(StepReport)};
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (pointers[i] == state.pointers[i]) continue;
    if (pointers[i] != nullptr) {
      if (Status bad = check_buffer(where() + kNames[i], pointers[i], kSizes[i], kAlignments[i]); !bad.ok())
        return bad;
    }
    if (Status bad = state.work->check_pointer(where() + kNames[i], pointers[i]); !bad.ok()) return bad;
    state.pointers[i] = pointers[i];
  }
  if (given.stream != state.stream) {
    if (Status bad = state.work->check_stream(where(), given.stream); !bad.ok()) return bad;
    state.stream = given.stream;
  }
  return staging == 0 ? Status() : check_staging(where(), registry, state, given, staging);
}

Status Devices::check_staging(const std::string& where, const Registry& registry, DeviceState& state,
                              const EngineDevice& given, std::int64_t needed) const {
  if (static_cast<std::int64_t>(given.staging.size()) < needed) {
    return Status::invalid(where + " staging: got " + std::to_string(given.staging.size()) +
                           " bytes, expected " + std::to_string(needed) + " (Engine::staging_bytes)");
  }
  if (given.staging.data() == state.staging_at) return {};
  if (Status bad =
          check_buffer(where + " staging", given.staging.data(), needed, offload::Staging::kAlignment);
      !bad.ok())
    return bad;
  if (Status bad = state.work->check_pointer(where + " staging", given.staging.data()); !bad.ok()) return bad;
  if (const auto other = registry.ranges().find(given.staging.data(), given.staging.size())) {
    return Status::invalid(where + " staging: overlaps " + engine::name_of(*other) +
                           "; it must not share memory with a buffer of the step");
  }
  state.staging_at = given.staging.data();
  return {};
}

Status Devices::check_norm(const std::string& where, Device device, const GradNorm* norm, std::size_t count) {
  DeviceState& state = known(device);
  if (norm != nullptr && norm == state.norm) return {};
  const auto bytes = static_cast<std::int64_t>(count * sizeof(GradNorm));
  if (Status bad = check_buffer(where, norm, bytes, alignof(GradNorm)); !bad.ok()) return bad;
  if (Status bad = state.work->check_pointer(where, norm); !bad.ok()) return bad;
  state.norm = norm;
  return {};
}

void Devices::prepare_workspace(StepPlan& plan, const EngineDevice& given) {
  DeviceState& state = known(given.device);
  const bool in_graph = state.work->in_graph(given.workspace.data(), given.stream);
  if (in_graph || state.tables_of != plan.number) plan.forget_workspace(given.device);
  state.tables_of = plan.number;
}

void Devices::tensors_changed() {
  for (DeviceState& state : states_) state.workspace = state.staging_at = nullptr;
}

}  // namespace octavo::engine
