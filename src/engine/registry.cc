// SPDX-License-Identifier: MIT
#include "engine/registry.h"

#include "optimizers/backend.h"

#include <algorithm>

namespace octavo::engine {
namespace {

constexpr std::uint32_t kMaxHandle = 1U << 24;

// Whether the buffers of tensors on GPUs are there.
class Gpus {
 public:
  Status check(const std::string& where, const EngineTensor& tensor, std::span<const Range> buffers) {
    if (tensor.param_device.kind != DeviceKind::cuda) return {};
    auto& gpu = works_[tensor.param_device.index];
    if (gpu == nullptr) {
      auto made = make_cuda_norm_ops(where, tensor.param_device.index);
      if (!made.ok()) return made.status();
      gpu = std::move(*made);
    }
    for (const Range& buffer : buffers) {
      const auto* data = reinterpret_cast<const void*>(buffer.begin);
      if (data == tensor.step && !tensor.step_on_device) continue;
      // States of offloaded tensors are in host memory.
      if (tensor.residence != Residence::device && !buffer.param && data != tensor.step) continue;
      if (Status bad = gpu->check_pointer(where + "." + buffer.field, data); !bad.ok()) return bad;
    }
    return {};
  }

 private:
  std::unordered_map<int, std::unique_ptr<NormOps>> works_;
};

}  // namespace

Failure Registry::set(std::span<const std::uint32_t> handles, std::span<const EngineTensor> tensors) {
  if (handles.size() != tensors.size()) {
    return {Status::invalid(tag() + " tensors: got " + std::to_string(tensors.size()) + ", expected " +
                            std::to_string(handles.size()) + ", one per handle")};
  }
  std::vector<std::uint32_t> gone(handles.begin(), handles.end());
  std::sort(gone.begin(), gone.end());
  if (const auto twice = std::adjacent_find(gone.begin(), gone.end()); twice != gone.end())
    return {Status::invalid(tag() + " tensor " + std::to_string(*twice) + ": is given twice"), *twice};
  std::vector<Range> added;
  added.reserve(handles.size() * 6);
  Gpus gpus;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] >= kMaxHandle) {
      return {Status::invalid(tag() + " tensor " + std::to_string(handles[i]) +
                              ": handles are below 2^24, best dense"),
              handles[i]};
    }
    const std::size_t first = added.size();
    const auto look = [&](const std::string& where) {
      added.resize(first);
      Status bad = check(where, tensors[i], handles[i], added);
      return bad.ok() ? gpus.check(where, tensors[i], std::span(added).subspan(first)) : bad;
    };
    // The full name is put together only for a message: there may be thousands of tensors.
    if (!look("").ok()) return {look(tag() + " tensor " + std::to_string(handles[i])), handles[i]};
  }
  Ranges ranges = ranges_.changed(Ranges(std::move(added)), gone);
  if (const auto clash = ranges.clash()) {
    return {Status::invalid(tag() + " " + name_of(clash->one) + ": overlaps " + name_of(clash->other) +
                            "; buffers that are written must not share memory"),
            clash->one.handle};
  }
  if (Failure bad = check_shared(ranges, handles, tensors); !bad.status.ok()) return bad;
  const std::vector<std::uint32_t> sharing = ranges.sharing();
  if (!gone.empty() && gone.back() >= records_.size()) records_.resize(gone.back() + 1);
  std::vector<std::uint64_t> histories;
  std::vector<std::unique_ptr<offload::Offloaded>> fresh;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Record& before = records_[handles[i]];
    fresh.push_back(needs_offloaded(before, tensors[i]) ? std::make_unique<offload::Offloaded>() : nullptr);
    histories.push_back(history_of(tensors[i].known_steps, before.known ? before.history : 0));
  }
  // Nothing fails or allocates memory from here on.
  ranges_ = std::move(ranges);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const EngineTensor& t = tensors[i];
    Record& record = records_[handles[i]];
    if (t.residence == Residence::device) record.offloaded = nullptr;
    if (fresh[i] != nullptr) record.offloaded = std::move(fresh[i]);
    if (record.offloaded != nullptr) record.offloaded->stale = true;  // the weight may be another
    offloads_ = offloads_ || record.offloaded != nullptr;
    record.args = t.tensor;
    record.args.grad = nullptr;
    record.device = t.param_device;
    record.group = t.group;
    record.part = t.part;
    record.switches = groups_[t.group].options.switches;
    record.known = true;
    record.step = t.step;
    // On the CPU the host knows everything.
    record.on_device = t.step_on_device && t.param_device.kind != DeviceKind::cpu;
    record.history = histories[i];
    record.residence = t.residence;
    record.held_in_fp32 = t.held_in_fp32;
  }
  mark(sharing);
  return {};
}

