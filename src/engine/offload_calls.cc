// The engine's calls about tensors whose states are in host memory: they check arguments and forward to
// src/offload. Everything that changes tensors, plans or orders waits first until no work is queued.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "optimizers/checks.h"

#include <algorithm>

namespace octavo::engine {

using engine::Record;
using offload::OffloadedTensor;

Status Engine::Impl::wait_until_idle() {
  if (Status bad = offload.check_usable(); !bad.ok()) return bad;
  return offload.synchronize();
}

std::vector<OffloadedTensor*> Engine::Impl::offloaded_of(std::span<const std::uint32_t> handles,
                                                         Device device) const {
  std::vector<OffloadedTensor*> found;
  const auto add = [&](OffloadedTensor* tensor) {
    if (tensor != nullptr && tensor->device == device) found.push_back(tensor);
  };
  for (const std::uint32_t handle : handles) add(registry[handle].offloaded.get());
  if (handles.empty()) std::ranges::for_each(registry.offloaded(), add);
  return found;
}

Status Engine::Impl::check_uncaptured(const char* call, Device device, void* stream) {
  const auto state = devices.of(registry.tag(), device);
  if (!state.ok()) return state.status();
  NormOps& work = *(*state)->work;
  const std::string where = registry.tag() + " " + call;
  if (Status bad = work.check_stream(where, stream); !bad.ok()) return bad;
  if (!work.capturing(stream)) return {};
  return Status::invalid(where +
                         ": a graph is captured, and it cannot hold the work of offloaded states; wait for "
                         "all weights before the capture");
}

// --- Gradients ---

Status Engine::take(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                    std::span<const DType> dtypes, Device device, void* stream) {
  Impl& impl = *impl_;
  impl.failed_tensor = -1;
  const std::string tag = impl.registry.tag();
  if (Status bad = impl.offload.check_usable(); !bad.ok()) return bad;
  if (grads.size() != handles.size() || dtypes.size() != handles.size()) {
    return Status::invalid(tag + " take: got " + std::to_string(grads.size()) + " gradients and " +
                           std::to_string(dtypes.size()) + " dtypes, expected " +
                           std::to_string(handles.size()) + ", one per handle");
  }
  if (engine::Failure bad = impl.registry.check_handles(handles); !bad.status.ok()) return impl.fail(bad);
  std::vector<OffloadedTensor*> tensors;
  tensors.reserve(handles.size());
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Record& record = impl.registry[handles[i]];
    const OffloadedTensor* own = record.offloaded.get();
    const auto fail = [&](const std::string& text) {
      return impl.fail(impl.registry.failure(handles[i], text));
    };
    if (own == nullptr) {
      return fail(
          ": its state is on the device, expected residence host or stream, for gradients that are taken to "
          "host memory");
    }
    if (!(record.device == device)) {
      return fail(": is on " + engine::name_of(record.device) + ", expected " + engine::name_of(device) +
                  ", the device of the gradients that are taken");
    }
    if (Status bad = impl.registry.check_dtype(handles[i], dtypes[i]); !bad.ok())
      return impl.fail({bad, handles[i]});
    if (own->has_host_grad && dtypes[i] != own->device_grad_dtype) {
      return fail(".grad: is " + std::string(name(dtypes[i])) + ", expected " +
                  std::string(name(own->device_grad_dtype)) +
                  ", as the first one that was taken since the last step");
    }
    const std::int64_t element = dtype_bytes(dtypes[i]);
    Status bad = check_buffer(tag + " tensor " + std::to_string(handles[i]) + ".grad", grads[i],
                              record.args.spec.numel * element, element);
    if (!bad.ok()) return impl.fail({bad, handles[i]});
    tensors.push_back(record.offloaded.get());
  }
  if (handles.empty()) return {};
  if (Status bad = impl.check_uncaptured("take", device, stream); !bad.ok()) return bad;
  return impl.offload.offload_grads(device, stream, tensors, grads, dtypes, impl.registry.offloaded(),
                                    impl.failed_tensor);
}

bool Engine::holds(std::uint32_t handle) const {
  if (!impl_->registry.knows(handle)) return false;
  const OffloadedTensor* own = impl_->registry[handle].offloaded.get();
  return own != nullptr && own->has_host_grad;
}

Status Engine::drop(std::span<const std::uint32_t> handles) {
  if (handles.empty()) {
    for (OffloadedTensor* tensor : impl_->registry.offloaded()) tensor->has_host_grad = false;
  }
  for (const std::uint32_t handle : handles) {
    if (!impl_->registry.knows(handle)) continue;
    if (auto& own = impl_->registry[handle].offloaded; own != nullptr) own->has_host_grad = false;
  }
  return {};
}

