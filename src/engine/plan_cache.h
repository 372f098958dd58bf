// Caches the plans of earlier sets of gradients. The least recently used plans are dropped when the plans
// have more than kTensors tensors in all, so many plans of one tensor (gradient release) use about as much
// memory as a few plans of thousands.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/step_plan.h"

#include <list>
#include <unordered_map>

namespace octavo::engine {

class PlanCache {
 public:
  static constexpr std::size_t kTensors = 32768;

  // Returns the plan for these and makes it the most recently used one, or null.
  StepPlan* find(std::span<const std::uint32_t> handles, std::span<const DType> dtypes);
  // Replaces a plan for the same handles and dtypes.
  StepPlan* insert(std::unique_ptr<StepPlan> plan, std::span<const DType> dtypes);
  void clear();
  [[nodiscard]] std::size_t size() const { return plans_.size(); }

 private:
  struct Kept {
    std::uint64_t key;
    std::unique_ptr<StepPlan> plan;
  };
  void drop(std::list<Kept>::iterator at);

  std::list<Kept> plans_;  // the most recently used one first
  std::unordered_map<std::uint64_t, std::list<Kept>::iterator> by_key_;
  std::size_t weight_ = 0;
};

}  // namespace octavo::engine
