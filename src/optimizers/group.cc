// SPDX-License-Identifier: MIT
#include "optimizers/group.h"

#include "optimizers/checks.h"
#include "status/first_error.h"

namespace octavo {
namespace {

// On a GPU: every buffer is the device's memory.
Status check_places(const GroupConfig& config, std::span<const TensorArgs> tensors, NormOps& work) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorArgs& t = tensors[i];
    if (t.spec.numel == 0) continue;
    const std::string where = tag(config) + " tensors[" + std::to_string(i) + "].";
    const auto check = [&](const std::string& field, const void* data) {
      return work.check_pointer(where + field, data);
    };
    Status bad = first_error({check("param", t.param), check("grad", t.grad), check("residual", t.residual)});
    for (std::size_t s = 0; s < t.state.size() && bad.ok(); ++s) {
      const std::string slot = "state[" + std::to_string(s) + "].";
      bad = first_error({check(slot + "codes", t.state[s].codes), check(slot + "scales", t.state[s].scales)});
    }
    if (!bad.ok()) return bad;
  }
  return {};
}

}  // namespace

Result<Group> Group::create(const GroupConfig& config, std::span<const TensorArgs> tensors) {
  if (Status bad = check_tensors(config, tensors); !bad.ok()) return bad;
  Group group;
  group.config_ = config;
  group.tensors_.assign(tensors.begin(), tensors.end());
  auto work = make_norm_ops(tag(config), config.device);
  if (!work.ok()) return work.status();
  group.work_ = std::move(*work);
  if (Status bad = check_places(config, tensors, *group.work_); !bad.ok()) return bad;
  auto backend = config.device.kind == DeviceKind::cuda ? make_cuda_step(config, tensors)
                                                        : make_cpu_step(config, tensors);
  if (!backend.ok()) return backend.status();
  group.backend_ = std::move(*backend);
  return group;
}

Status Group::rebind(std::span<const TensorArgs> tensors) {
  auto fresh = create(config_, tensors);
  if (fresh.ok()) *this = std::move(*fresh);
  return fresh.status();
}

Status Group::rebind_grads(std::span<const void* const> grads) {
  const std::string where = tag(config_) + " grads";
  if (grads.size() != tensors_.size()) {
    return Status::invalid(where + ": got " + std::to_string(grads.size()) + " addresses, expected " +
                           std::to_string(tensors_.size()) +
                           ", one per tensor; use rebind to change the tensors themselves");
  }
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const TensorSpec& spec = tensors_[i].spec;
    const std::int64_t element = dtype_bytes(spec.grad_dtype);
    const auto check = [&](const std::string& name) {
      Status bad = check_buffer(name, grads[i], spec.numel * element, element);
      return bad.ok() && spec.numel > 0 ? work_->check_pointer(name, grads[i]) : bad;
    };
    // The full name is put together only for a message: this runs at every step of some callers.
    if (!check(where).ok()) return check(where + "[" + std::to_string(i) + "]");
  }
  if (Status bad = backend_->bind_grads(grads); !bad.ok()) return bad;
  for (std::size_t i = 0; i < grads.size(); ++i) tensors_[i].grad = grads[i];
  return {};
}

Result<StepReport> Group::step(const StepArgs& args) {
  const std::int64_t needed = workspace_bytes();
  if (Status bad = check_step(config_, args, needed); !bad.ok()) return bad;
  if (args.workspace.data() != workspace_) {
    if (Status bad = check_workspace(args.workspace.first(static_cast<std::size_t>(needed))); !bad.ok())
      return bad;
    workspace_ = args.workspace.data();
  }
  const StepScalars& s = args.scalars;
  const std::array<const void*, 6> scalars = {s.lr, s.step, s.loss_scale, s.found_inf, s.norm, s.report};
  static constexpr const char* kNames[] = {"lr", "step", "loss_scale", "found_inf", "norm", "report"};
  for (std::size_t i = 0; i < scalars.size(); ++i) {
    if (scalars[i] == scalars_[i]) continue;
    const std::string where = tag(config_) + " scalars." + kNames[i];
    if (Status bad = work_->check_pointer(where, scalars[i]); !bad.ok()) return bad;
    scalars_[i] = scalars[i];
  }
  if (args.stream != stream_) {
    if (Status bad = work_->check_stream(tag(config_), args.stream); !bad.ok()) return bad;
    stream_ = args.stream;
  }
  return backend_->step(args);
}

// The workspace is written between reads of the tensors' buffers.
Status Group::check_workspace(std::span<const std::byte> workspace) const {
  if (workspace.empty()) return {};
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto size = layout(config_, tensors_[i].spec);
    if (!size.ok()) return size.status();
    if (const char* field = overlapping(tensors_[i], *size, workspace)) {
      return Status::invalid(tag(config_) + " workspace: overlaps tensors[" + std::to_string(i) + "]." +
                             field + "; it must not share memory with a buffer of the step");
    }
  }
  return work_->check_pointer(tag(config_) + " workspace", workspace.data());
}

}  // namespace octavo
