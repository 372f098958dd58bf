// The plan of a step for one set of gradients: its cohorts (tensors that one native call steps), its norm
// sets (gradients whose norm is computed together), and the location of their tables in each device's
// workspace.
//
// The tensors of a cohort have the same group, device, residence and step count, and no two of its parameters
// share memory. A plan is reused while the same tensors have gradients of the same dtypes, the counts within
// each cohort stay equal, and those of different cohorts stay different. The addresses of gradients may
// change at every step. REQUIRES everywhere: checked handles.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/registry.h"
#include "offload/offload.h"
#include "optimizers/backend.h"

#include "engine/engine.h"

#include <memory>
#include <span>
#include <vector>

namespace octavo::engine {

// A backend and the gradients that it gets.
template <class Backend>
struct Member {
  Device device;
  std::vector<std::uint32_t> indices;  // of the plan's gradients
  std::unique_ptr<Backend> backend;
  std::int64_t workspace_at = 0;

  [[nodiscard]] std::int64_t workspace_bytes() const {
    return backend == nullptr ? 0 : backend->workspace_bytes();
  }
  [[nodiscard]] std::span<std::byte> workspace(std::span<std::byte> whole) const {
    const auto bytes = static_cast<std::size_t>(workspace_bytes());
    return bytes == 0 ? std::span<std::byte>{} : whole.subspan(static_cast<std::size_t>(workspace_at), bytes);
  }
};

struct Cohort : Member<StepBackend> {
  Residence residence = Residence::device;
  // If the states are in host memory, these replace the backend.
  std::unique_ptr<offload::OffloadedStep> offloaded;
  std::vector<offload::OffloadedTensor*> tensors;  // in the order of indices
  bool host_grads = false;                         // begin has found gradients of these in host memory
  std::uint32_t group = 0;
  std::uint32_t turn = 0;  // tensors that share memory are stepped in the order of their turns
  std::uint32_t part = 0;  // if the algorithm measures complete tensors: the ranks that share these
  std::uint32_t switches = 0;
  bool on_device = false;              // the step counts are in device memory
  std::vector<std::uint32_t> handles;  // in the order of indices
  std::vector<std::int64_t*> counts;   // in the order of indices
};

// `indices` are those of gradients in device memory. Without such gradients there is no backend.
struct NormSet : Member<NormBackend> {
  std::uint32_t part = 0;
  std::vector<offload::NormGrad> grads;  // all gradients in order, if some are in host memory
};

struct DeviceNeed {
  Device device;
  std::int64_t bytes = 0;
};

class StepPlan {
 public:
  static Result<std::unique_ptr<StepPlan>> make(const Registry& registry,
                                                std::span<const std::uint32_t> handles,
                                                std::span<const void* const> grads,
                                                std::span<const DType> dtypes, offload::Offload& offload);

  // Returns true if the cohorts still have the step counts and switches that they were made for.
  [[nodiscard]] bool fits(const Registry& registry) const;
  [[nodiscard]] bool is_for(std::span<const std::uint32_t> handles, std::span<const DType> dtypes) const;
  Status bind(std::span<const void* const> grads);
  // `on_host[i]` is 1 if gradient i is in host memory; empty: none is.
  [[nodiscard]] bool has_norms(std::span<const std::uint8_t> on_host) const;
  Status add_norms(const Registry& registry, std::span<const std::uint8_t> on_host);
  // Called after another user has written into the workspace of a device.
  void forget_workspace(Device device);

  [[nodiscard]] std::span<const std::uint32_t> handles() const { return handles_; }
  [[nodiscard]] std::span<const void* const> grads() const { return grads_; }
  [[nodiscard]] std::span<const DType> dtypes() const { return dtypes_; }
  [[nodiscard]] std::span<Cohort> cohorts() { return cohorts_; }
  [[nodiscard]] std::span<NormSet> norms() { return norms_; }
  [[nodiscard]] bool has_norms() const { return has_norms_; }
  [[nodiscard]] std::span<const DeviceNeed> needs() const { return needs_; }
  [[nodiscard]] const DeviceNeed* need(Device device) const;

  std::uint64_t number = 0;

 private:
  void find_cohorts(const Registry& registry);
  [[nodiscard]] bool has_equal_cohorts() const;
  void sort_cohorts(const Registry& registry);
  Status add_backend(Cohort& cohort, const Registry& registry, offload::Offload& offload) const;
  static Status add_offloaded(Cohort& cohort, const Registry& registry, const GroupConfig& config,
                              std::span<const TensorArgs> tensors, offload::Offload& offload);
  void lay_out();
  std::int64_t reserve(Device device, std::int64_t bytes);

  std::vector<std::uint32_t> handles_;
  std::vector<DType> dtypes_;
  std::vector<const void*> grads_;
  std::vector<Cohort> cohorts_;
  std::vector<NormSet> norms_;
  std::vector<std::uint8_t> norms_on_host_;
  std::vector<DeviceNeed> needs_;
  bool has_norms_ = false;
};

}  // namespace octavo::engine
