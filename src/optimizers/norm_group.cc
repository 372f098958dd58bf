// SPDX-License-Identifier: MIT
#include "optimizers/norm_group.h"

#include "formula/decide.h"
#include "optimizers/checks.h"
#include "optimizers/norm_chunks.h"

#include <algorithm>

namespace octavo {

Result<NormGroup> NormGroup::create(Device device, std::span<const GradView> grads) {
  const std::string where = "[grad_norm]";
  if (Status bad = check_device(where, device); !bad.ok()) return bad;
  if (Status bad = check_grads(grads); !bad.ok()) return bad;
  NormGroup group;
  group.device_ = device;
  group.grads_.assign(grads.begin(), grads.end());
  auto work = make_norm_ops(where, device);
  if (!work.ok()) return work.status();
  group.work_ = std::move(*work);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].numel == 0) continue;
    const std::string name = where + " grads[" + std::to_string(i) + "].data";
    if (Status bad = group.work_->check_pointer(name, grads[i].data); !bad.ok()) return bad;
  }
  auto backend = make_norm(device, grads);
  if (!backend.ok()) return backend.status();
  group.backend_ = std::move(*backend);
  return group;
}

Status NormGroup::rebind(std::span<const GradView> grads) {
  auto fresh = create(device_, grads);
  if (fresh.ok()) *this = std::move(*fresh);
  return fresh.status();
}

Status NormGroup::run(std::span<std::byte> workspace, GradNorm* out, void* stream, int threads) {
  const std::string where = "[grad_norm]";
  const std::int64_t needed = workspace_bytes();
  if (Status bad = check_workspace(where, workspace, needed, "NormGroup::workspace_bytes"); !bad.ok())
    return bad;
  if (Status bad = check_buffer(where + " out", out, sizeof *out, alignof(GradNorm)); !bad.ok()) return bad;
  const auto sums = workspace.first(static_cast<std::size_t>(needed));
  const auto result = std::as_bytes(std::span(out, 1));
  if (Status bad = check_apart("workspace", sums, grads_); !bad.ok()) return bad;
  if (Status bad = check_apart("out", result, grads_); !bad.ok()) return bad;
  if (shares_bytes(sums, result))
    return Status::invalid(where + " out: overlaps workspace; it must not share memory with it");
  if (Status bad = check_threads(where, threads); !bad.ok()) return bad;
  if (Status bad = work_->check_pointer(where + " workspace", workspace.data()); !bad.ok()) return bad;
  if (Status bad = work_->check_pointer(where + " out", out); !bad.ok()) return bad;
  if (Status bad = work_->check_stream(where, stream); !bad.ok()) return bad;
  return backend_->run(sums, out, stream, threads);
}

std::int64_t grad_norm_workspace(std::span<const GradView> grads) {
  std::int64_t chunks = 0;
  for (const GradView& grad : grads) chunks += chunks_of(std::max<std::int64_t>(0, grad.numel));
  return chunks;
}

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
  GradNorm out;
  const auto backend = make_cpu_norm(grads);
  if (!backend.ok()) return backend.status();
  if (Status bad = (*backend)->run(bytes, &out, nullptr, threads); !bad.ok()) return bad;
  return out;
}

double clip_factor(double l2, double clip_grad_norm, double unscale) {
  return formula::clip(l2, clip_grad_norm, unscale);
}

}  // namespace octavo