// Host memory of the tensor that had this handle is used again where it still fits.
bool Registry::needs_offloaded(const Record& record, const EngineTensor& tensor) {
  const TensorSpec& now = tensor.tensor.spec;
  const TensorSpec& before = record.args.spec;
  if (tensor.residence == Residence::device) return false;
  return record.offloaded == nullptr || record.residence != tensor.residence ||
         !(record.device == tensor.param_device) || now.numel != before.numel ||
         now.param_dtype != before.param_dtype;
}

// Queues write offloaded parameters in an order of their own.
Failure Registry::check_shared(const Ranges& ranges, std::span<const std::uint32_t> handles,
                               std::span<const EngineTensor> tensors) const {
  for (const std::uint32_t handle : ranges.sharing()) {
    const auto at = std::ranges::find(handles, handle);
    const Residence residence = at == handles.end()
                                    ? records_[handle].residence
                                    : tensors[static_cast<std::size_t>(at - handles.begin())].residence;
    if (residence == Residence::device) continue;
    return {Status::invalid(tag() + " tensor " + std::to_string(handle) +
                            ".param: shares memory with another parameter; one whose state is offloaded "
                            "must not (keep the states of both on the device)"),
            handle};
  }
  return {};
}

void Registry::remove(std::span<const std::uint32_t> handles) {
  std::vector<std::uint32_t> gone(handles.begin(), handles.end());
  std::sort(gone.begin(), gone.end());
  Ranges left = ranges_.changed({}, gone);
  const std::vector<std::uint32_t> sharing = left.sharing();
  ranges_ = std::move(left);
  for (const std::uint32_t handle : handles) {
    if (knows(handle)) records_[handle] = {};
  }
  mark(sharing);
}

void Registry::mark(std::span<const std::uint32_t> sharing) {
  for (Record& record : records_) record.shares = false;
  for (const std::uint32_t handle : sharing) records_[handle].shares = true;
}

std::uint64_t Registry::history_of(std::int64_t steps, std::uint64_t before) {
  if (steps == kStepsUnchanged && before != 0) return before;
  if (steps < 0) return ++histories_;
  std::uint64_t& known = known_steps_[steps];
  if (known == 0) known = ++histories_;
  return known;
}

Failure Registry::set_counts(std::span<const std::uint32_t> handles, std::span<const std::int64_t> values) {
  if (!values.empty() && values.size() != handles.size()) {
    return {Status::invalid(tag() + " values: got " + std::to_string(values.size()) + ", expected " +
                            std::to_string(handles.size()) + ", one per handle, or none")};
  }
  if (Failure bad = check_handles(handles); !bad.status.ok()) return bad;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    Record& record = records_[handles[i]];
    record.history = history_of(values.empty() ? kStepsUnknown : values[i], record.history);
  }
  return {};
}

void Registry::stepped(std::span<const std::uint32_t> handles) {
  const std::uint64_t now = ++histories_;
  for (const std::uint32_t handle : handles) records_[handle].history = now;
}

}  // namespace octavo::engine
