// SPDX-License-Identifier: MIT
#include "engine/plan_cache.h"

namespace octavo::engine {
namespace {

std::uint64_t key_of(std::span<const std::uint32_t> handles, std::span<const DType> dtypes) {
  std::uint64_t key = handles.size();
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const std::uint64_t one = (std::uint64_t{handles[i]} << 8) | static_cast<std::uint64_t>(dtypes[i]);
    key = (key ^ one) * 0x9E3779B97F4A7C15U;
    key ^= key >> 29;
  }
  return key;
}

// A plan also has some memory that does not depend on the number of its tensors.
std::size_t weight_of(const StepPlan& plan) { return plan.handles().size() + 4; }

}  // namespace

StepPlan* PlanCache::find(std::span<const std::uint32_t> handles, std::span<const DType> dtypes) {
  const auto found = by_key_.find(key_of(handles, dtypes));
  if (found == by_key_.end() || !found->second->plan->is_for(handles, dtypes)) return nullptr;
  plans_.splice(plans_.begin(), plans_, found->second);
  return plans_.front().plan.get();
}

StepPlan* PlanCache::insert(std::unique_ptr<StepPlan> plan, std::span<const DType> dtypes) {
  const std::uint64_t key = key_of(plan->handles(), dtypes);
  const std::size_t weight = weight_of(*plan);
  plans_.push_front({key, std::move(plan)});
  if (const auto old = by_key_.find(key); old != by_key_.end()) drop(old->second);
  by_key_[key] = plans_.begin();
  weight_ += weight;
  while (weight_ > kTensors && plans_.size() > 1) drop(std::prev(plans_.end()));
  return plans_.front().plan.get();
}

void PlanCache::drop(std::list<Kept>::iterator at) {
  weight_ -= weight_of(*at->plan);
  by_key_.erase(at->key);
  plans_.erase(at);
}

void PlanCache::clear() {
  plans_.clear();
  by_key_.clear();
  weight_ = 0;
}

}  // namespace octavo::engine
