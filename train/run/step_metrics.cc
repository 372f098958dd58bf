// SPDX-License-Identifier: MIT
#include "train/run/step_metrics.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <utility>

namespace octavo_train {

struct StepMetrics::Pending {
  std::int64_t step = 0;
  torch::Tensor numbers;  // loss, norm, skipped, scale; on the host
  std::unique_ptr<c10::Event> copied;
};

StepMetrics::StepMetrics(const torch::Device& device, std::size_t depth) : device_(device), depth_(depth) {}
StepMetrics::~StepMetrics() = default;

void StepMetrics::push(std::int64_t step, const torch::Tensor& loss, const torch::Tensor& norm,
                       const torch::Tensor& skipped, const torch::Tensor& scale) {
  const torch::NoGradGuard no_grad;
  // fp32 is precise enough to show them, and every device has it.
  const auto number = [&](const torch::Tensor& t) {
    return t.defined() ? t.detach().reshape({}).to(device_, torch::kFloat32)
                       : torch::zeros({}, torch::TensorOptions(torch::kFloat32).device(device_));
  };
  const torch::Tensor here = torch::stack({number(loss), number(norm), number(skipped), number(scale)});
  Pending& made = pending_.emplace_back();
  made.step = step;
  if (!device_.is_cuda()) {
    made.numbers = here.cpu();
    return;
  }
  made.numbers = torch::empty({4}, torch::TensorOptions(torch::kFloat32).pinned_memory(true));
  made.numbers.copy_(here, /*non_blocking=*/true);
  made.copied = std::make_unique<c10::Event>(device_.type());
  made.copied->record(c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_));
}

std::optional<StepMetric> StepMetrics::pop(bool drain) {
  if (pending_.empty() || (!drain && pending_.size() <= depth_)) return std::nullopt;
  Pending oldest = std::move(pending_.front());
  pending_.pop_front();
  if (oldest.copied != nullptr) oldest.copied->synchronize();
  const auto* n = oldest.numbers.data_ptr<float>();
  StepMetric out{oldest.step, n[0], n[1], n[3], n[2] != 0.0F};
  if (out.loss_scale > 0) out.grad_norm /= out.loss_scale;
  return out;
}

}  // namespace octavo_train
