// SPDX-License-Identifier: MIT
#include "engine/step_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace octavo::engine {
namespace {

constexpr std::int64_t kAlignment = 256;  // of tables in a workspace

// Returns the turn of each tensor: 0, or one more than those of earlier tensors of its group whose parameters
// share memory with it. One call writes its tensors in any order.
std::vector<std::uint32_t> turns_of(const Registry& registry, std::span<const std::uint32_t> handles) {
  struct Span {
    std::uintptr_t begin, end;
    std::uint32_t group, turn;
  };
  std::vector<std::uint32_t> turns;
  std::vector<Span> shared;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Record& record = registry[handles[i]];
    if (!record.shares) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(record.args.param);
    const auto bytes = record.args.spec.numel * dtype_bytes(record.args.spec.param_dtype);
    Span now{begin, begin + static_cast<std::uintptr_t>(bytes), record.group, 0};
    for (const Span& earlier : shared) {
      if (earlier.group == now.group && now.begin < earlier.end && earlier.begin < now.end)
        now.turn = std::max(now.turn, earlier.turn + 1);
    }
    shared.push_back(now);
    if (turns.empty()) turns.resize(handles.size());
    turns[i] = now.turn;
  }
  return turns;
}

template <class Backend>
Status bind_indices(Member<Backend>& member, std::span<const void* const> grads) {
  if (member.backend == nullptr) return {};
  if (member.indices.size() == grads.size()) return member.backend->bind_grads(grads);
  std::vector<const void*> some;
  some.reserve(member.indices.size());
  for (const std::uint32_t index : member.indices) some.push_back(grads[index]);
  return member.backend->bind_grads(some);
}

}  // namespace

Result<std::unique_ptr<StepPlan>> StepPlan::make(const Registry& registry,
                                                 std::span<const std::uint32_t> handles,
                                                 std::span<const void* const> grads,
                                                 std::span<const DType> dtypes, offload::Offload& offload) {
  auto plan = std::make_unique<StepPlan>();
  plan->handles_.assign(handles.begin(), handles.end());
  plan->dtypes_.assign(dtypes.begin(), dtypes.end());
  plan->grads_.assign(grads.begin(), grads.end());
  plan->find_cohorts(registry);
  plan->sort_cohorts(registry);
  for (Cohort& cohort : plan->cohorts_) {
    if (Status bad = plan->add_backend(cohort, registry, offload); !bad.ok()) return bad;
  }
  plan->lay_out();
  return plan;
}

void StepPlan::find_cohorts(const Registry& registry) {
  using Key = std::tuple<std::uint32_t, std::uint32_t, DeviceKind, int, std::uint32_t, bool, Residence,
                         std::uint64_t>;
  const std::vector<std::uint32_t> turns = turns_of(registry, handles_);
  std::map<Key, Cohort> found;
  const Key* last_key = nullptr;
  Cohort* last = nullptr;
  for (std::uint32_t index = 0; index < handles_.size(); ++index) {
    const Record& record = registry[handles_[index]];
    const std::uint64_t count = record.on_device ? record.history : static_cast<std::uint64_t>(*record.step);
    const std::uint32_t part = registry.measures(record.group) ? record.part : 0;
    const Key key{record.group,
                  turns.empty() ? 0 : turns[index],
                  record.device.kind,
                  record.device.index,
                  part,
                  record.on_device,
                  record.residence,
                  count};
    if (last_key == nullptr || key != *last_key) {
      const auto at = found.try_emplace(key).first;
      last_key = &at->first, last = &at->second;
      last->group = record.group;
      last->turn = std::get<1>(key);
      last->part = part;
      last->switches = record.switches;
      last->device = record.device;
      last->on_device = record.on_device;
      last->residence = record.residence;
    }
    last->indices.push_back(index);
    last->handles.push_back(handles_[index]);
    last->counts.push_back(record.step);
  }
  cohorts_.reserve(found.size());
  for (auto& [key, cohort] : found) cohorts_.push_back(std::move(cohort));
}

// Offloaded cohorts come first, by their first tensor, so that their copies begin while the device steps the
// others. Small offloaded cohorts come before all: they are cheap, and the first layer may need a bias from a
// group of biases.
void StepPlan::sort_cohorts(const Registry& registry) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 20;  // elements
  const auto turn = [&](const Cohort& cohort) {
    std::uint64_t first = std::uint64_t{1} << 32;
    std::int64_t elements = 0;
    for (const std::uint32_t handle : cohort.handles) {
      if (cohort.residence == Residence::device) continue;
      first = std::min<std::uint64_t>(first, registry[handle].offloaded->order);
      elements += registry[handle].args.spec.numel;
    }
    const bool small = cohort.residence != Residence::device && elements < kLarge;
    return std::pair(!small, first);
  };
  std::ranges::stable_sort(cohorts_, {}, turn);
}

Status StepPlan::add_backend(Cohort& cohort, const Registry& registry, offload::Offload& offload) const {
  std::vector<TensorArgs> tensors;
  tensors.reserve(cohort.indices.size());
  for (const std::uint32_t index : cohort.indices) {
    TensorArgs& args = tensors.emplace_back(registry[handles_[index]].args);
    args.grad = grads_[index];
    args.spec.grad_dtype = dtypes_[index];
  }
  GroupConfig config = registry.group(cohort.group).config;
  config.device = cohort.device;
  if (cohort.residence != Residence::device) return add_offloaded(cohort, registry, config, tensors, offload);
  const std::span counts(cohort.counts);
  auto made = cohort.device.kind == DeviceKind::cpu
                  ? make_cpu_step(config, tensors)
                  : make_cuda_step(config, tensors, cohort.on_device ? counts.subspan(1) : counts.first(0));
  if (made.ok()) cohort.backend = std::move(*made);
  return made.status();
}

