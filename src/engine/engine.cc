// The public Engine: registration of tensors and groups, and the begin of a step.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "optimizers/checks.h"

#include <algorithm>
#include <vector>

namespace octavo::engine {

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Result<Engine> Engine::create(Algorithm algorithm) {
  GroupConfig config;
  config.algorithm = algorithm;
  config.momentum = false;
  if (Status bad = check_config(config); !bad.ok()) return bad;
  return Engine(std::make_unique<Impl>(algorithm));
}

Status Engine::set_group(std::uint32_t group, const EngineGroup& options) {
  if (Status bad = impl_->offload.check_usable(); !bad.ok()) return bad;
  return impl_->fail({impl_->registry.set_group(group, options)});
}

Status Engine::set(std::span<const std::uint32_t> handles, std::span<const EngineTensor> tensors) {
  if (Status bad = impl_->wait_until_idle(); !bad.ok()) return impl_->fail({bad});
  engine::Failure failure = impl_->registry.set(handles, tensors);
  if (failure.status.ok()) impl_->tensors_changed();
  return impl_->fail(std::move(failure));
}

void Engine::remove(std::span<const std::uint32_t> handles) {
  (void)impl_->offload.synchronize();  // later calls return its error
  impl_->registry.remove(handles);
  std::erase_if(impl_->ready, [&](std::uint32_t handle) { return !impl_->registry.knows(handle); });
  impl_->tensors_changed();
}

Status Engine::set_counts(std::span<const std::uint32_t> handles, std::span<const std::int64_t> values) {
  if (Status bad = impl_->wait_until_idle(); !bad.ok()) return impl_->fail({bad});
  engine::Failure failure = impl_->registry.set_counts(handles, values);
  if (failure.status.ok()) impl_->tensors_changed();  // other tensors may be stepped together now
  return impl_->fail(std::move(failure));
}

Result<EnginePlan> Engine::begin(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                                 std::span<const DType> dtypes, bool with_norm) {
  Impl& impl = *impl_;
  if (Status bad = impl.offload.check_usable(); !bad.ok()) return impl.fail({bad});
  if (grads.size() != handles.size() || dtypes.size() != handles.size()) {
    return impl.fail({Status::invalid(impl.registry.tag() + " grads: got " + std::to_string(grads.size()) +
                                      " and " + std::to_string(dtypes.size()) + " dtypes, expected " +
                                      std::to_string(handles.size()) + ", one per tensor")});
  }
  if (with_norm) impl.offload.grads().sum_on_arrival();
  if (!impl.registry.offloads()) return impl.begin(handles, grads, dtypes, with_norm);
  std::vector<const void*> found(grads.begin(), grads.end());
  std::vector<DType> types(dtypes.begin(), dtypes.end());
  if (engine::Failure bad = impl.find_host_grads(handles, found, types); !bad.status.ok())
    return impl.fail(std::move(bad));
  for (const std::uint32_t handle : handles) {
    if (!impl.registry.knows(handle) || impl.registry[handle].residence != Residence::host) continue;
    const offload::OffloadedTensor& tensor = *impl.registry[handle].offloaded;
    if (Status bad = impl.offload.wait_for_count(tensor); !bad.ok()) return impl.fail({bad});
  }
  return impl.begin(handles, found, types, with_norm);
}

// Runs at every step. REQUIRES: known handles.
engine::Failure Engine::Impl::check_grads(std::span<const std::uint32_t> handles,
                                          std::span<const void* const> grads,
                                          std::span<const DType> dtypes) const {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const std::int64_t element = dtype_bytes(dtypes[i]);
    const std::int64_t bytes = registry[handles[i]].args.spec.numel * element;
    const auto address = reinterpret_cast<std::uintptr_t>(grads[i]);
    if (bytes == 0 || (address != 0 && address % static_cast<std::uintptr_t>(element) == 0)) continue;
    return {check_buffer(registry.tag() + " tensor " + std::to_string(handles[i]) + ".grad", grads[i], bytes,
                         element),
            handles[i]};
  }
  return {};
}

