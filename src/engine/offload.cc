// Who waits for what: the engine's calls beside steps that are under way.
//
// What changes tensors, plans or orders waits until nothing is under way. A step waits for what the tensors'
// last one has left: counts of steps on the CPU are known when its queue has passed them (begin), weights are
// up before they are changed again, gradients that are held are read before others come in their place.
// SPDX-License-Identifier: MIT
#include "core/first_error.h"
#include "engine/impl.h"
#include "offload/thread_queue.h"

#include <algorithm>

namespace octavo {

using engine::Offloaded;
using engine::Record;

Engine::Impl::~Impl() { (void)devices.drain(); }

Status Engine::Impl::check_alive() {
  if (devices.forked()) return offload::forked(registry.tag() + " engine");
  return broken;
}

Status Engine::Impl::keep_error(Status status) {
  if (broken.ok() && !status.ok()) broken = status;
  return status;
}

Status Engine::Impl::settle() {
  if (Status bad = check_alive(); !bad.ok()) return bad;
  return drain();
}

Status Engine::Impl::behind(offload::Queue& queue, const offload::Promise& promise) {
  if (promise.mark == nullptr) return behind(queue, promise.queued);
  // The mark is there when the host's queue has passed.
  if (Status bad = promise.queued.wait(); !bad.ok()) return bad;
  return behind(queue, *promise.mark);
}

Status Engine::Impl::wait_for_counts(std::span<const std::uint32_t> handles) {
  for (const std::uint32_t handle : handles) {
    if (!registry.knows(handle) || registry[handle].residence != Residence::host) continue;
    if (Status bad = registry[handle].offloaded->weight.queued.wait(); !bad.ok()) return keep_error(bad);
  }
  return {};
}

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

std::vector<std::uint32_t> Engine::Impl::offloaded_of(std::span<const std::uint32_t> handles,
                                                      Device device) const {
  std::vector<std::uint32_t> found;
  const auto look = [&](std::uint32_t handle) {
    if (registry[handle].offloaded != nullptr && registry[handle].device == device) found.push_back(handle);
  };
  for (const std::uint32_t handle : handles) look(handle);
  for (std::uint32_t handle = 0; handles.empty() && handle < registry.size(); ++handle) look(handle);
  return found;
}

// What has passed is forgotten: nobody has to wait for it again.
Status Engine::Impl::order(offload::Link& link, void* stream, offload::Promise& promise) {
  if (Status bad = promise.queued.wait(); !bad.ok()) return bad;
  const offload::Mark mark = promise.mark == nullptr ? offload::Mark() : *promise.mark;
  if (!mark.passed()) return link.order(stream, mark);
  promise = {};
  return mark.wait();
}

Status Engine::Impl::wait(std::span<const std::uint32_t> handles, EngineWait what, Device device,
                          void* stream) {
  const std::vector<std::uint32_t> found = offloaded_of(handles, device);
  if (found.empty()) return {};
  const auto link = devices.link(registry.tag(), device);
  if (!link.ok()) return link.status();
  if (Status bad = devices.known(device).work->check_stream(registry.tag() + " wait", stream); !bad.ok())
    return bad;
  // Tensors of one batch share a mark.
  std::shared_ptr<offload::Mark> last;
  const offload::Mark::State* last_taken = nullptr;
  for (const std::uint32_t handle : found) {
    Offloaded& own = *registry[handle].offloaded;
    offload::Promise& promise = what == EngineWait::weights ? own.weight : own.read;
    if (promise.mark == nullptr || promise.mark != last) {
      last = promise.mark;
      if (Status bad = order(**link, stream, promise); !bad.ok()) return keep_error(bad);
    }
    if (what == EngineWait::weights || own.taken.state() == last_taken) continue;
    last_taken = own.taken.state();
    Status bad = own.taken.passed() ? own.taken.wait() : (*link)->order(stream, own.taken);
    if (!bad.ok()) return keep_error(bad);
  }
  return {};
}

Status Engine::Impl::order_all(const EngineArgs& args) {
  for (const EngineDevice& given : args.devices) {
    offload::Link* link = devices.known(given.device).link.get();
    if (link == nullptr) continue;
    const auto computed = link->host().mark();
    Status bad = computed.ok() ? computed->wait() : computed.status();
    for (offload::Queue* queue : {&link->work(), &link->up()}) {
      const auto mark = bad.ok() ? queue->mark() : Result<offload::Mark>(bad);
      bad = mark.ok() ? link->order(given.stream, *mark) : mark.status();
    }
    if (!bad.ok()) return keep_error(bad);
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
  if (Status bad = devices.known(device).work->check_stream(registry.tag() + " refresh", stream); !bad.ok())
    return bad;
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

Status Engine::wait(std::span<const std::uint32_t> handles, EngineWait what, Device device, void* stream) {
  impl_->failed_tensor = -1;
  if (Status bad = impl_->check_alive(); !bad.ok()) return bad;
  if (what != EngineWait::weights && what != EngineWait::gradients) {
    return Status::invalid(impl_->registry.tag() + " wait: got " +
                           std::to_string(static_cast<std::uint32_t>(what)) +
                           ", expected 0 (weights) or 1 (gradients)");
  }
  if (engine::Failure bad = impl_->registry.check_handles(handles); !bad.status.ok()) return impl_->fail(bad);
  return impl_->wait(handles, what, device, stream);
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

Status Engine::synchronize() {
  impl_->failed_tensor = -1;
  return impl_->settle();
}

Status Engine::set_order(std::span<const std::uint32_t> handles) {
  Impl& impl = *impl_;
  impl.failed_tensor = -1;
  if (Status bad = impl.check_alive(); !bad.ok()) return bad;
  if (engine::Failure bad = impl.registry.check_handles(handles); !bad.status.ok()) return impl.fail(bad);
  std::vector<std::uint32_t> order(impl.registry.size(), Offloaded::kLast);
  for (std::size_t i = 0; i < handles.size(); ++i) order[handles[i]] = static_cast<std::uint32_t>(i);
  const auto other = [&](std::uint32_t handle) {
    const Offloaded* own = impl.registry[handle].offloaded.get();
    return own != nullptr && own->order != order[handle];
  };
  bool changed = false;
  for (std::uint32_t handle = 0; handle < order.size(); ++handle) changed = changed || other(handle);
  if (!changed) return {};
  if (Status bad = impl.drain(); !bad.ok()) return bad;
  for (std::uint32_t handle = 0; handle < order.size(); ++handle) {
    if (Offloaded* own = impl.registry[handle].offloaded.get(); own != nullptr) own->order = order[handle];
  }
  impl.tensors_changed();
  return {};
}

std::int64_t Engine::staging_bytes(Device device) const { return impl_->staging_bytes(device); }

Status Engine::set_host_memory(EngineHostMemory memory) {
  const std::string where = impl_->registry.tag() + " set_host_memory: ";
  if ((memory.allocate == nullptr) != (memory.release == nullptr))
    return Status::invalid(where + "got one function, expected both, or none for the engine's own memory");
  if (impl_->registry.offloads() || impl_->memory.used())
    return Status::invalid(where + "an offloaded tensor was set already; call it before that");
  impl_->memory.use(memory);
  return {};
}

std::int64_t Engine::host_bytes() const { return impl_->memory.bytes(); }

}  // namespace octavo
