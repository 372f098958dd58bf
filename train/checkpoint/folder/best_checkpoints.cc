// Ranks checkpoints and chooses those to remove; see best_checkpoints.h.
// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/best_checkpoints.h"

#include "train/checkpoint/folder/checkpoint_names.h"

#include <algorithm>
#include <cmath>

namespace octavo_train {
namespace {

std::optional<EvaluationRecord> record_of(const CheckpointRef& checkpoint) {
  auto record = read_evaluation(checkpoint.path);
  return record.ok() ? *record : std::nullopt;
}

// Returns true if the checkpoint was saved only for its metric, and not because save_steps was due.
bool is_only_best(const CheckpointRef& checkpoint) {
  const auto record = record_of(checkpoint);
  return record && record->only_best;
}

}  // namespace

std::vector<RankedCheckpoint> rank_checkpoints(const std::string& run_folder, std::string_view metric) {
  std::vector<RankedCheckpoint> out;
  std::optional<Better> better;  // the direction in the newest record
  for (const CheckpointRef& checkpoint : list_checkpoints(run_folder)) {
    const auto record = record_of(checkpoint);
    const Metric* const found = record ? record->find(metric) : nullptr;
    if (found == nullptr || std::isnan(found->value)) continue;
    if (!better) better = found->better;
    out.push_back({checkpoint, found->value});
  }
  std::ranges::sort(out, [&](const RankedCheckpoint& a, const RankedCheckpoint& b) {
    if (a.value != b.value) return Metric{{}, a.value, *better}.better_than(b.value);
    return a.checkpoint.step < b.checkpoint.step;
  });
  return out;
}

bool is_among_best(const std::string& run_folder, const Metric& metric, std::int64_t step,
                   std::int64_t limit) {
  if (std::isnan(metric.value)) return false;
  const std::vector<RankedCheckpoint> ranked = rank_checkpoints(run_folder, metric.name);
  // A checkpoint of a later step can only be a damaged one that the run did not resume from.
  return std::ranges::count_if(ranked, [&](const RankedCheckpoint& each) {
           return each.checkpoint.step < step && !metric.better_than(each.value);
         }) < limit;
}

Status prune_checkpoints(const std::string& run_folder, const KeepRule& rule) {
  if (rule.newest && *rule.newest < 1) {
    return Status::invalid("keep: got " + std::to_string(*rule.newest) +
                           ", expected 1 or more checkpoints to keep");
  }
  std::vector<CheckpointRef> goes = list_checkpoints(run_folder);
  std::vector<CheckpointRef> kept;
  if (!rule.metric.empty()) {
    const std::vector<RankedCheckpoint> ranked = rank_checkpoints(run_folder, rule.metric);
    const auto best = std::min(ranked.size(), static_cast<std::size_t>(std::max<std::int64_t>(rule.best, 0)));
    for (std::size_t i = 0; i < best; ++i) kept.push_back(ranked[i].checkpoint);
  }
  const auto newest = std::min(goes.size(), static_cast<std::size_t>(rule.newest.value_or(1)));
  goes.erase(goes.begin(), goes.begin() + static_cast<std::ptrdiff_t>(newest));
  std::erase_if(goes, [&](const CheckpointRef& each) {
    return std::ranges::find(kept, each) != kept.end() || (!rule.newest && !is_only_best(each));
  });
  return remove_checkpoints(run_folder, std::move(goes));
}

Status point_best(const std::string& run_folder, std::string_view metric) {
  const std::vector<RankedCheckpoint> ranked = rank_checkpoints(run_folder, metric);
  if (ranked.empty()) return {};
  const CheckpointName name{ranked[0].checkpoint.step, CheckpointState::complete};
  return point_link(run_folder, kBestName, name.text());
}

}  // namespace octavo_train