engine::Failure Engine::Impl::check_new(std::span<const std::uint32_t> handles,
                                        std::span<const void* const> grads,
                                        std::span<const DType> dtypes) const {
  if (engine::Failure bad = registry.check_handles(handles); !bad.status.ok()) return bad;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const engine::Record& record = registry[handles[i]];
    if (Status bad = registry.check_dtype(handles[i], dtypes[i]); !bad.ok()) return {bad, handles[i]};
    if (record.switches != registry.group(record.group).options.switches) {
      return registry.failure(handles[i],
                              ": the switches of its group " + std::to_string(record.group) +
                                  " have changed, and with them its moments; give it to set again");
    }
    const auto bytes = static_cast<std::size_t>(record.args.spec.numel * dtype_bytes(dtypes[i]));
    if (const auto other = registry.ranges().find(grads[i], bytes)) {
      return registry.failure(handles[i], ".grad: overlaps " + engine::name_of(*other) +
                                              "; a gradient must not share memory with what a step writes");
    }
  }
  return check_grads(handles, grads, dtypes);
}

Result<EnginePlan> Engine::Impl::begin(std::span<const std::uint32_t> handles,
                                       std::span<const void* const> grads, std::span<const DType> dtypes,
                                       bool with_norm) {
  engine::StepPlan* plan =
      begun != nullptr && begun->is_for(handles, dtypes) ? begun : plans.find(handles, dtypes);
  const bool fresh = plan == nullptr || !plan->fits(registry);
  if (fresh) {
    if (engine::Failure bad = check_new(handles, grads, dtypes); !bad.status.ok())
      return fail(std::move(bad));
    if (Status bad = reserve_host_params(handles); !bad.ok()) return fail({bad});
    auto made = engine::StepPlan::make(registry, handles, grads, dtypes, offload);
    if (!made.ok()) return fail({made.status()});
    if (with_norm) {
      if (Status bad = (*made)->add_norms(registry, next_on_host); !bad.ok()) return fail({bad});
    }
    (*made)->number = ++plan_numbers;
    begun = nullptr;  // the cache may drop that plan
    plan = plans.insert(std::move(*made), dtypes);
  } else {
    if (engine::Failure bad = check_grads(handles, grads, dtypes); !bad.status.ok())
      return fail(std::move(bad));
    if (with_norm && !plan->has_norms(next_on_host)) {
      if (Status bad = plan->add_norms(registry, next_on_host); !bad.ok()) return fail({bad});
      plan->number = ++plan_numbers;
    }
    if (Status bad = plan->bind(grads); !bad.ok()) return fail({bad});
  }
  if (Status bad = reserve_host_grads(handles, dtypes); !bad.ok()) return fail({bad});
  begun = plan;
  on_host = next_on_host;
  for (engine::Cohort& cohort : begun->cohorts()) {
    cohort.host_grads = !on_host.empty() && std::ranges::any_of(cohort.indices, [&](auto place) {
      return cohort.offloaded != nullptr && on_host[place] != 0;
    });
  }
  return EnginePlan{fresh, plan->number, static_cast<std::int64_t>(plan->cohorts().size())};
}

std::int64_t Engine::workspace_bytes(Device device) const {
  const engine::DeviceNeed* need = impl_->begun == nullptr ? nullptr : impl_->begun->need(device);
  std::int64_t bytes = need == nullptr ? 0 : need->bytes;
  if (!impl_->ready.empty()) {  // their step has made the state of their device
    const auto count = impl_->owns(device).size();
    if (count > 0) bytes = std::max(bytes, impl_->devices.known(device).work->join_bytes(count));
  }
  return bytes;
}

Status Engine::norm(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine) {
  impl_->failed_tensor = -1;
  if (Status bad = impl_->offload.check_usable(); !bad.ok()) return bad;
  return impl_->norm(args, parts, combine);
}

Result<StepReport> Engine::step(const EngineArgs& args) {
  impl_->failed_tensor = -1;
  if (Status bad = impl_->offload.check_usable(); !bad.ok()) return bad;
  return impl_->step(args, nullptr);
}

Result<StepReport> Engine::ready(const EngineArgs& args, GradNorm* own, EngineCombine combine) {
  impl_->failed_tensor = -1;
  if (Status bad = impl_->offload.check_usable(); !bad.ok()) return bad;
  return impl_->release(args, own, combine);
}

Status Engine::finish(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine) {
  impl_->failed_tensor = -1;
  if (Status bad = impl_->offload.check_usable(); !bad.ok()) return bad;
  return impl_->finish(args, parts, combine);
}

void Engine::forget_ready() {
  for (const std::uint32_t handle : impl_->ready) {
    impl_->registry[handle].ready = false;
    impl_->registry[handle].own = nullptr;
  }
  impl_->ready.clear();
}

std::int64_t Engine::failed_tensor() const { return impl_->failed_tensor; }

}  // namespace octavo::engine
