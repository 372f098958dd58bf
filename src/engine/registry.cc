// SPDX-License-Identifier: MIT
#include "engine/registry.h"

#include "optimizers/backend.h"

#include <algorithm>

namespace octavo::engine {
namespace {

constexpr std::uint32_t kMaxHandle = 1U << 24;

// Checks that the buffers of tensors on GPUs are in the memory of their GPU.
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
    return failure(*twice, ": is given twice");
  std::vector<Range> added;
  added.reserve(handles.size() * 6);
  Gpus gpus;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (handles[i] >= kMaxHandle) {
      return failure(handles[i], ": handles are below 2^24, best dense");
    }
    const std::size_t first = added.size();
    const auto look = [&](const std::string& where) {
      added.resize(first);
      Status bad = check(where, tensors[i], handles[i], added);
      return bad.ok() ? gpus.check(where, tensors[i], std::span(added).subspan(first)) : bad;
    };
    // The full name is built only for a message, because there may be thousands of tensors.
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
  std::vector<std::unique_ptr<offload::OffloadedTensor>> fresh;
  offloaded_.reserve(records_.size());
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Record& before = records_[handles[i]];
    fresh.push_back(needs_offloaded(before, tensors[i]) ? std::make_unique<offload::OffloadedTensor>()
                                                        : nullptr);
    histories.push_back(history_of(tensors[i].known_steps, before.known ? before.history : 0));
  }
  // Nothing fails or allocates memory from here on.
  ranges_ = std::move(ranges);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const EngineTensor& t = tensors[i];
    Record& record = records_[handles[i]];
    if (t.residence == Residence::device) record.offloaded = nullptr;
    if (fresh[i] != nullptr) record.offloaded = std::move(fresh[i]);
    record.args = t.tensor;
    record.args.grad = nullptr;
    record.device = t.param_device;
    record.group = t.group;
    record.part = t.part;
    record.switches = groups_[t.group].options.switches;
    record.known = true;
    record.step = t.step;
    // On the CPU all counts are in host memory.
    record.on_device = t.step_on_device && t.param_device.kind != DeviceKind::cpu;
    record.history = histories[i];
    record.residence = t.residence;
    if (record.offloaded == nullptr) continue;
    offloads_ = true;
    offload::OffloadedTensor& own = *record.offloaded;
    own.handle = handles[i];
    own.args = record.args;
    own.device = record.device;
    own.residence = record.residence;
    own.grads_in_fp32 = t.held_in_fp32;
    own.param_copy_stale = true;  // the weight may be another one
  }
  note_sharing(sharing);
  list_offloaded();
  return {};
}

// Returns false if the host memory of the tensor that had this handle is reused.
bool Registry::needs_offloaded(const Record& record, const EngineTensor& tensor) {
  const TensorSpec& now = tensor.tensor.spec;
  const TensorSpec& before = record.args.spec;
  if (tensor.residence == Residence::device) return false;
  return record.offloaded == nullptr || record.residence != tensor.residence ||
         !(record.device == tensor.param_device) || now.numel != before.numel ||
         now.param_dtype != before.param_dtype;
}

// Queues write offloaded parameters in another order than the turns of tensors that share memory.
Failure Registry::check_shared(const Ranges& ranges, std::span<const std::uint32_t> handles,
                               std::span<const EngineTensor> tensors) const {
  for (const std::uint32_t handle : ranges.sharing()) {
    const auto at = std::ranges::find(handles, handle);
    const Residence residence = at == handles.end()
                                    ? records_[handle].residence
                                    : tensors[static_cast<std::size_t>(at - handles.begin())].residence;
    if (residence == Residence::device) continue;
    return failure(handle,
                   ".param: shares memory with another parameter; one whose state is offloaded must not "
                   "(keep the states of both on the device)");
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
  note_sharing(sharing);
  list_offloaded();
}

void Registry::note_sharing(std::span<const std::uint32_t> sharing) {
  for (Record& record : records_) record.shares = false;
  for (const std::uint32_t handle : sharing) records_[handle].shares = true;
}

void Registry::list_offloaded() {
  offloaded_.clear();
  for (const Record& record : records_) {
    if (record.offloaded != nullptr) offloaded_.push_back(record.offloaded.get());
  }
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
