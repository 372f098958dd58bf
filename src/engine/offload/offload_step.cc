// A step of tensors whose states are in host memory: what it needs is brought where it is read, and what is
// under way afterwards is noted with each tensor.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "status/first_error.h"

#include <algorithm>

namespace octavo {

using engine::Cohort;
using engine::DeviceState;
using offload::Offloaded;

std::int64_t Engine::Impl::staging_bytes(Device device) const {
  std::int64_t bytes = 0;
  if (begun == nullptr) return bytes;
  for (const Cohort& cohort : begun->cohorts()) {
    if (cohort.offloaded != nullptr && cohort.device == device)
      bytes = std::max({bytes, offload::Staging::kHeadBytes, cohort.offloaded->staging_bytes()});
  }
  return bytes;
}

engine::Failure Engine::Impl::check_offloaded(const Cohort& cohort, const EngineDevice& given) {
  if (!devices.known(cohort.device).work->capturing(given.stream)) return {};
  return {Status::invalid(registry.tag() + " tensor " + std::to_string(cohort.handles[0]) +
                          ": a graph is captured, and it cannot hold the work of offloaded states"),
          cohort.handles[0]};
}

// host: gradients, and weights that somebody else has written, to host memory.
Status Engine::Impl::bring_down(Cohort& cohort, offload::Link& link, const offload::Mark& caller) {
  std::vector<std::uint32_t> stale;
  for (const std::uint32_t handle : cohort.handles) {
    if (registry[handle].offloaded->stale) stale.push_back(handle);
  }
  if (!stale.empty()) {
    const auto copied = copy_params(stale, EngineCopy::to_host, link, caller);
    if (!copied.ok()) return copied.status();
  }
  Status bad = behind(link.down(), caller);
  for (std::size_t i = 0; i < cohort.handles.size() && bad.ok(); ++i) {
    const std::uint32_t place = cohort.places[i];
    if (!held.empty() && held[place] != 0) continue;
    const DType dtype = begun->dtypes()[place];
    bad = take(cohort.handles[i], begun->grads()[place], dtype, dtype, link, false);  // its norm is known
  }
  // Copies that go up must be gone, and those that come down be there, before the CPU writes them.
  for (const std::uint32_t handle : cohort.handles) {
    const Offloaded& own = *registry[handle].offloaded;
    if (bad.ok()) bad = first_error({behind(link.host(), own.weight), behind(link.host(), own.copied)});
  }
  return bad;
}

// host: scalars come down to a place of their own; they are there behind the mark that is returned.
Result<offload::Mark> Engine::Impl::bring_scalars(DeviceState& state, StepArgs& args,
                                                  const EngineDevice& given) {
  const auto kept = state.staging->keep(args.scalars, given.stream);
  if (!kept.ok()) return kept.status();
  const auto caller = state.link->mark(given.stream);
  if (!caller.ok()) return caller.status();
  if (state.scalars.bytes == 0) {
    const auto bytes = static_cast<std::int64_t>(engine::kScalarPlaces) * engine::kScalarBytes;
    auto piece = memory.take(bytes, bytes, pins(state.device));
    if (!piece.ok()) return piece.status();
    state.scalars = std::move(*piece);
    state.scalars_read.resize(engine::kScalarPlaces);
  }
  state.scalar_place = (state.scalar_place + 1) % engine::kScalarPlaces;
  std::byte* at = state.scalars.get() + static_cast<std::int64_t>(state.scalar_place) * engine::kScalarBytes;
  offload::Queue& down = state.link->down();
  Status bad = first_error({behind(down, *caller), behind(down, state.scalars_read[state.scalar_place])});
  args.scalars = *kept;
  const auto copy = [&]<class T>(const T*& scalar) {
    if (scalar == nullptr || !bad.ok()) return;
    bad = down.copy(at, scalar, sizeof *scalar, "scalars down");
    scalar = reinterpret_cast<const T*>(at);
    at += sizeof *scalar;
  };
  static_assert(sizeof(GradNorm) + 3 * sizeof(float) <= engine::kScalarBytes);
  copy(args.scalars.norm);
  copy(args.scalars.lr);
  copy(args.scalars.loss_scale);
  copy(args.scalars.found_inf);
  auto mark = bad.ok() ? down.mark() : Result<offload::Mark>(bad);
  if (mark.ok()) state.staging->kept_until(state.staging->kept(), *mark);
  return mark;
}

Result<StepReport> Engine::Impl::step_offloaded(Cohort& cohort, const EngineDevice& given, StepArgs args) {
  DeviceState& state = devices.known(cohort.device);
  offload::Link& link = *state.link;
  const bool host = cohort.residence == Residence::host;
  const GradNorm* counted = args.guard ? args.scalars.norm : nullptr;
  const float* found_inf = args.scalars.found_inf;
  const bool scalars = args.scalars.norm != nullptr || args.scalars.lr != nullptr ||
                       args.scalars.loss_scale != nullptr || found_inf != nullptr;
  // The report is the caller's, in the order of its stream, which may not wait for the step.
  args.scalars.report = nullptr;
  StepReport report;
  if (cohort.device.kind == DeviceKind::cpu) {
    if (Status bad = state.work->write_report(counted, found_inf, &report, nullptr); !bad.ok()) return bad;
  } else {
    report.pending = args.guard || found_inf != nullptr;
  }
  if (given.report != nullptr) {
    if (Status bad = state.work->write_report(counted, found_inf, given.report, given.stream); !bad.ok())
      return bad;
  }

  const auto caller = link.mark(given.stream);
  if (!caller.ok()) return keep_error(caller.status());
  if (Status bad = state.staging->place(given.staging, *caller); !bad.ok()) return keep_error(bad);
  offload::OffloadedStep::Call call;
  call.staging = state.staging.get();
  call.caller = *caller;
  if (host && scalars) {
    auto mark = bring_scalars(state, args, given);
    if (!mark.ok()) return keep_error(mark.status());
    call.scalars = std::move(*mark);
  }
  if (host) {
    if (Status bad = bring_down(cohort, link, *caller); !bad.ok()) return keep_error(bad);
  }
  std::vector<const void*> grads(cohort.handles.size());
  std::vector<offload::Mark> complete(cohort.handles.size());
  for (std::size_t i = 0; i < cohort.handles.size(); ++i) {
    const Offloaded& own = *registry[cohort.handles[i]].offloaded;
    if (!own.holds) continue;
    grads[i] = own.held.get();
    complete[i] = own.complete;
  }
  call.held = grads;
  call.complete = complete;
  cohort.offloaded->prepare(call);
  const auto done = cohort.offloaded->step(args);
  if (!done.ok()) return keep_error(done.status());
  if (host && scalars) {
    auto mark = link.host().mark();
    if (!mark.ok()) return keep_error(mark.status());
    state.scalars_read[state.scalar_place] = std::move(*mark);
  }
  for (std::size_t i = 0; i < cohort.handles.size(); ++i) {
    Offloaded& own = *registry[cohort.handles[i]].offloaded;
    // Where nothing was queued (a step that is skipped), what was under way before still is.
    const auto note = [](offload::Promise& here, const offload::Promise& now) {
      if (now.mark != nullptr || now.queued.state() != nullptr) here = now;
    };
    note(own.weight, cohort.offloaded->weight(i));
    note(own.holds ? own.released : own.read, cohort.offloaded->gradient(i));
    own.holds = false;
  }
  return report;
}

}  // namespace octavo
