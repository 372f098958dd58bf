// Who waits for what: the engine's calls beside steps that are under way.
//
// What changes tensors, plans or orders waits until nothing is under way. A step waits for what the tensors'
// last one has left: counts of steps on the CPU are known when its queue has passed them (begin), weights are
// up before they are changed again, gradients that are held are read before others come in their place.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "offload/thread_queue.h"
#include "status/first_error.h"

#include <algorithm>

namespace octavo {

using engine::Record;
using offload::Offloaded;

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

// Whether the mark has passed is not asked: that takes the driver longer than an order.
Status Engine::Impl::order(offload::Link& link, void* stream, const offload::Promise& promise) {
  if (Status bad = promise.queued.wait(); !bad.ok()) return bad;
  return promise.mark == nullptr ? Status() : link.order(stream, *promise.mark);
}

Status Engine::Impl::check_uncaptured(const char* call, Device device, void* stream) {
  NormOps& work = *devices.known(device).work;
  const std::string where = registry.tag() + " " + call;
  if (Status bad = work.check_stream(where, stream); !bad.ok()) return bad;
  if (!work.capturing(stream)) return {};
  return Status::invalid(where +
                         ": a graph is captured, and it cannot hold the work of offloaded states; wait for "
                         "all weights before the capture");
}

Status Engine::Impl::wait(std::span<const std::uint32_t> handles, EngineWait what, Device device,
                          void* stream) {
  const std::vector<std::uint32_t> found = offloaded_of(handles, device);
  if (found.empty()) return {};
  const auto link = devices.link(registry.tag(), device);
  if (!link.ok()) return link.status();
  if (Status bad = check_uncaptured("wait", device, stream); !bad.ok()) return bad;
  // Tensors of one batch share a mark.
  std::shared_ptr<offload::Mark> last;
  const offload::Mark::State* last_taken = nullptr;
  for (const std::uint32_t handle : found) {
    const Offloaded& own = *registry[handle].offloaded;
    const offload::Promise& promise = what == EngineWait::weights ? own.weight : own.read;
    if (promise.mark == nullptr || promise.mark != last) {
      last = promise.mark;
      if (Status bad = order(**link, stream, promise); !bad.ok()) return keep_error(bad);
    }
    if (what == EngineWait::weights || own.taken.state() == last_taken) continue;
    last_taken = own.taken.state();
    Status bad = own.taken.passed() ? own.taken.wait() : (*link)->order(stream, own.taken);
    if (!bad.ok()) return keep_error(bad);
  }
  if (!handles.empty() || what != EngineWait::weights) return {};
  // All of them: the caller may free or replace staging memory, of which the last copies down still read.
  const auto idle = devices.known(device).staging->idle();
  if (!idle.ok()) return keep_error(idle.status());
  return keep_error(idle->passed() ? idle->wait() : (*link)->order(stream, *idle));
}

Status Engine::Impl::order_all(const EngineArgs& args) {
  for (const EngineDevice& given : args.devices) {
    const engine::DeviceState& state = devices.known(given.device);
    offload::Link* link = state.link.get();
    if (link == nullptr) continue;
    const auto computed = link->host().mark();
    Status bad = first_error({state.staging->flush(state.staging->posted()),
                              computed.ok() ? computed->wait() : computed.status()});
    for (offload::Queue* queue : {&link->work(), &link->up()}) {
      const auto mark = bad.ok() ? queue->mark() : Result<offload::Mark>(bad);
      bad = mark.ok() ? link->order(given.stream, *mark) : mark.status();
    }
    if (!bad.ok()) return keep_error(bad);
  }
  return {};
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
