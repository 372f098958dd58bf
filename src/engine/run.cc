// Norms and steps of the current begin. Everything is checked before the first cohort is stepped.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "optimizers/checks.h"

#include <algorithm>
#include <cmath>

namespace octavo::engine {

using engine::name_of;

namespace {
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 62;

// Passes a cohort's sums to the caller's function.
struct SharedSums {
  EngineSums to;
  Device device;
  std::uint32_t part;
  bool failed = false;

  static void add(void* self, double* sums, std::int64_t count, void* /*stream*/) {
    auto& own = *static_cast<SharedSums*>(self);
    own.failed = own.to.add(own.to.user, own.device, own.part, sums, count) != 0;
  }
};
}  // namespace

const EngineDevice* Engine::Impl::find(const EngineArgs& args, Device device) {
  const auto at =
      std::ranges::find_if(args.devices, [&](const auto& given) { return given.device == device; });
  return at == args.devices.end() ? nullptr : &*at;
}

Status Engine::Impl::check_args(const EngineArgs& args) {
  if (begun == nullptr) {
    return Status::invalid(registry.tag() +
                           " begin: nothing was begun since the tensors changed; call begin first");
  }
  if (!std::isfinite(static_cast<float>(args.grad_factor))) {
    return Status::invalid(registry.tag() + " grad_factor: got " + std::to_string(args.grad_factor) +
                           ", expected a finite number");
  }
  if (Status bad = check_threads(registry.tag(), args.threads); !bad.ok()) return bad;
  for (const engine::DeviceNeed& need : begun->needs()) {
    if (find(args, need.device) == nullptr) {
      return Status::invalid(registry.tag() + " devices: " + name_of(need.device) +
                             " is missing, expected every device that a begun tensor is on");
    }
  }
  for (const EngineDevice& given : args.devices) {
    const engine::DeviceNeed* need = begun->need(given.device);
    const std::int64_t bytes = need == nullptr ? 0 : need->bytes;
    if (Status bad = devices.check(registry, given, bytes, staging_bytes(given.device)); !bad.ok())
      return bad;
  }
  return {};
}

Status Engine::Impl::check_parts(std::span<const EngineNormPart> parts) {
  for (const EngineNormPart& part : parts) {
    const auto state = devices.of(registry.tag(), part.device);
    if (!state.ok()) return state.status();
    const std::string where = registry.tag() + " " + name_of(part.device) + " norm of part ";
    if (Status bad = devices.check_norm(where + std::to_string(part.part), part.device, part.out, 1);
        !bad.ok())
      return bad;
  }
  return {};
}

Status Engine::Impl::call(EngineCombine combine, const char* why) const {
  if (combine.call == nullptr) {
    return Status::invalid(registry.tag() +
                           " combine: got null, expected a function that sums norms, since " + why);
  }
  if (combine.call(combine.user) == 0) return {};
  return Status::failed(registry.tag() + " combine: the caller's function has failed");
}

Status Engine::Impl::norm(const EngineArgs& args, std::span<const EngineNormPart> parts,
                          EngineCombine combine) {
  if (Status bad = check_args(args); !bad.ok()) return bad;
  if (engine::Failure bad = check_host_grads(); !bad.status.ok()) return fail(std::move(bad));
  if (!begun->has_norms(on_host) && !begun->handles().empty()) {
    return Status::invalid(registry.tag() + " begin: was called without with_norm, and a norm is asked for");
  }
  if (Status bad = check_parts(parts); !bad.ok()) return bad;
  const auto same = [](const auto& a, const auto& b) { return a.device == b.device && a.part == b.part; };
  for (const engine::NormSet& set : begun->norms()) {
    if (std::ranges::none_of(parts, [&](const auto& part) { return same(part, set); })) {
      return Status::invalid(registry.tag() + " parts: part " + std::to_string(set.part) + " of " +
                             name_of(set.device) + " is missing, expected the parts of all begun gradients");
    }
  }
  const bool combined = parts.size() > 1 || (parts.size() == 1 && parts[0].part != 0);
  if (combined && combine.call == nullptr) return call(combine, "there are several parts, or other ranks");
  for (const EngineNormPart& part : parts) {
    if (find(args, part.device) != nullptr) continue;
    return Status::invalid(registry.tag() + " devices: " + name_of(part.device) +
                           " is missing, and a norm of it is asked for");
  }
  for (const engine::DeviceNeed& need : begun->needs())
    devices.prepare_workspace(*begun, *find(args, need.device));
  for (const EngineNormPart& part : parts) {
    const EngineDevice& given = *find(args, part.device);
    const auto set = std::ranges::find_if(begun->norms(), [&](const auto& one) { return same(one, part); });
    Status bad = set == begun->norms().end() ? devices.known(part.device).work->clear(part.out, given.stream)
                                             : measure(*set, given, part.out, args.threads);
    if (!bad.ok()) return bad;
  }
  return combined ? call(combine, "") : Status();
}

engine::Failure Engine::Impl::check_step(const EngineArgs& args, const GradNorm* norm) {
  if (engine::Failure bad = check_host_grads(); !bad.status.ok()) return bad;
  for (const engine::Cohort& cohort : begun->cohorts()) {
    const EngineDevice& given = *find(args, cohort.device);
    const EngineGroup& options = registry.group(cohort.group).options;
    const auto where = [&] { return registry.tag() + " " + name_of(cohort.device); };
    if (options.switches != cohort.switches) {
      return {Status::invalid(registry.tag() + " group " + std::to_string(cohort.group) +
                              ": its switches have changed since begin; give its tensors to set again"),
              cohort.handles[0]};
    }
    if ((args.skip_nonfinite || options.clip_grad_norm > 0.0) && norm == nullptr && given.norm == nullptr) {
      return {Status::invalid(where() + " norm: got null, expected the norm of the gradients, because " +
                              (args.skip_nonfinite
                                   ? "skip_nonfinite is on"
                                   : "group " + std::to_string(cohort.group) + " has a clip_grad_norm"))};
    }
    if (cohort.part != 0 && args.sums.add == nullptr) {
      return registry.failure(
          cohort.handles[0],
          ": the algorithm measures whole tensors, and other ranks have parts of it (part " +
              std::to_string(cohort.part) + "); give a function that adds what they measure");
    }
    if (cohort.offloaded != nullptr) {
      if (engine::Failure bad = check_offloaded(cohort, given); !bad.status.ok()) return bad;
    }
    if (cohort.on_device) continue;
    if (const std::int64_t count = *cohort.counts[0]; count < 0 || count >= kMaxSteps) {
      return registry.failure(cohort.handles[0], ".step: holds " + std::to_string(count) +
                                                     ", expected 0 to 2^62, the steps taken so far");
    }
    if (cohort.device.kind == DeviceKind::cpu || cohort.residence == Residence::host) continue;
    const char* why =
        args.skip_nonfinite          ? "with skip_nonfinite only the device knows whether the step is taken"
        : given.found_inf != nullptr ? "with found_inf only the device knows whether the step is taken"
        : devices.known(cohort.device).work->capturing(given.stream)
            ? "a graph is captured, and its replays could not count"
            : nullptr;
    if (why != nullptr) {
      return {
          Status::invalid(where() + " step: the step count of tensor " + std::to_string(cohort.handles[0]) +
                          " is in host memory, expected device memory, because " + why),
          cohort.handles[0]};
    }
  }
  return {};
}

Result<StepReport> Engine::Impl::step(engine::Cohort& cohort, const EngineArgs& args, const GradNorm* norm) {
  const EngineDevice& given = *find(args, cohort.device);
  const EngineGroup& options = registry.group(cohort.group).options;
  StepArgs one;
  one.hyper = options.hyper;
  one.seed = options.seed;
  one.grad_factor = args.grad_factor;
  one.skip_nonfinite = args.skip_nonfinite;
  one.threads = args.threads;
  one.stream = given.stream;
  one.workspace = cohort.workspace(given.workspace);
  one.scalars.loss_scale = given.loss_scale;
  one.scalars.found_inf = given.found_inf;
  one.scalars.report = given.report;
  one.scalars.norm = norm != nullptr ? norm : given.norm;
  one.clip_grad_norm = one.scalars.norm != nullptr ? options.clip_grad_norm : 0.0;
  if (options.lr != nullptr && options.lr_device == cohort.device) one.scalars.lr = options.lr;
  if (cohort.on_device) {
    one.scalars.step = cohort.counts[0];
  } else {
    one.step = *cohort.counts[0] + 1;
  }
  SharedSums shared{args.sums, cohort.device, cohort.part};
  if (cohort.part != 0) one.sums = {&SharedSums::add, &shared};
  auto report = cohort.offloaded != nullptr ? step_offloaded(cohort, given, one) : cohort.backend->step(one);
  if (!report.ok()) return report;
  if (shared.failed)
    return Status::failed(registry.tag() +
                          " sums: the caller's function has failed; the step was taken without");
  registry.stepped(cohort.handles);
  // The host queue advances the counts of its tensors.
  if (!cohort.on_device && cohort.residence != Residence::host && !report->skipped) {
    for (std::int64_t* count : cohort.counts) ++*count;
  }
  return report;
}

Result<StepReport> Engine::Impl::step(const EngineArgs& args, const GradNorm* norm) {
  if (Status bad = check_args(args); !bad.ok()) return bad;
  if (engine::Failure bad = check_step(args, norm); !bad.status.ok()) return fail(std::move(bad));
  for (const engine::DeviceNeed& need : begun->needs())
    devices.prepare_workspace(*begun, *find(args, need.device));
  StepReport all;
  for (engine::Cohort& cohort : begun->cohorts()) {
    const auto report = step(cohort, args, norm);
    if (!report.ok()) return report;
    all.skipped = all.skipped || report->skipped;
    all.pending = all.pending || report->pending;
    all.nonfinite = std::max(all.nonfinite, report->nonfinite);
  }
  if (!args.defer && registry.offloads()) {
    if (Status bad = order_after_weights(args); !bad.ok()) return bad;
  }
  for (const EngineDevice& given : args.devices) {
    if (given.report == nullptr || begun->need(given.device) != nullptr) continue;
    const GradNorm* counted = args.skip_nonfinite ? given.norm : nullptr;
    Status bad = devices.known(given.device).work->write_report(counted, nullptr, given.report, given.stream);
    if (!bad.ok()) return bad;
  }
  return all;
}

}  // namespace octavo::engine
