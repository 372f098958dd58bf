// The plans of earlier sets of gradients, by what they are for. The least recently used ones go first: kept
// are those whose tensors are fewer than kTensors in all, so that many plans of one tensor (gradient release)
// and a few of thousands take about the same memory.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/plan.h"

#include <list>
#include <unordered_map>

namespace octavo::engine {

class Plans {
 public:
  static constexpr std::size_t kTensors = 32768;

  // The plan for these, now the most recently used; null: there is none.
  Plan* find(std::span<const std::uint32_t> handles, std::span<const DType> dtypes);
  // Takes the place of a plan for the same.
  Plan* keep(std::unique_ptr<Plan> plan, std::span<const DType> dtypes);
  void clear();
  [[nodiscard]] std::size_t size() const { return plans_.size(); }

 private:
  struct Kept {
    std::uint64_t key;
    std::unique_ptr<Plan> plan;
  };
  void drop(std::list<Kept>::iterator at);

  std::list<Kept> plans_;  // the most recently used one first
  std::unordered_map<std::uint64_t, std::list<Kept>::iterator> by_key_;
  std::size_t weight_ = 0;
};

}  // namespace octavo::engine
