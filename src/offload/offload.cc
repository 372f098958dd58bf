// SPDX-License-Identifier: MIT
#include "offload/offload.h"

#include "offload/thread_queue.h"
#include "status/first_error.h"

#include <unistd.h>

#include <algorithm>

namespace octavo::offload {

Offload::DeviceState* Offload::find(Device device) {
  const auto at = std::ranges::find_if(devices_, [&](const auto& state) { return state->device == device; });
  return at == devices_.end() ? nullptr : at->get();
}

Result<Offload::DeviceState*> Offload::get(Device device) {
  if (DeviceState* state = find(device); state != nullptr) return state;
  auto state = std::make_unique<DeviceState>();
  state->device = device;
  if (device.kind == DeviceKind::cpu) {
    state->queues = make_cpu_queues();
  } else {
    auto made = make_cuda_queues(name_, device.index);
    if (!made.ok()) return made.status();
    state->queues = std::move(*made);
  }
  state->staging = std::make_unique<Staging>(*state->queues);
  process_ = getpid();
  return devices_.emplace_back(std::move(state)).get();
}

Status Offload::check_usable() const {
  if (process_ != 0 && process_ != getpid()) return forked(name_ + " engine");
  return errors_.first();
}

Status Offload::synchronize() { return errors_.record(drain()); }

// The host queue goes first, because its work enqueues work of the others.
Status Offload::drain() {
  Status first;
  for (const auto& state : devices_) {
    DeviceQueues& queues = *state->queues;
    first = first_error({first, state->staging->flush(state->staging->posted())});
    for (Queue* queue : {&queues.host(), &queues.up(), &queues.work(), &queues.down()}) {
      const auto fence = queue->record_fence();
      Status done = fence.ok() ? fence->wait() : fence.status();
      if (!fence.ok()) queue->synchronize();
      if (first.ok() && !done.ok()) first = std::move(done);
    }
  }
  return first;
}

Status Offload::wait_for_count(const OffloadedTensor& tensor) {
  return errors_.record(tensor.weight.queued.wait());
}

// Tensors of one batch share a fence.
Status Offload::order_after_weights(Device device, void* stream, Tensors tensors) {
  const auto state = get(device);
  if (!state.ok()) return state.status();
  const Fence* last = nullptr;
  for (const OffloadedTensor* tensor : tensors) {
    const PendingFence& weight = tensor->weight;
    if (weight.fence != nullptr && weight.fence.get() == last) continue;
    last = weight.fence.get();
    if (Status bad = order_stream_after(*(*state)->queues, stream, weight); !bad.ok())
      return errors_.record(bad);
  }
  return {};
}

Status Offload::order_after_grads(Device device, void* stream, Tensors tensors) {
  const auto state = get(device);
  if (!state.ok()) return state.status();
  DeviceQueues& queues = *(*state)->queues;
  const Fence* last = nullptr;
  const Fence::State* last_copied = nullptr;
  for (const OffloadedTensor* tensor : tensors) {
    const PendingFence& read = tensor->grad_read;
    if (read.fence == nullptr || read.fence.get() != last) {
      last = read.fence.get();
      if (Status bad = order_stream_after(queues, stream, read); !bad.ok()) return errors_.record(bad);
    }
    const Fence& copied = tensor->grad_copied;
    if (copied.state() == last_copied) continue;
    last_copied = copied.state();
    Status bad = copied.passed() ? copied.wait() : queues.order_stream_after(stream, copied);
    if (!bad.ok()) return errors_.record(bad);
  }
  return {};
}

Status Offload::order_after_staging(Device device, void* stream) {
  const auto state = get(device);
  if (!state.ok()) return state.status();
  const auto idle = (*state)->staging->idle_fence();
  if (!idle.ok()) return errors_.record(idle.status());
  return errors_.record(idle->passed() ? idle->wait() : (*state)->queues->order_stream_after(stream, *idle));
}

Status Offload::order_after_all(Device device, void* stream) {
  const DeviceState* state = find(device);
  if (state == nullptr) return {};
  DeviceQueues& queues = *state->queues;
  const auto computed = queues.host().record_fence();
  Status bad = first_error({state->staging->flush(state->staging->posted()),
                            computed.ok() ? computed->wait() : computed.status()});
  for (Queue* queue : {&queues.work(), &queues.up()}) {
    const auto fence = record_fence_unless(bad, *queue);
    bad = fence.ok() ? queues.order_stream_after(stream, *fence) : fence.status();
  }
  return errors_.record(bad);
}

Status Offload::refresh_params(Device device, void* stream, Tensors tensors, ParamCopy direction) {
  const auto state = get(device);
  if (!state.ok()) return state.status();
  DeviceQueues& queues = *(*state)->queues;
  for (const OffloadedTensor* tensor : tensors) {
    if (Status bad = wait_for_count(*tensor); !bad.ok()) return bad;
  }
  if (Status bad = reserve_host_params(memory_, tensors); !bad.ok()) return bad;
  const auto caller = queues.record_fence(stream);
  if (!caller.ok()) return errors_.record(caller.status());
  const auto fence = copy_params(tensors, direction, queues, *caller);
  return errors_.record(fence.ok() ? queues.order_stream_after(stream, *fence) : fence.status());
}

Status Offload::offload_grads(Device device, void* stream, Tensors tensors,
                              std::span<const void* const> grads, std::span<const DType> dtypes, Tensors all,
                              std::int64_t& failed_tensor) {
  const auto state = get(device);
  if (!state.ok()) return state.status();
  DeviceQueues& queues = *(*state)->queues;
  const auto caller = queues.record_fence(stream);
  if (!caller.ok()) return errors_.record(caller.status());
  if (Status bad = queues.down().order_after(*caller); !bad.ok()) return errors_.record(bad);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Status bad = grads_.add(*tensors[i], grads[i], dtypes[i], queues, all);
    if (bad.ok()) continue;
    failed_tensor = tensors[i]->handle;
    return bad;
  }
  return {};
}

