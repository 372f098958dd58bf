// The engine's side of offload: gradients that are taken to host memory, and who waits for what.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"

#include <algorithm>
#include <cstring>

namespace octavo {

Status Engine::take(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                    std::span<const DType> dtypes, Device /*device*/, void* /*stream*/) {
  Impl& impl = *impl_;
  if (grads.size() != handles.size() || dtypes.size() != handles.size())
    return Status::invalid(impl.registry.tag() + " take: expected a gradient and a dtype per handle");
  if (engine::Failure bad = impl.registry.check_handles(handles); !bad.status.ok()) return impl.fail(bad);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    engine::Record& record = impl.registry[handles[i]];
    if (record.residence == Residence::device || record.held_now) {
      return impl.fail({Status::unsupported(impl.registry.tag() + " tensor " + std::to_string(handles[i]) +
                                            ": cannot be taken (yet)"),
                        handles[i]});
    }
    const auto bytes = static_cast<std::size_t>(record.args.spec.numel * dtype_bytes(dtypes[i]));
    record.held.resize(bytes);
    if (bytes > 0) std::memcpy(record.held.data(), grads[i], bytes);
    record.held_dtype = dtypes[i];
    record.held_now = true;
  }
  return {};
}

bool Engine::holds(std::uint32_t handle) const {
  return impl_->registry.knows(handle) && impl_->registry[handle].held_now;
}

Status Engine::drop(std::span<const std::uint32_t> handles) {
  if (handles.empty()) {
    for (std::uint32_t handle = 0; handle < impl_->registry.size(); ++handle)
      impl_->registry[handle].held_now = false;
  }
  for (const std::uint32_t handle : handles) {
    if (impl_->registry.knows(handle)) impl_->registry[handle].held_now = false;
  }
  return {};
}

Status Engine::wait(std::span<const std::uint32_t> handles, EngineWait /*what*/, Device /*device*/,
                    void* /*stream*/) {
  return impl_->fail(impl_->registry.check_handles(handles));
}

Status Engine::refresh(std::span<const std::uint32_t> handles, EngineCopy /*way*/, Device /*device*/,
                       void* /*stream*/) {
  return impl_->fail(impl_->registry.check_handles(handles));
}

void* Engine::host_param(std::uint32_t /*handle*/) const { return nullptr; }

Status Engine::synchronize() { return {}; }

Status Engine::set_order(std::span<const std::uint32_t> handles) {
  return impl_->fail(impl_->registry.check_handles(handles));
}

std::int64_t Engine::staging_bytes(Device /*device*/) const { return 0; }

Status Engine::set_host_memory(EngineHostMemory /*memory*/) { return {}; }

std::int64_t Engine::host_bytes() const { return 0; }

}  // namespace octavo
