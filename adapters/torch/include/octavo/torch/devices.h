// What an optimizer keeps on each device of its parameters besides states: a workspace, norms and a report;
// and norms combined over devices and ranks, in double.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/native.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace octavo::torch {

// Reduces doubles, in place, over the ranks that share the gradients of a part; on the gradients' device.
using ReduceNorm = std::function<void(std::uint32_t part, ::torch::Tensor values)>;
struct NormReduction {
  ReduceNorm sum;
  ReduceNorm largest;  // empty: the maximum stays that of this rank's gradients
};

constexpr std::int64_t kStagingAlignment = 256;

struct DeviceBuffers {
  explicit DeviceBuffers(const ::torch::Device& where)
      : device(where),
        workspace(native::bytes(0, where), where),
        staging(native::bytes(0, where), where),
        norm(new_norm(where), where),
        total(new_norm(where), where),
        report(::torch::zeros({2}, ::torch::TensorOptions().dtype(::torch::kInt64).device(where)), where) {}

  // l2, the maximum and (as int64) the count of non-finite elements: octavo_device_norm.
  static ::torch::Tensor new_norm(const ::torch::Device& where, std::int64_t count = 1) {
    return ::torch::zeros({3 * count}, ::torch::TensorOptions().dtype(::torch::kFloat64).device(where));
  }

  ::torch::Device device;
  native::Used workspace;
  std::int64_t workspace_bytes = 0;
  native::Used staging;  // what offloaded states are brought through, and room to align it
  std::int64_t staging_bytes = 0;
  native::Used norm;    // of all gradients; with gradient release: of the previous step
  native::Used total;   // with gradient release: of this step
  native::Used report;  // octavo_device_report
};

inline octavo_device_norm* as_norm(void* buffer) { return static_cast<octavo_device_norm*>(buffer); }

// The norm of one device and part.
struct NormPart {
  std::uint32_t part;
  ::torch::Device device;
  ::torch::Tensor norm;
};

inline std::vector<octavo_engine_norm_part> native_parts(const std::vector<NormPart>& parts) {
  std::vector<octavo_engine_norm_part> out;
  for (const NormPart& part : parts) {
    octavo_engine_norm_part& one = out.emplace_back(native::sized<octavo_engine_norm_part>());
    one.part = part.part;
    one.device_kind = native::device_kind(part.device);
    one.device_index = native::device_index(part.device);
    one.out = as_norm(part.norm.data_ptr());
  }
  return out;
}

// Combines several norms into the norm of all their gradients, on a device.
inline ::torch::Tensor combined(const std::vector<::torch::Tensor>& parts, const ::torch::Device& device) {
  if (parts.size() == 1) return parts[0].to(device);
  std::vector<::torch::Tensor> here;
  for (const ::torch::Tensor& part : parts) here.push_back(part.to(device));
  const ::torch::Tensor stacked = ::torch::stack(here);
  ::torch::Tensor out = ::torch::empty_like(here[0]);
  out[0] = stacked.select(1, 0).square().sum().sqrt();
  out[1] = stacked.select(1, 1).amax();
  out.view(::torch::kInt64)[2] = stacked.view(::torch::kInt64).select(1, 2).sum();
  return out;
}

// The norm of one rank becomes the norm of all ranks.
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

// What the engine calls to combine norms: each part over its ranks, then all of them for every target.
class Combine {
 public:
  Combine(std::vector<NormPart> parts, std::vector<::torch::Tensor> targets, const NormReduction& reduce)
      : parts_(std::move(parts)), targets_(std::move(targets)), reduce_(reduce) {}

  static std::int32_t call(void* self) noexcept {
    auto& combine = *static_cast<Combine*>(self);
    try {
      combine.run();
      return 0;
    } catch (...) {
      combine.failure_ = std::current_exception();
      return 1;
    }
  }
  // Throws what `call` has caught.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void run() {
    std::map<std::uint32_t, std::vector<::torch::Tensor>> by_part;
    for (const NormPart& part : parts_) by_part[part.part].push_back(part.norm);
    std::vector<::torch::Tensor> sums;
    for (const auto& [part, norms] : by_part) {
      sums.push_back(combined(norms, norms[0].device()).clone());
      if (part != 0) reduce_over_ranks(sums.back(), part, reduce_);
    }
    for (::torch::Tensor& target : targets_) target.copy_(combined(sums, target.device()));
  }

  std::vector<NormPart> parts_;
  std::vector<::torch::Tensor> targets_;
  const NormReduction& reduce_;
  std::exception_ptr failure_;
};

}  // namespace octavo::torch
