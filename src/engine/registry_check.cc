// The checks of groups, handles and tensors.
// SPDX-License-Identifier: MIT
#include "engine/registry.h"
#include "optimizers/backend.h"
#include "optimizers/checks.h"

#include <octavo/describe.h>

#include <algorithm>
#include <cstring>

namespace octavo::engine {
namespace {

constexpr std::uint32_t kMaxGroup = 1U << 20;

GroupConfig config_of(Algorithm algorithm, std::uint32_t switches) {
  GroupConfig config;
  config.algorithm = algorithm;
  config.momentum = false;  // `switches` has all options
  config.switches = switches;
  return config;
}

}  // namespace

std::string name_of(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::string Registry::tag() const { return std::string("[").append(name(algorithm_)).append("]"); }

Failure Registry::failure(std::uint32_t handle, const std::string& text) const {
  return {Status::invalid(tag() + " tensor " + std::to_string(handle) + text), handle};
}

Status Registry::check_dtype(std::uint32_t handle, DType dtype) const {
  if (std::ranges::find(all_dtypes(), dtype) != all_dtypes().end()) return {};
  return failure(handle, ".grad: its dtype is " + std::to_string(static_cast<std::uint32_t>(dtype)) +
                             ", expected 0 to 2")
      .status;
}

Status Registry::set_group(std::uint32_t number, const EngineGroup& options) {
  if (number >= kMaxGroup) {
    return Status::invalid(tag() + " group: got " + std::to_string(number) + ", expected below 2^20");
  }
  if (number < groups_.size() && groups_[number].known && groups_[number].options == options) return {};
  const std::string where = tag() + " group " + std::to_string(number);
  const GroupConfig config = config_of(algorithm_, options.switches);
  if (Status bad = check_config(config); !bad.ok()) return bad;
  // The checks of a step, with valid values for everything that a group does not have.
  const GradNorm some_norm;
  StepArgs args;
  args.hyper = options.hyper;
  args.step = 1;
  args.clip_grad_norm = options.clip_grad_norm;
  args.scalars.lr = options.lr;
  args.scalars.norm = &some_norm;
  if (Status bad = check_step(config, args, 0); !bad.ok()) return bad;
  const bool same_lr = number < groups_.size() && groups_[number].options.lr == options.lr &&
                       groups_[number].options.lr_device == options.lr_device;
  if (options.lr != nullptr && !same_lr) {
    if (Status bad = check_device(where, options.lr_device); !bad.ok()) return bad;
    if (options.lr_device.kind == DeviceKind::cuda) {
      auto work = make_cuda_norm_ops(where, options.lr_device.index);
      if (!work.ok()) return work.status();
      if (Status bad = (*work)->check_pointer(where + " lr", options.lr); !bad.ok()) return bad;
    }
  }
  if (number >= groups_.size()) groups_.resize(number + 1);
  groups_[number] = {true, passes(algorithm_, options.switches) > 1, options, config};
  return {};
}

Failure Registry::check_handles(std::span<const std::uint32_t> handles) const {
  const std::uint64_t now = ++calls_;
  for (const std::uint32_t handle : handles) {
    if (!knows(handle)) {
      return failure(handle, ": is not known; give it to set first");
    }
    if (records_[handle].seen == now) {
      return failure(handle, ": is given twice, and one step would write it twice");
    }
    records_[handle].seen = now;
  }
  return {};
}

Status Registry::check(const std::string& where, const EngineTensor& tensor, std::uint32_t handle,
                       std::vector<Range>& ranges) const {
  if (tensor.group >= groups_.size() || !groups_[tensor.group].known) {
    return Status::invalid(where + ".group: got " + std::to_string(tensor.group) +
                           ", expected one that was set (set_group)");
  }
  if (Status bad = check_device(where, tensor.param_device); !bad.ok()) return bad;
  if (static_cast<std::uint32_t>(tensor.residence) > static_cast<std::uint32_t>(Residence::stream)) {
    return Status::invalid(where + ".residence: got " +
                           std::to_string(static_cast<std::uint32_t>(tensor.residence)) +
                           ", expected 0 (device), 1 (host) or 2 (stream)");
  }
  const bool offloaded = tensor.residence != Residence::device;
  const Device expected = offloaded ? Device{} : tensor.param_device;
  if (!(tensor.state_device == expected)) {
    return Status::invalid(where + ": its state is on " + name_of(tensor.state_device) + ", expected " +
                           name_of(expected) +
                           (offloaded ? ", since it is offloaded" : ", with its parameter"));
  }
  if (tensor.residence == Residence::host && tensor.step_on_device &&
      tensor.param_device.kind != DeviceKind::cpu) {
    return Status::invalid(where + ".step: is in memory of " + name_of(tensor.param_device) +
                           ", expected host memory, since the CPU steps it (residence host)");
  }
  if (offloaded && tensor.part != 0 && groups_[tensor.group].measures) {
    return Status::unsupported(where + ": other ranks have parts of it (part " + std::to_string(tensor.part) +
                               "), and " + tag() + " measures whole tensors; keep its state on the device");
  }
  TensorArgs args = tensor.tensor;
  args.spec.grad_dtype = DType::f32;
  std::vector<BufferRange> buffers;
  buffers.reserve(2 + 2 * kMaxSlots);
  const GroupConfig& config = groups_[tensor.group].config;
  if (Status bad = check_tensor(where, config, args, 0, false, buffers); !bad.ok()) return bad;
  const std::int64_t numel = args.spec.numel;
  const std::int64_t whole = tensor.whole_numel == 0 ? numel : tensor.whole_numel;
  if (whole < numel || args.offset > whole - numel) {
    return Status::invalid(where + ".whole_numel: got " + std::to_string(whole) + ", expected at least " +
                           std::to_string(args.offset) + " + " + std::to_string(numel) +
                           ", the offset and elements of the part at hand");
  }
  if (Status bad = check_buffer(where + ".step", tensor.step, sizeof *tensor.step, alignof(std::int64_t));
      !bad.ok())
    return bad;
  for (const BufferRange& one : buffers) {
    ranges.push_back({one.begin, one.end, handle, std::strcmp(one.field, "param") == 0, one.field});
  }
  const auto step = reinterpret_cast<std::uintptr_t>(tensor.step);
  ranges.push_back({step, step + sizeof *tensor.step, handle, false, "step"});
  return {};
}

}  // namespace octavo::engine