engine::Failure Engine::Impl::find_host_grads(std::span<const std::uint32_t> handles,
                                              std::vector<const void*>& grads, std::vector<DType>& dtypes) {
  next_on_host.clear();
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (!registry.knows(handles[i])) continue;
    const OffloadedTensor* own = registry[handles[i]].offloaded.get();
    if (own == nullptr || !own->has_host_grad) continue;
    if (grads[i] != nullptr) {
      return registry.failure(handles[i],
                              ".grad: another one was taken to host memory and not stepped yet; take this "
                              "one, too, and begin with null, or drop the other");
    }
    if (next_on_host.empty()) next_on_host.resize(handles.size());
    next_on_host[i] = 1;
    grads[i] = own->host_grad.get();
    dtypes[i] = own->host_grad_dtype;
  }
  return {};
}

engine::Failure Engine::Impl::check_host_grads() const {
  const std::span<const std::uint32_t> handles = begun->handles();
  for (std::size_t i = 0; registry.offloads() && i < handles.size(); ++i) {
    const OffloadedTensor* own = registry[handles[i]].offloaded.get();
    const bool then = !on_host.empty() && on_host[i] != 0;
    if (own == nullptr || own->has_host_grad == then) continue;
    const std::string what = then ? "stepped or dropped" : "taken to host memory";
    return registry.failure(handles[i], ".grad: was " + what + " since begin; call begin again");
  }
  return {};
}

Status Engine::Impl::reserve_host_params(std::span<const std::uint32_t> handles) {
  std::vector<OffloadedTensor*> tensors;
  for (const std::uint32_t handle : handles) {
    if (registry[handle].residence == Residence::host) tensors.push_back(registry[handle].offloaded.get());
  }
  return offload::reserve_host_params(offload.memory(), tensors);
}

Status Engine::Impl::reserve_host_grads(std::span<const std::uint32_t> handles,
                                        std::span<const DType> dtypes) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Record& record = registry[handles[i]];
    if (record.residence != Residence::host) continue;
    const std::int64_t bytes = record.args.spec.numel * dtype_bytes(dtypes[i]);
    Status bad = offload.grads().reserve(*record.offloaded, bytes, registry.offloaded());
    if (!bad.ok()) return bad;
  }
  return {};
}

Status Engine::Impl::measure(engine::NormSet& set, const EngineDevice& given, GradNorm* out, int threads) {
  const auto workspace = set.workspace(given.workspace);
  if (set.grads.empty()) return set.backend->run(workspace, out, given.stream, threads);
  return offload.norm({set.device, set.grads, set.backend.get(), workspace, out, given.stream, threads});
}

// --- Steps ---

std::int64_t Engine::Impl::staging_bytes(Device device) const {
  std::int64_t bytes = 0;
  if (begun == nullptr) return bytes;
  for (const engine::Cohort& cohort : begun->cohorts()) {
    if (cohort.offloaded != nullptr && cohort.device == device)
      bytes = std::max(bytes, cohort.offloaded->staging_bytes(cohort.host_grads));
  }
  return bytes;
}

engine::Failure Engine::Impl::check_offloaded(const engine::Cohort& cohort, const EngineDevice& given) {
  if (!devices.known(cohort.device).work->capturing(given.stream)) return {};
  return registry.failure(cohort.handles[0],
                          ": a graph is captured, and it cannot hold the work of offloaded states");
}

// The report is written here, in the order of the caller's stream, which does not wait for the step.
Result<StepReport> Engine::Impl::step_offloaded(engine::Cohort& cohort, const EngineDevice& given,
                                                StepArgs args) {
  NormOps& work = *devices.known(cohort.device).work;
  const GradNorm* counted = args.skip_nonfinite ? args.scalars.norm : nullptr;
  const float* found_inf = args.scalars.found_inf;
  args.scalars.report = nullptr;
  StepReport report;
  if (cohort.device.kind == DeviceKind::cpu) {
    if (Status bad = work.write_report(counted, found_inf, &report, nullptr); !bad.ok()) return bad;
  } else {
    report.pending = args.skip_nonfinite || found_inf != nullptr;
  }
  if (given.report != nullptr) {
    if (Status bad = work.write_report(counted, found_inf, given.report, given.stream); !bad.ok()) return bad;
  }
  const Status bad = offload.step({*cohort.offloaded, cohort.device, cohort.residence, cohort.tensors,
                                   cohort.indices, begun->grads(), begun->dtypes(), given.staging},
                                  args);
  if (!bad.ok()) return bad;
  return report;
}

Status Engine::Impl::order_after_weights(const EngineArgs& args) {
  for (const EngineDevice& given : args.devices) {
    if (Status bad = offload.order_after_all(given.device, given.stream); !bad.ok()) return bad;
  }
  return {};
}

