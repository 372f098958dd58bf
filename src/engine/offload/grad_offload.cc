// Gradients that go to host memory as they come: copied down behind the caller's stream, and added there by
// the host's queue.
//
// The first one of a step is copied to the tensor's own memory, once the step before has read what was there.
// Further ones (and a first one that is kept in another type) pass through memory that is used in turn.
// SPDX-License-Identifier: MIT
#include "engine/impl.h"
#include "offload/host_grads.h"
#include "offload/host_threads.h"
#include "optimizers/checks.h"
#include "status/first_error.h"

#include <algorithm>

namespace octavo {

using engine::Record;
using offload::Offloaded;

Status Engine::take(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                    std::span<const DType> dtypes, Device device, void* stream) {
  Impl& impl = *impl_;
  impl.failed_tensor = -1;
  const std::string tag = impl.registry.tag();
  if (Status bad = impl.check_alive(); !bad.ok()) return bad;
  if (grads.size() != handles.size() || dtypes.size() != handles.size()) {
    return Status::invalid(tag + " take: got " + std::to_string(grads.size()) + " gradients and " +
                           std::to_string(dtypes.size()) + " dtypes, expected " +
                           std::to_string(handles.size()) + ", one per handle");
  }
  if (engine::Failure bad = impl.registry.check_handles(handles); !bad.status.ok()) return impl.fail(bad);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Record& record = impl.registry[handles[i]];
    const std::string where = tag + " tensor " + std::to_string(handles[i]);
    Status bad;
    if (record.offloaded == nullptr) {
      bad = Status::invalid(where +
                            ": its state is on the device, expected residence host or stream, for "
                            "gradients that are taken to host memory");
    } else if (!(record.device == device)) {
      bad = Status::invalid(where + ": is on " + engine::name_of(record.device) + ", expected " +
                            engine::name_of(device) + ", the device of the gradients that are taken");
    } else if (std::ranges::find(all_dtypes(), dtypes[i]) == all_dtypes().end()) {
      bad = Status::invalid(where + ".grad: its dtype is " +
                            std::to_string(static_cast<std::uint32_t>(dtypes[i])) + ", expected 0 to 2");
    } else if (record.offloaded->holds && dtypes[i] != record.offloaded->taken_dtype) {
      bad = Status::invalid(where + ".grad: is " + std::string(name(dtypes[i])) + ", expected " +
                            std::string(name(record.offloaded->taken_dtype)) +
                            ", as the first one that was taken since the last step");
    } else {
      const std::int64_t element = dtype_bytes(dtypes[i]);
      bad = check_buffer(where + ".grad", grads[i], record.args.spec.numel * element, element);
    }
    if (!bad.ok()) return impl.fail({bad, handles[i]});
  }
  if (handles.empty()) return {};
  const auto link = impl.devices.link(tag, device);
  if (!link.ok()) return link.status();
  if (Status bad = impl.check_uncaptured("take", device, stream); !bad.ok()) return bad;
  const auto caller = (*link)->mark(stream);
  if (!caller.ok()) return impl.keep_error(caller.status());
  if (Status bad = (*link)->down().after(*caller); !bad.ok()) return impl.keep_error(bad);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Record& record = impl.registry[handles[i]];
    const DType kept = record.held_in_fp32 ? DType::f32 : dtypes[i];
    if (Status bad = impl.take(handles[i], grads[i], dtypes[i], kept, **link, impl.sums_wanted); !bad.ok())
      return impl.fail({bad, handles[i]});
  }
  return {};
}

engine::Failure Engine::Impl::check_held() const {
  const std::span<const std::uint32_t> handles = begun->handles();
  for (std::size_t i = 0; registry.offloads() && i < handles.size(); ++i) {
    const Offloaded* own = registry[handles[i]].offloaded.get();
    const bool then = !held.empty() && held[i] != 0;
    if (own == nullptr || own->holds == then) continue;
    return {Status::invalid(registry.tag() + " tensor " + std::to_string(handles[i]) + ".grad: was " +
                            (then ? "stepped or dropped" : "taken to host memory") +
                            " since begin; call begin again"),
            handles[i]};
  }
  return {};
}

