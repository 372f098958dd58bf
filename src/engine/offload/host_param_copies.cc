// Copies of parameters in host memory, of tensors that the CPU steps: made before the first step, after the
// tensor was set again, and whenever somebody says that one side was written.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "status/first_error.h"

#include <algorithm>

namespace octavo {

using engine::Record;
using offload::Offloaded;

// Room for copies of the parameters of `host` tensors.
Status Engine::Impl::reserve_copies(std::span<const std::uint32_t> handles) {
  const auto bytes_of = [&](std::uint32_t handle) {
    const TensorSpec& spec = registry[handle].args.spec;
    return spec.numel * dtype_bytes(spec.param_dtype);
  };
  std::vector<std::uint32_t> fresh;
  std::int64_t expected = 0;
  for (const std::uint32_t handle : handles) {
    const Record& record = registry[handle];
    if (record.residence != Residence::host || record.offloaded->copy.bytes >= bytes_of(handle)) continue;
    fresh.push_back(handle);
    expected += bytes_of(handle) + 256;
  }
  for (const std::uint32_t handle : fresh) {
    auto piece = memory.take(bytes_of(handle), expected, pins(registry[handle].device));
    if (!piece.ok()) return piece.status();
    registry[handle].offloaded->copy = std::move(*piece);
    expected -= bytes_of(handle) + 256;
  }
  return {};
}

// REQUIRES: host tensors that have copies, of the link's device.
Result<offload::Mark> Engine::Impl::copy_params(std::span<const std::uint32_t> handles, EngineCopy way,
                                                offload::Link& link, const offload::Mark& caller) {
  const bool to_host = way == EngineCopy::to_host;
  offload::Queue& queue = to_host ? link.down() : link.up();
  Status bad = behind(queue, caller);
  for (const std::uint32_t handle : handles) {
    const Record& record = registry[handle];
    Offloaded& own = *record.offloaded;
    if (bad.ok()) bad = first_error({behind(queue, own.weight), behind(queue, own.copied)});
    void* const to = to_host ? own.copy.get() : record.args.param;
    const void* const from = to_host ? record.args.param : own.copy.get();
    const std::int64_t bytes = record.args.spec.numel * dtype_bytes(record.args.spec.param_dtype);
    if (bad.ok() && bytes > 0) bad = queue.copy(to, from, bytes, to_host ? "weights down" : "weights up");
  }
  auto mark = bad.ok() ? queue.mark() : Result<offload::Mark>(bad);
  if (!mark.ok()) return keep_error(mark.status());
  for (const std::uint32_t handle : handles) {
    Offloaded& own = *registry[handle].offloaded;
    own.copied = *mark;
    own.stale = false;
  }
  return mark;
}

Status Engine::Impl::refresh(std::span<const std::uint32_t> handles, EngineCopy way, Device device,
                             void* stream) {
  std::vector<std::uint32_t> found = offloaded_of(handles, device);
  std::erase_if(found, [&](std::uint32_t handle) { return registry[handle].residence != Residence::host; });
  if (found.empty()) return {};
  const auto link = devices.link(registry.tag(), device);
  if (!link.ok()) return link.status();
  if (Status bad = check_uncaptured("refresh", device, stream); !bad.ok()) return bad;
  if (way == EngineCopy::to_device) {
    const auto stale = std::ranges::find_if(found, [&](auto h) { return registry[h].offloaded->stale; });
    if (stale != found.end()) {
      return fail({Status::invalid(registry.tag() + " tensor " + std::to_string(*stale) +
                                   ": has no copy of its parameter in host memory yet; a step, or refresh "
                                   "to the host, makes it"),
                   *stale});
    }
  }
  if (Status bad = wait_for_counts(found); !bad.ok()) return bad;
  if (Status bad = reserve_copies(found); !bad.ok()) return bad;
  const auto caller = (*link)->mark(stream);
  if (!caller.ok()) return keep_error(caller.status());
  const auto mark = copy_params(found, way, **link, *caller);
  return mark.ok() ? keep_error((*link)->order(stream, *mark)) : mark.status();
}

Status Engine::refresh(std::span<const std::uint32_t> handles, EngineCopy way, Device device, void* stream) {
  impl_->failed_tensor = -1;
  if (Status bad = impl_->check_alive(); !bad.ok()) return bad;
  if (way != EngineCopy::to_host && way != EngineCopy::to_device) {
    return Status::invalid(impl_->registry.tag() + " refresh: got " +
                           std::to_string(static_cast<std::uint32_t>(way)) +
                           ", expected 0 (to the host) or 1 (to the device)");
  }
  if (engine::Failure bad = impl_->registry.check_handles(handles); !bad.status.ok()) return impl_->fail(bad);
  return impl_->refresh(handles, way, device, stream);
}

void* Engine::host_param(std::uint32_t handle) const {
  if (!impl_->registry.knows(handle)) return nullptr;
  const Offloaded* own = impl_->registry[handle].offloaded.get();
  return own == nullptr || own->stale ? nullptr : own->copy.get();
}

}  // namespace octavo
