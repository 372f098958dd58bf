// A TensorSet under an engine, with step counts, one workspace, a norm and a report, all on the CPU; and the
// same steps taken tensor by tensor, to compare with.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/engine.h"
#include "optimizers/group.h"
#include "optimizers/norm_group.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <octavo/describe.h>

#include <deque>
#include <utility>
#include <vector>

namespace test {

using Handles = std::vector<std::uint32_t>;

// Mixed dtypes, stores and sizes; one tensor has no elements.
inline std::vector<octavo::TensorSpec> mixed_specs(octavo::StateFormat format) {
  using octavo::DType;
  using octavo::WeightStore;
  std::vector<octavo::TensorSpec> specs = {
      tensor_spec(64 * 30, DType::f32, DType::f32, WeightStore::nearest, format),
      tensor_spec(777, DType::bf16, DType::f16, WeightStore::residual16, format),
      tensor_spec(0, DType::f32, DType::f32, WeightStore::nearest, format),
      tensor_spec(300, DType::bf16, DType::bf16, WeightStore::stochastic, octavo::StateFormat::fp32),
      tensor_spec(1025, DType::f32, DType::bf16, WeightStore::nearest, octavo::StateFormat::bf16)};
  give_shape(specs[0]);
  return specs;
}

class EngineSet {
 public:
  EngineSet(const OptimizerCase& optimizer, TensorSet tensors)
      : set(std::move(tensors)),
        counts(set.tensors().size()),
        engine(octavo::engine::Engine::create(optimizer.config.algorithm).value()) {
    options.hyper = optimizer.hyper;
    options.switches = switches_of(optimizer.config);
    options.seed = 5;
    EXPECT_TRUE(engine.set_group(0, options).ok());
  }

  [[nodiscard]] octavo::engine::EngineTensor tensor(std::size_t i) {
    octavo::engine::EngineTensor out;
    out.tensor = set.tensors()[i].args();
    out.step = &counts[i];
    if (i < residences.size()) out.residence = residences[i];
    out.held_in_fp32 = held_in_fp32;
    return out;
  }
  octavo::Status add(const Handles& handles) {
    std::vector<octavo::engine::EngineTensor> tensors;
    for (const std::uint32_t handle : handles) tensors.push_back(tensor(handle));
    return engine.set(handles, tensors);
  }
  [[nodiscard]] Handles all() const {
    Handles handles(counts.size());
    for (std::size_t i = 0; i < handles.size(); ++i) handles[i] = static_cast<std::uint32_t>(i);
    return handles;
  }

  octavo::Result<octavo::engine::EnginePlan> begin(const Handles& active, bool with_norm = false) {
    std::vector<const void*> grads;
    std::vector<octavo::DType> dtypes;
    for (const std::uint32_t handle : active) {
      grads.push_back(set.tensors()[handle].grad.data());
      dtypes.push_back(set.tensors()[handle].spec.grad_dtype);
    }
    auto plan = engine.begin(active, grads, dtypes, with_norm);
    make_room();
    return plan;
  }
  void make_room() {
    const std::int64_t bytes = engine.workspace_bytes({});
    if (bytes > workspace.size()) workspace = Buffer(bytes);
    device.workspace = {workspace.data(), static_cast<std::size_t>(workspace.size())};
    const auto needed = static_cast<std::size_t>(engine.staging_bytes({}));
    if (needed <= device.staging.size()) return;
    if (!device.staging.empty()) {
      EXPECT_TRUE(engine.synchronize().ok());
    }
    staging = Buffer(static_cast<std::int64_t>(needed) + 256);
    const auto past = reinterpret_cast<std::uintptr_t>(staging.data()) % 256;
    device.staging = {staging.data() + (past == 0 ? 0 : 256 - past), needed};
  }
  [[nodiscard]] octavo::engine::EngineArgs args(bool guard = false) {
    octavo::engine::EngineArgs out;
    out.skip_nonfinite = guard;
    out.devices = {&device, 1};
    return out;
  }
  octavo::Result<octavo::StepReport> step(const Handles& active) {
    const auto plan = begin(active);
    return plan.ok() ? engine.step(args()) : plan.status();
  }

  TensorSet set;
  std::vector<std::int64_t> counts;
  octavo::engine::Engine engine;
  octavo::engine::EngineGroup options;
  octavo::engine::EngineDevice device;
  octavo::GradNorm norm;
  octavo::StepReport report;
  Buffer workspace, staging;
  std::vector<octavo::Residence> residences;  // none: device
  bool held_in_fp32 = false;
};

// One tensor, alone in a group.
inline void step_alone(TensorSet& set, std::size_t i, const octavo::engine::EngineGroup& options,
                       std::int64_t step, const octavo::GradNorm* norm = nullptr) {
  const std::vector<octavo::TensorArgs> one = {set.tensors()[i].args()};
  auto group = octavo::Group::create(set.config(), one).value();
  const Buffer workspace(group.workspace_bytes());
  octavo::StepArgs args;
  args.hyper = options.hyper;
  args.seed = options.seed;
  args.step = step;
  args.clip_grad_norm = norm != nullptr ? options.clip_grad_norm : 0.0;
  args.scalars.norm = norm;
  args.workspace = {workspace.data(), static_cast<std::size_t>(workspace.size())};
  const auto done = group.step(args);
  EXPECT_TRUE(done.ok()) << done.status().message();
}

// The norm of some gradients, in their order.
inline octavo::GradNorm norm_of(const TensorSet& set, const Handles& active) {
  std::vector<octavo::GradView> views;
  for (const std::uint32_t handle : active) {
    const TensorBuffers& t = set.tensors()[handle];
    views.push_back({t.grad.data(), t.spec.grad_dtype, t.spec.numel});
  }
  std::vector<double> sums(static_cast<std::size_t>(octavo::grad_norm_workspace(views)));
  return grad_norm(views, sums).value();
}

}  // namespace test
