// The public Group: checks what it is given and leaves the work to the backend of its device.
// SPDX-License-Identifier: MIT
#include "optimizers/backend.h"
#include "optimizers/checks.h"

#include <octavo/optimizer.h>

#include <vector>

namespace octavo {

struct Group::Impl {
  GroupConfig config;
  std::vector<TensorArgs> tensors;
  std::unique_ptr<StepBackend> backend;
  // The last workspace that shared no byte with the tensors: callers pass the same one at every step.
  const std::byte* apart = nullptr;

  static Result<std::unique_ptr<Impl>> make(const GroupConfig& config, std::span<const TensorArgs> tensors) {
    if (Status bad = check_tensors(config, tensors); !bad.ok()) return bad;
    auto backend = config.device.kind == DeviceKind::cuda ? make_cuda_step(config, tensors)
                                                          : make_cpu_step(config, tensors);
    if (!backend.ok()) return backend.status();
    return std::make_unique<Impl>(
        Impl{config, {tensors.begin(), tensors.end()}, std::move(*backend), nullptr});
  }

  // The workspace is written between reads of the tensors' buffers.
  Status check_workspace(std::span<const std::byte> workspace) {
    if (workspace.empty() || workspace.data() == apart) return {};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto size = layout(config, tensors[i].spec);
      if (!size.ok()) return size.status();
      if (const char* field = overlapping(tensors[i], *size, workspace)) {
        return Status::invalid(tag(config) + " workspace: overlaps tensors[" + std::to_string(i) + "]." +
                               field + "; it must not share memory with a buffer of the step");
      }
    }
    apart = workspace.data();
    return {};
  }
};

Group::Group(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

Result<Group> Group::create(const GroupConfig& config, std::span<const TensorArgs> tensors) {
  auto impl = Impl::make(config, tensors);
  if (!impl.ok()) return impl.status();
  return Group(std::move(*impl));
}

Status Group::rebind(std::span<const TensorArgs> tensors) {
  auto fresh = Impl::make(impl_->config, tensors);
  if (fresh.ok()) impl_ = std::move(*fresh);
  return fresh.status();
}

Status Group::rebind_grads(std::span<const void* const> grads) {
  const std::string where = tag(impl_->config) + " grads";
  std::vector<TensorArgs>& tensors = impl_->tensors;
  if (grads.size() != tensors.size()) {
    return Status::invalid(where + ": got " + std::to_string(grads.size()) + " addresses, expected " +
                           std::to_string(tensors.size()) +
                           ", one per tensor; use rebind to change the tensors themselves");
  }
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const std::int64_t element = dtype_bytes(tensors[i].spec.grad_dtype);
    const auto check = [&](const std::string& name) {
      return check_buffer(name, grads[i], tensors[i].spec.numel * element, element);
    };
    // The full name is put together only for a message: this runs at every step of some callers.
    if (!check(where).ok()) return check(where + "[" + std::to_string(i) + "]");
  }
  if (Status bad = impl_->backend->bind_grads(grads); !bad.ok()) return bad;
  for (std::size_t i = 0; i < grads.size(); ++i) tensors[i].grad = grads[i];
  return {};
}

std::int64_t Group::workspace_bytes() const { return impl_->backend->workspace_bytes(); }
std::size_t Group::size() const { return impl_->tensors.size(); }

Result<StepReport> Group::step(const StepArgs& args) {
  const std::int64_t needed = workspace_bytes();
  if (Status bad = check_step(impl_->config, args, needed); !bad.ok()) return bad;
  if (Status bad = impl_->check_workspace(args.workspace.first(static_cast<std::size_t>(needed))); !bad.ok())
    return bad;
  return impl_->backend->step(args);
}

Result<StepReport> step(const GroupConfig& config, std::span<const TensorArgs> tensors,
                        const StepArgs& args) {
  auto group = Group::create(config, tensors);
  if (!group.ok()) return group.status();
  return group->step(args);
}

}  // namespace octavo
