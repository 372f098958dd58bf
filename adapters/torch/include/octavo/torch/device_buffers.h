// The memory that the engine uses on each device of an optimizer besides states: workspace, staging memory,
// norm and report. And norms of several devices and ranks, which are combined in double.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/native.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace octavo::torch {

// Reduces doubles in place over the ranks that share the gradients of a part; on the gradients' device.
using ReduceNorm = std::function<void(std::uint32_t part, ::torch::Tensor values)>;
struct NormReduction {
  ReduceNorm sum;
  ReduceNorm largest;  // empty: the maximum is the maximum of this rank's gradients
};

// Returns zeroed norms as the core writes them: l2, the maximum, and (as int64) the count of non-finite
// elements. It is octavo_device_norm.
inline ::torch::Tensor new_norm(const ::torch::Device& device, std::int64_t count = 1) {
  return ::torch::zeros({3 * count}, ::torch::TensorOptions().dtype(::torch::kFloat64).device(device));
}
inline octavo_device_norm* as_norm(void* buffer) { return static_cast<octavo_device_norm*>(buffer); }

constexpr std::int64_t kStagingAlignment = 256;

struct DeviceBuffer {
  explicit DeviceBuffer(const ::torch::Device& on)
      : device(on),
        workspace(::torch::empty({0}, ::torch::TensorOptions().dtype(::torch::kUInt8).device(on)), on),
        staging(workspace),
        norm(new_norm(on), on),
        total(new_norm(on), on),
        report(::torch::zeros({2}, ::torch::TensorOptions().dtype(::torch::kInt64).device(on)), on) {}

  std::int64_t workspace_bytes() const { return workspace.tensor().numel(); }
  // The staging tensor has memory beyond this, for its alignment.
  std::int64_t staging_bytes() const {
    return std::max<std::int64_t>(0, staging.tensor().numel() - kStagingAlignment);
  }

  ::torch::Device device;
  native::StreamTensor workspace;
  native::StreamTensor staging;  // streamed states pass through it
  native::StreamTensor norm;     // of all gradients; with gradient release, of the previous step
  native::StreamTensor total;    // with gradient release: the norm of this step
  native::StreamTensor report;   // octavo_device_report
};

// The norm of the gradients of one device and part.
struct NormPart {
  std::uint32_t part;
  ::torch::Device device;
  ::torch::Tensor norm;
};

inline std::vector<octavo_engine_norm_part> native_parts(const std::vector<NormPart>& parts) {
  std::vector<octavo_engine_norm_part> out;
  for (const NormPart& part : parts) {
    octavo_engine_norm_part& one = out.emplace_back(octavo::make<octavo_engine_norm_part>());
    one.part = part.part;
    one.device_kind = native::device_kind(part.device);
    one.device_index = native::device_index(part.device);
    one.out = as_norm(part.norm.data_ptr());
  }
  return out;
}

// Returns the norm of the gradients of all parts, on a device.
inline ::torch::Tensor combine(const std::vector<::torch::Tensor>& parts, const ::torch::Device& device) {
  if (parts.size() == 1) return parts[0].to(device);
  std::vector<::torch::Tensor> moved;
  for (const ::torch::Tensor& part : parts) moved.push_back(part.to(device));
  const ::torch::Tensor stacked = ::torch::stack(moved);
  ::torch::Tensor out = ::torch::empty_like(moved[0]);
  out[0] = stacked.select(1, 0).square().sum().sqrt();
  out[1] = stacked.select(1, 1).amax();
  out.view(::torch::kInt64)[2] = stacked.view(::torch::kInt64).select(1, 2).sum();
  return out;
}

// Replaces the norm of this rank by the norm of all ranks.
inline void reduce_over_ranks(::torch::Tensor norm, std::uint32_t part, const NormReduction& reduce) {
  ::torch::Tensor sums = norm.slice(0, 0, 2).clone();
  sums[0] = norm[0].square();
  sums[1] = norm.view(::torch::kInt64)[2].to(::torch::kFloat64);
  reduce.sum(part, sums);
  if (reduce.largest) {
    const ::torch::Tensor largest = norm.slice(0, 1, 2).clone();
    reduce.largest(part, largest);
    norm[1] = largest[0];
  }
  norm[0] = sums[0].sqrt();
  norm.view(::torch::kInt64)[2] = sums[1].to(::torch::kInt64);
}

// Reduces each part over its ranks, and writes the norm of all parts to every target.
inline void combine_norms(const std::vector<NormPart>& parts, const std::vector<::torch::Tensor>& targets,
                          const NormReduction& reduce) {
  std::map<std::uint32_t, std::vector<::torch::Tensor>> by_part;
  for (const NormPart& part : parts) by_part[part.part].push_back(part.norm);
  std::vector<::torch::Tensor> sums;
  for (const auto& [part, norms] : by_part) {
    sums.push_back(combine(norms, norms[0].device()).clone());
    if (part != 0) reduce_over_ranks(sums.back(), part, reduce);
  }
  for (const ::torch::Tensor& target : targets) target.copy_(combine(sums, target.device()));
}

}  // namespace octavo::torch
