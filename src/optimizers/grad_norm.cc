// The public norm: checks what it is given and leaves the sum to the backend of its device.
// SPDX-License-Identifier: MIT
#include "formula/decide.h"
#include "optimizers/backend.h"
#include "optimizers/checks.h"

#include <octavo/grad_norm.h>

#include <vector>

namespace octavo {

Result<GradNorm> grad_norm(std::span<const GradView> grads, std::span<double> workspace, int threads) {
  if (Status bad = check_grads(grads); !bad.ok()) return bad;
  const std::int64_t sums = grad_norm_workspace(grads);
  if (static_cast<std::int64_t>(workspace.size()) < sums) {
    return Status::invalid("[grad_norm] workspace: got " + std::to_string(workspace.size()) +
                           " doubles, expected " + std::to_string(sums) + " (grad_norm_workspace)");
  }
  if (Status bad = check_buffer("[grad_norm] workspace", workspace.data(), 8 * sums, 8); !bad.ok())
    return bad;
  const auto bytes = std::as_writable_bytes(workspace.first(static_cast<std::size_t>(sums)));
  if (Status bad = check_apart("workspace", bytes, grads); !bad.ok()) return bad;
  if (Status bad = check_threads("[grad_norm]", threads); !bad.ok()) return bad;
  const auto backend = make_cpu_norm(grads);
  if (!backend.ok()) return backend.status();
  GradNorm out;
  if (Status bad = (*backend)->run(bytes, &out, nullptr, threads); !bad.ok()) return bad;
  return out;
}

struct NormGroup::Impl {
  Device device;
  std::vector<GradView> grads;
  std::unique_ptr<NormBackend> backend;

  static Result<std::unique_ptr<Impl>> make(Device device, std::span<const GradView> grads) {
    if (Status bad = check_device("[grad_norm]", device); !bad.ok()) return bad;
    if (Status bad = check_grads(grads); !bad.ok()) return bad;
    auto backend =
        device.kind == DeviceKind::cuda ? make_cuda_norm(device.index, grads) : make_cpu_norm(grads);
    if (!backend.ok()) return backend.status();
    return std::make_unique<Impl>(Impl{device, {grads.begin(), grads.end()}, std::move(*backend)});
  }
};

NormGroup::NormGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NormGroup::NormGroup(NormGroup&&) noexcept = default;
NormGroup& NormGroup::operator=(NormGroup&&) noexcept = default;
NormGroup::~NormGroup() = default;

Result<NormGroup> NormGroup::create(Device device, std::span<const GradView> grads) {
  auto impl = Impl::make(device, grads);
  if (!impl.ok()) return impl.status();
  return NormGroup(std::move(*impl));
}

Status NormGroup::rebind(std::span<const GradView> grads) {
  auto fresh = Impl::make(impl_->device, grads);
  if (fresh.ok()) impl_ = std::move(*fresh);
  return fresh.status();
}

std::int64_t NormGroup::workspace_bytes() const { return impl_->backend->workspace_bytes(); }

Status NormGroup::run(std::span<std::byte> workspace, GradNorm* out, void* stream, int threads) {
  const std::string where = "[grad_norm]";
  const std::int64_t needed = workspace_bytes();
  if (Status bad = check_workspace(where, workspace, needed, "NormGroup::workspace_bytes"); !bad.ok())
    return bad;
  if (Status bad = check_buffer(where + " out", out, sizeof *out, alignof(GradNorm)); !bad.ok()) return bad;
  const auto sums = workspace.first(static_cast<std::size_t>(needed));
  const auto result = std::as_bytes(std::span(out, 1));
  if (Status bad = check_apart("workspace", sums, impl_->grads); !bad.ok()) return bad;
  if (Status bad = check_apart("out", result, impl_->grads); !bad.ok()) return bad;
  if (shares_bytes(sums, result))
    return Status::invalid(where + " out: overlaps workspace; it must not share memory with it");
  if (Status bad = check_stream(where, impl_->device, stream); !bad.ok()) return bad;
  if (Status bad = check_threads(where, threads); !bad.ok()) return bad;
  return impl_->backend->run(sums, out, stream, threads);
}

double clip_factor(double l2, double max_norm, double unscale) {
  return formula::clip(l2, max_norm, unscale);
}

}  // namespace octavo
