// Gradient release: tensors are stepped when their gradients arrive. This step's norm is not known before the
// last gradient has arrived, so the previous step's norm clips.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"

#include <algorithm>

namespace octavo::engine {

using engine::name_of;

Result<StepReport> Engine::Impl::release(const EngineArgs& args, GradNorm* own, EngineCombine combine) {
  if (Status bad = check_args(args); !bad.ok()) return bad;
  if (begun->handles().empty()) return StepReport{};
  if (begun->needs().size() > 1) {
    return Status::invalid(registry.tag() + " ready: the begun tensors are on " +
                           std::to_string(begun->needs().size()) + " devices, expected one");
  }
  for (const std::uint32_t handle : begun->handles()) {
    if (!registry[handle].ready) continue;
    return fail({Status::invalid(registry.tag() + " tensor " + std::to_string(handle) +
                                 ": is ready a second time since the last finish, and its first gradient was "
                                 "used already; take one backward pass per step"),
                 handle});
  }
  const EngineDevice& given = *find(args, begun->needs()[0].device);
  const std::string where = registry.tag() + " " + name_of(given.device);
  if (own != nullptr) {
    if (!begun->has_norms(on_host)) {
      return Status::invalid(registry.tag() + " begin: was called without with_norm, and `own` asks for one");
    }
    if (begun->norms().size() > 1) {
      return Status::invalid(registry.tag() + " ready: the begun tensors belong to " +
                             std::to_string(begun->norms().size()) + " norm parts, expected one");
    }
    if (given.norm == nullptr)
      return Status::invalid(where + " norm: got null, expected that of the previous step (zeros at first)");
    if (Status bad = devices.check_norm(where + " own", given.device, own, 2); !bad.ok()) return bad;
    if (begun->norms()[0].part != 0 && combine.call == nullptr)
      return call(combine, "other ranks share the gradient");
  }
  // Without `own` the previous step's norm must not guard this one.
  EngineArgs used = args;
  EngineDevice device = given;
  if (own == nullptr) device.norm = nullptr;
  used.devices = {&device, 1};
  if (engine::Failure bad = check_step(used, own); !bad.status.ok()) return fail(std::move(bad));

  ready.reserve(ready.size() + begun->handles().size());
  if (own != nullptr) {
    devices.prepare_workspace(*begun, given);
    engine::NormSet& set = begun->norms()[0];
    if (Status bad = measure(set, given, own, args.threads); !bad.ok()) return bad;
    if (set.part != 0) {
      if (Status bad = call(combine, ""); !bad.ok()) return bad;
    }
    Status bad = devices.known(given.device).work->copy_previous(given.norm, own, own + 1, given.stream);
    if (!bad.ok()) return bad;
  }
  auto report = step(used, own == nullptr ? nullptr : own + 1);
  if (!report.ok()) return report;
  for (const std::uint32_t handle : begun->handles()) {
    registry[handle].ready = true;
    ready.push_back(handle);
  }
  registry[begun->handles()[0]].own = own;
  return report;
}

std::vector<const GradNorm*> Engine::Impl::owns(Device device) const {
  std::vector<std::uint32_t> handles = ready;
  std::sort(handles.begin(), handles.end());
  std::vector<const GradNorm*> found;
  for (const std::uint32_t handle : handles) {
    const engine::Record& record = registry[handle];
    if (record.own != nullptr && record.device == device) found.push_back(record.own);
  }
  return found;
}

Status Engine::Impl::finish(const EngineArgs& args, std::span<const EngineNormPart> parts,
                            EngineCombine combine) {
  if (Status bad = check_parts(parts); !bad.ok()) return bad;
  const bool any = std::ranges::any_of(ready, [&](auto handle) { return registry[handle].own != nullptr; });
  for (const EngineDevice& given : args.devices) {
    const auto state = devices.of(registry.tag(), given.device);
    if (!state.ok()) return state.status();
    const std::int64_t needed = (*state)->work->join_bytes(owns(given.device).size());
    if (Status bad = devices.check(registry, given, needed, 0); !bad.ok()) return bad;
  }
  for (const EngineNormPart& part : parts) {
    if (find(args, part.device) != nullptr) continue;
    return Status::invalid(registry.tag() + " devices: " + name_of(part.device) +
                           " is missing, and a norm of it is asked for");
  }
  if (parts.size() > 1 && combine.call == nullptr) return call(combine, "there are several devices");

  for (const EngineNormPart& part : parts) {
    const EngineDevice& given = *find(args, part.device);
    engine::DeviceState& state = devices.known(part.device);
    const auto own = owns(part.device);
    Status bad = own.empty() ? state.work->clear(part.out, given.stream)
                             : state.work->join(own, given.workspace, part.out, given.stream);
    if (!bad.ok()) return bad;
    if (!own.empty()) state.tables_of = 0;  // join has written into the workspace
  }
  if (parts.size() > 1) {
    if (Status bad = call(combine, ""); !bad.ok()) return bad;
  }
  for (const EngineDevice& given : args.devices) {
    const auto part = std::ranges::find_if(parts, [&](const auto& p) { return p.device == given.device; });
    const GradNorm* total = part == parts.end() ? nullptr : part->out;
    NormOps& work = *devices.known(given.device).work;
    if (any && total != nullptr && given.norm != nullptr) {
      if (Status bad = work.store_previous(total, given.norm, given.stream); !bad.ok()) return bad;
    }
    if (given.report != nullptr) {
      if (Status bad =
              work.write_report(args.skip_nonfinite ? total : nullptr, nullptr, given.report, given.stream);
          !bad.ok())
        return bad;
    }
  }
  for (const std::uint32_t handle : ready) {
    registry[handle].ready = false;
    registry[handle].own = nullptr;
  }
  ready.clear();
  return args.defer || !registry.offloads() ? Status() : order_after_weights(args);
}

}  // namespace octavo::engine