Status StepPlan::add_offloaded(Cohort& cohort, const Registry& registry, const GroupConfig& config,
                               std::span<const TensorArgs> tensors, offload::Offload& offload) {
  std::vector<offload::StepTensor> list;
  list.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    offload::OffloadedTensor& own = *registry[cohort.handles[i]].offloaded;
    list.push_back({tensors[i], own.param_copy.get(), own.order});
    cohort.tensors.push_back(&own);
  }
  const std::span counts(cohort.counts);
  const auto advanced = cohort.residence == Residence::host ? counts
                        : cohort.on_device                  ? counts.subspan(1)
                                                            : counts.first(0);
  auto made = offload.make_step(config, cohort.residence, list, advanced);
  if (made.ok()) cohort.offloaded = std::move(*made);
  return made.status();
}

bool StepPlan::has_norms(std::span<const std::uint8_t> on_host) const {
  return has_norms_ && std::ranges::equal(on_host, norms_on_host_);
}

Status StepPlan::add_norms(const Registry& registry, std::span<const std::uint8_t> on_host) {
  std::vector<NormSet> sets;
  for (std::uint32_t index = 0; index < handles_.size(); ++index) {
    const Record& record = registry[handles_[index]];
    auto at = std::find_if(sets.rbegin(), sets.rend(), [&](const NormSet& set) {
      return set.device == record.device && set.part == record.part;
    });
    NormSet& set = at != sets.rend() ? *at : sets.emplace_back();
    set.device = record.device;
    set.part = record.part;
    const bool host = !on_host.empty() && on_host[index] != 0;
    if (!host) set.indices.push_back(index);
    set.grads.push_back({host ? record.offloaded.get() : nullptr, record.args.spec.numel});
  }
  for (NormSet& set : sets) {
    if (set.indices.size() == set.grads.size()) set.grads.clear();
    if (set.indices.empty()) continue;
    std::vector<GradView> views;
    views.reserve(set.indices.size());
    for (const std::uint32_t index : set.indices)
      views.push_back({grads_[index], dtypes_[index], registry[handles_[index]].args.spec.numel});
    auto made = make_norm(set.device, views);
    if (!made.ok()) return made.status();
    set.backend = std::move(*made);
  }
  norms_ = std::move(sets);
  norms_on_host_.assign(on_host.begin(), on_host.end());
  has_norms_ = true;
  lay_out();
  return {};
}

void StepPlan::lay_out() {
  needs_.clear();
  for (Cohort& cohort : cohorts_) cohort.workspace_at = reserve(cohort.device, cohort.workspace_bytes());
  for (NormSet& set : norms_) set.workspace_at = reserve(set.device, set.workspace_bytes());
}

std::int64_t StepPlan::reserve(Device device, std::int64_t bytes) {
  auto at = std::find_if(needs_.begin(), needs_.end(),
                         [&](const DeviceNeed& need) { return need.device == device; });
  DeviceNeed& need = at != needs_.end() ? *at : needs_.emplace_back(DeviceNeed{device, 0});
  const std::int64_t here = need.bytes;
  need.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return here;
}

bool StepPlan::is_for(std::span<const std::uint32_t> handles, std::span<const DType> dtypes) const {
  return std::ranges::equal(handles, handles_) && std::ranges::equal(dtypes, dtypes_);
}

// Returns true if the host counts of two cohorts are equal now, so that one call could step both. For counts
// in device memory the caller reports changes, and the plans are dropped.
bool StepPlan::has_equal_cohorts() const {
  if (cohorts_.size() < 2) return false;
  using Key =
      std::tuple<std::uint32_t, std::uint32_t, DeviceKind, int, std::uint32_t, Residence, std::int64_t>;
  std::vector<Key> keys;
  for (const Cohort& c : cohorts_) {
    if (c.on_device) continue;
    keys.emplace_back(c.group, c.turn, c.device.kind, c.device.index, c.part, c.residence, *c.counts[0]);
  }
  std::ranges::sort(keys);
  return std::ranges::adjacent_find(keys) != keys.end();
}

bool StepPlan::fits(const Registry& registry) const {
  return !has_equal_cohorts() && std::ranges::all_of(cohorts_, [&](const Cohort& cohort) {
    if (registry.group(cohort.group).options.switches != cohort.switches) return false;
    if (cohort.on_device) {
      const std::uint64_t first = registry[cohort.handles[0]].history;
      return std::ranges::all_of(cohort.handles, [&](auto h) { return registry[h].history == first; });
    }
    const std::int64_t first = *cohort.counts[0];
    return std::ranges::all_of(cohort.counts, [&](const auto* count) { return *count == first; });
  });
}

Status StepPlan::bind(std::span<const void* const> grads) {
  if (std::ranges::equal(grads, grads_)) return {};
  for (Cohort& cohort : cohorts_) {
    if (Status bad = bind_indices<StepBackend>(cohort, grads); !bad.ok()) return bad;
  }
  for (NormSet& set : norms_) {
    if (Status bad = bind_indices<NormBackend>(set, grads); !bad.ok()) return bad;
  }
  grads_.assign(grads.begin(), grads.end());
  return {};
}

void StepPlan::forget_workspace(Device device) {
  for (Cohort& cohort : cohorts_) {
    if (cohort.device == device && cohort.backend != nullptr) cohort.backend->forget_workspace();
  }
  for (NormSet& set : norms_) {
    if (set.device == device && set.backend != nullptr) set.backend->forget_workspace();
  }
}

const DeviceNeed* StepPlan::need(Device device) const {
  const auto at = std::ranges::find_if(needs_, [&](const DeviceNeed& need) { return need.device == device; });
  return at == needs_.end() ? nullptr : &*at;
}

}  // namespace octavo::engine