Status Offload::norm(const NormCall& call) {
  const auto state = get(call.device);
  return state.ok() ? grads_.norm(call, *(*state)->queues) : state.status();
}

Result<std::unique_ptr<OffloadedStep>> Offload::make_step(const GroupConfig& config, Residence residence,
                                                          std::span<const StepTensor> tensors,
                                                          std::span<std::int64_t* const> counts) {
  const auto state = get(config.device);
  if (!state.ok()) return state.status();
  if (residence == Residence::host) return make_host_step(config, tensors, *(*state)->queues, counts);
  return make_streamed_step(config, tensors, *(*state)->staging, counts);
}

// The scalars are in host memory, where `args` points to them, after the fence that is returned.
Result<Fence> Offload::copy_scalars_down(DeviceState& state, StepArgs& args) {
  const auto copied = state.staging->copy_scalars(args.scalars, args.stream);
  if (!copied.ok()) return copied.status();
  const auto caller = state.queues->record_fence(args.stream);
  if (!caller.ok()) return caller.status();
  HostScalars& slots = state.scalars;
  if (slots.memory.bytes == 0) {
    const auto bytes = static_cast<std::int64_t>(HostScalars::kSlots) * HostScalars::kSlotBytes;
    auto buffer = memory_.allocate(bytes, bytes, needs_pinned_memory(state.device));
    if (!buffer.ok()) return buffer.status();
    slots.memory = std::move(*buffer);
    slots.read.resize(HostScalars::kSlots);
  }
  slots.slot = (slots.slot + 1) % HostScalars::kSlots;
  std::byte* at = slots.memory.get() + static_cast<std::int64_t>(slots.slot) * HostScalars::kSlotBytes;
  Queue& down = state.queues->down();
  Status bad = first_error({order_after(down, *caller), order_after(down, slots.read[slots.slot])});
  args.scalars = *copied;
  const auto copy = [&]<class T>(const T*& scalar) {
    if (scalar == nullptr || !bad.ok()) return;
    bad = down.copy(at, scalar, sizeof *scalar, "scalars down");
    scalar = reinterpret_cast<const T*>(at);
    at += sizeof *scalar;
  };
  static_assert(sizeof(GradNorm) + 3 * sizeof(float) <= HostScalars::kSlotBytes);
  copy(args.scalars.norm);
  copy(args.scalars.lr);
  copy(args.scalars.loss_scale);
  copy(args.scalars.found_inf);
  auto fence = record_fence_unless(bad, down);
  if (fence.ok()) state.staging->hold_scalars_until(state.staging->scalar_slot(), *fence);
  return fence;
}