Status Engine::wait(std::span<const std::uint32_t> handles, EngineWait what, Device device, void* stream) {
  Impl& impl = *impl_;
  impl.failed_tensor = -1;
  if (Status bad = impl.offload.check_usable(); !bad.ok()) return bad;
  if (what != EngineWait::weights && what != EngineWait::gradients) {
    return Status::invalid(impl.registry.tag() + " wait: got " +
                           std::to_string(static_cast<std::uint32_t>(what)) +
                           ", expected 0 (weights) or 1 (gradients)");
  }
  if (engine::Failure bad = impl.registry.check_handles(handles); !bad.status.ok()) return impl.fail(bad);
  const std::vector<OffloadedTensor*> found = impl.offloaded_of(handles, device);
  if (found.empty()) return {};
  if (Status bad = impl.check_uncaptured("wait", device, stream); !bad.ok()) return bad;
  if (what == EngineWait::gradients) return impl.offload.order_after_grads(device, stream, found);
  if (Status bad = impl.offload.order_after_weights(device, stream, found); !bad.ok()) return bad;
  // A caller that waits for all weights may free or replace the staging memory.
  return handles.empty() ? impl.offload.order_after_staging(device, stream) : Status();
}

Status Engine::synchronize() {
  impl_->failed_tensor = -1;
  return impl_->wait_until_idle();
}

Status Engine::set_order(std::span<const std::uint32_t> handles) {
  Impl& impl = *impl_;
  impl.failed_tensor = -1;
  if (Status bad = impl.offload.check_usable(); !bad.ok()) return bad;
  if (engine::Failure bad = impl.registry.check_handles(handles); !bad.status.ok()) return impl.fail(bad);
  std::vector<std::uint32_t> order(impl.registry.size(), OffloadedTensor::kLast);
  for (std::size_t i = 0; i < handles.size(); ++i) order[handles[i]] = static_cast<std::uint32_t>(i);
  const std::span<OffloadedTensor* const> tensors = impl.registry.offloaded();
  const auto is_set = [&](const OffloadedTensor* tensor) { return tensor->order == order[tensor->handle]; };
  if (std::ranges::all_of(tensors, is_set)) return {};
  if (Status bad = impl.offload.synchronize(); !bad.ok()) return bad;
  for (OffloadedTensor* tensor : tensors) tensor->order = order[tensor->handle];
  impl.tensors_changed();
  return {};
}

std::int64_t Engine::staging_bytes(Device device) const { return impl_->staging_bytes(device); }

// --- Host memory ---

Status Engine::refresh(std::span<const std::uint32_t> handles, EngineCopy way, Device device, void* stream) {
  Impl& impl = *impl_;
  impl.failed_tensor = -1;
  if (Status bad = impl.offload.check_usable(); !bad.ok()) return bad;
  if (way != EngineCopy::to_host && way != EngineCopy::to_device) {
    return Status::invalid(impl.registry.tag() + " refresh: got " +
                           std::to_string(static_cast<std::uint32_t>(way)) +
                           ", expected 0 (to the host) or 1 (to the device)");
  }
  if (engine::Failure bad = impl.registry.check_handles(handles); !bad.status.ok()) return impl.fail(bad);
  std::vector<OffloadedTensor*> found = impl.offloaded_of(handles, device);
  std::erase_if(found, [](const auto* tensor) { return tensor->residence != Residence::host; });
  if (found.empty()) return {};
  if (Status bad = impl.check_uncaptured("refresh", device, stream); !bad.ok()) return bad;
  const auto stale = std::ranges::find_if(found, &OffloadedTensor::param_copy_stale);
  if (way == EngineCopy::to_device && stale != found.end()) {
    return impl.fail(impl.registry.failure((*stale)->handle,
                                           ": has no copy of its parameter in host memory yet; a step, or "
                                           "refresh to the host, makes it"));
  }
  const auto direction =
      way == EngineCopy::to_host ? offload::ParamCopy::to_host : offload::ParamCopy::to_device;
  return impl.offload.refresh_params(device, stream, found, direction);
}

void* Engine::host_param(std::uint32_t handle) const {
  if (!impl_->registry.knows(handle)) return nullptr;
  const OffloadedTensor* own = impl_->registry[handle].offloaded.get();
  return own == nullptr || own->param_copy_stale ? nullptr : own->param_copy.get();
}

Status Engine::set_host_memory(offload::HostAllocator memory) {
  const std::string where = impl_->registry.tag() + " set_host_memory: ";
  if ((memory.allocate == nullptr) != (memory.release == nullptr))
    return Status::invalid(where + "got one function, expected both, or none for the engine's own memory");
  if (impl_->registry.offloads() || impl_->offload.memory().used())
    return Status::invalid(where + "an offloaded tensor was set already; call it before that");
  impl_->offload.memory().set_allocator({memory.allocate, memory.release, memory.user});
  return {};
}

std::int64_t Engine::host_bytes() const { return impl_->offload.memory().bytes(); }

}  // namespace octavo::engine