// REQUIRES: checked arguments; `down` is behind the gradient.
Status Engine::Impl::take(std::uint32_t handle, const void* grad, DType dtype, DType kept,
                          offload::Link& link, bool with_sums) {
  Record& record = registry[handle];
  Offloaded& own = *record.offloaded;
  const std::int64_t numel = record.args.spec.numel;
  const bool first = !own.holds;
  const bool pin = pins(record.device);
  if (!first) kept = own.held_dtype;
  const std::int64_t bytes = numel * dtype_bytes(kept);
  if (Status bad = reserve_gradient(handle, bytes); !bad.ok()) return bad;
  const auto taken = [&] {
    own.holds = true;
    own.held_dtype = kept;
    own.taken_dtype = dtype;
    own.has_sums = with_sums;
    return Status();
  };
  if (own.sums == nullptr) own.sums = std::make_shared<offload::HeldSums>();
  if (numel == 0) return taken();

  // What is written there before the gradient: earlier ones that were dropped; and read: by the last step.
  const auto begin_writing = [&](offload::Queue& queue) -> Status {
    if (!first) return {};
    return first_error({behind(queue, own.released), behind(queue, own.complete), behind(queue, own.summed)});
  };
  const auto mark_of = [](offload::Queue& queue, offload::Mark& out) -> Status {
    auto mark = queue.mark();
    if (mark.ok()) out = std::move(*mark);
    return mark.status();
  };
  const std::shared_ptr<offload::HeldSums> sums = with_sums ? own.sums : nullptr;
  if (first && kept == dtype) {
    Status bad = begin_writing(link.down());
    if (bad.ok()) bad = link.down().copy(own.held.get(), grad, bytes, "gradients down");
    if (bad.ok()) bad = mark_of(link.down(), own.taken);
    own.complete = own.taken;
    own.summed = {};
    if (bad.ok() && sums != nullptr) {
      const GradView view{own.held.get(), kept, numel};
      bad = link.host().after(own.taken);
      const auto sum = [view, sums](void* /*stream*/) {
        return offload::sum_gradient(view, *sums, offload::host_threads());
      };
      if (bad.ok()) bad = link.host().run(sum, "sums");
      if (bad.ok()) bad = mark_of(link.host(), own.summed);
    }
    return bad.ok() ? taken() : keep_error(std::move(bad));
  }
  const std::int64_t passing = numel * dtype_bytes(dtype);
  const auto through = passage(passing, pin);
  if (!through.ok()) return through.status();
  void* const from = (*through)->piece.get();
  Status bad = link.down().after((*through)->free);
  if (bad.ok()) bad = link.down().copy(from, grad, passing, "gradients down");
  if (bad.ok()) bad = mark_of(link.down(), own.taken);
  if (bad.ok()) bad = begin_writing(link.host());
  if (bad.ok()) bad = link.host().after(own.taken);
  const auto add = [to = own.held.get(), kept, from, dtype, numel, first, sums](void* /*stream*/) {
    return offload::add_gradient(to, kept, from, dtype, numel, first, sums.get(), offload::host_threads());
  };
  if (bad.ok()) bad = link.host().run(add, "add gradients");
  if (bad.ok()) bad = mark_of(link.host(), own.complete);
  own.summed = (*through)->free = own.complete;
  return bad.ok() ? taken() : keep_error(std::move(bad));
}

bool Engine::holds(std::uint32_t handle) const {
  if (!impl_->registry.knows(handle)) return false;
  const auto& own = impl_->registry[handle].offloaded;
  return own != nullptr && own->holds;
}

Status Engine::drop(std::span<const std::uint32_t> handles) {
  for (std::uint32_t handle = 0; handles.empty() && handle < impl_->registry.size(); ++handle) {
    if (auto& own = impl_->registry[handle].offloaded; own != nullptr) own->holds = false;
  }
  for (const std::uint32_t handle : handles) {
    if (!impl_->registry.knows(handle)) continue;
    if (auto& own = impl_->registry[handle].offloaded; own != nullptr) own->holds = false;
  }
  return {};
}

// Gradients that were taken are in the place of nulls.
engine::Failure Engine::Impl::find_held(std::span<const std::uint32_t> handles,
                                        std::vector<const void*>& grads, std::vector<DType>& dtypes) {
  held_next.clear();
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (!registry.knows(handles[i])) continue;
    const Offloaded* own = registry[handles[i]].offloaded.get();
    if (own == nullptr || !own->holds) continue;
    if (grads[i] != nullptr) {
      return {Status::invalid(registry.tag() + " tensor " + std::to_string(handles[i]) +
                              ".grad: another one was taken to host memory and not stepped yet; take this "
                              "one, too, and begin with null, or drop the other"),
              handles[i]};
    }
    if (held_next.empty()) held_next.resize(handles.size());
    held_next[i] = 1;
    grads[i] = own->held.get();
    dtypes[i] = own->held_dtype;
  }
  return {};
}

}  // namespace octavo
