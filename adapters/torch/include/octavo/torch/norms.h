// The norm of all gradients of an optimizer, on their devices: what fused clipping and the non-finite guard
// read. It reads the gradients once and the host does not wait; parts on several devices are combined in
// double.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/native.h>

#include <utility>
#include <vector>

namespace octavo::torch {

// The norm over all gradients, once per device, as the core reads it (octavo_device_norm).
using DeviceNorms = std::vector<std::pair<::torch::Device, ::torch::Tensor>>;

inline const ::torch::Tensor* norm_on(const DeviceNorms& norms, const ::torch::Device& device) {
  for (const auto& [where, norm] : norms) {
    if (where == device) return &norm;
  }
  return nullptr;
}

// Combines several norms, on one device, into the norm of all their gradients.
inline ::torch::Tensor combine(const std::vector<::torch::Tensor>& parts) {
  const ::torch::Tensor stacked = ::torch::stack(parts);
  ::torch::Tensor out = ::torch::empty_like(parts[0]);
  out[0] = stacked.select(1, 0).square().sum().sqrt();
  out[1] = stacked.select(1, 1).amax();
  out.view(::torch::kInt64)[2] = stacked.view(::torch::kInt64).select(1, 2).sum();
  return out;
}

class Norms {
 public:
  DeviceNorms total(const std::vector<::torch::Tensor>& grads) {
    std::vector<std::pair<::torch::Device, std::vector<octavo_grad_view>>> parts;
    for (const ::torch::Tensor& grad : grads) {
      auto part = parts.begin();
      while (part != parts.end() && part->first != grad.device()) ++part;
      if (part == parts.end()) part = parts.insert(part, {grad.device(), {}});
      const auto dtype = static_cast<std::uint32_t>(native::dtype_number(grad.scalar_type()));
      part->second.push_back({grad.data_ptr(), dtype, 0, grad.numel()});
    }
    DeviceNorms out;
    for (const auto& [device, views] : parts) out.emplace_back(device, on(device).run(views));
    if (out.size() < 2) return out;
    DeviceNorms combined;
    for (const auto& here : out) {
      std::vector<::torch::Tensor> moved;
      for (const auto& part : out) moved.push_back(part.second.to(here.first));
      combined.emplace_back(here.first, combine(moved));
    }
    return combined;
  }

  std::int64_t workspace_bytes() const {
    std::int64_t total = 0;
    for (const auto& [where, norm] : natives_) total += norm.workspace_bytes();
    return total;
  }

 private:
  native::Norm& on(const ::torch::Device& device) {
    for (auto& [where, norm] : natives_) {
      if (where == device) return norm;
    }
    return natives_.emplace_back(device, native::Norm(device)).second;
  }

  std::vector<std::pair<::torch::Device, native::Norm>> natives_;
};

}  // namespace octavo::torch