// Residence::host: copies gradients, and weights that the caller has written, to host memory.
Status Offload::copy_down(const CohortStep& cohort, DeviceQueues& queues, const Fence& caller) {
  std::vector<OffloadedTensor*> stale;
  std::ranges::copy_if(cohort.tensors, std::back_inserter(stale), &OffloadedTensor::param_copy_stale);
  if (!stale.empty()) {
    const auto copied = copy_params(stale, ParamCopy::to_host, queues, caller);
    if (!copied.ok()) return copied.status();
  }
  Status bad = order_after(queues.down(), caller);
  for (std::size_t i = 0; i < cohort.tensors.size() && bad.ok(); ++i) {
    if (cohort.tensors[i]->has_host_grad) continue;
    const std::uint32_t index = cohort.indices[i];
    bad = grads_.add(*cohort.tensors[i], cohort.grads[index], cohort.dtypes[index], queues, {}, true);
  }
  // The CPU writes the copies of the weights after earlier copies of them, up and down, are done.
  for (const OffloadedTensor* tensor : cohort.tensors) {
    if (!bad.ok()) return bad;
    bad = first_error(
        {order_after(queues.host(), tensor->weight), order_after(queues.host(), tensor->param_copied)});
  }
  return bad;
}

Status Offload::step(const CohortStep& cohort, StepArgs args) {
  DeviceState& state = *find(cohort.device);
  DeviceQueues& queues = *state.queues;
  const bool host = cohort.residence == Residence::host;
  const bool scalars = args.scalars.norm != nullptr || args.scalars.lr != nullptr ||
                       args.scalars.loss_scale != nullptr || args.scalars.found_inf != nullptr;
  const auto caller = queues.record_fence(args.stream);
  if (!caller.ok()) return errors_.record(caller.status());
  Fence scalars_copied;
  if (host) {
    Status bad = state.staging->set_memory(cohort.staging, *caller);
    if (bad.ok() && scalars) {
      auto fence = copy_scalars_down(state, args);
      bad = fence.status();
      if (fence.ok()) scalars_copied = std::move(*fence);
    }
    if (bad.ok()) bad = copy_down(cohort, queues, *caller);
    if (!bad.ok()) return errors_.record(bad);
  }
  std::vector<StepGrad> grads(cohort.tensors.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const OffloadedTensor& tensor = *cohort.tensors[i];
    grads[i] = tensor.has_host_grad ? StepGrad{tensor.host_grad.get(), true, tensor.grad_complete}
                                    : StepGrad{cohort.grads[cohort.indices[i]]};
  }
  const auto done = cohort.step.step({args, grads, *caller, scalars_copied, cohort.staging});
  if (!done.ok()) return errors_.record(done.status());
  if (host && scalars) {
    auto fence = queues.host().record_fence();
    if (!fence.ok()) return errors_.record(fence.status());
    state.scalars.read[state.scalars.slot] = std::move(*fence);
  }
  // A tensor of which nothing was queued, such as one of a skipped step, keeps its earlier fences.
  const auto update = [](PendingFence& to, const PendingFence& from) {
    if (!from.empty()) to = from;
  };
  for (std::size_t i = 0; i < grads.size(); ++i) {
    OffloadedTensor& tensor = *cohort.tensors[i];
    update(tensor.weight, done->tensors[i].weight);
    update(tensor.has_host_grad ? tensor.grad_released : tensor.grad_read, done->tensors[i].gradient);
    tensor.has_host_grad = false;
  }
  return {};
}

}  // namespace octavo::offload
