// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_choice.h"

#include "train/base/text.h"
#include "train/io/checksums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kNamed = 8;  // the most checkpoints that a message lists

std::optional<EvaluationRecord> record_of(const CheckpointRef& checkpoint) {
  auto record = read_evaluation(checkpoint.path);
  return record.ok() ? *record : std::nullopt;
}

// Returns true if the checkpoint was saved only for its metric, and not because save_steps was due.
bool is_only_best(const CheckpointRef& checkpoint) {
  const auto record = record_of(checkpoint);
  return record && record->only_best;
}

bool is_checkpoint(const std::string& path) {
  return path_exists(path + "/state.json") || path_exists(path + '/' + std::string(kChecksumsName));
}

std::string what_is_there(const std::vector<CheckpointRef>& all) {
  if (all.empty()) return "found no checkpoint; expected the folder of a run or of a checkpoint";
  std::string out = "its checkpoints are of step ";
  for (std::size_t i = 0; i < all.size() && i < kNamed; ++i)
    out += fmt::format("{}{}", i > 0 ? ", " : "", all[i].step);
  if (all.size() > kNamed) out += fmt::format(" and {} older ones", all.size() - kNamed);
  return out;
}

// Returns the metric that `best` refers to; empty if no checkpoint was evaluated.
std::string metric_of(const std::vector<CheckpointRef>& newest_first) {
  for (const CheckpointRef& each : newest_first) {
    const auto record = record_of(each);
    if (!record) continue;
    if (!record->best_by.empty()) return record->best_by;
    if (!record->metrics.empty()) return record->metrics.front().name;
  }
  return {};
}

Status none_is_complete(const std::string& run, const std::string& reason) {
  return invalid_error("{}: found no complete checkpoint: {}", run, reason);
}

Result<ChosenCheckpoint> choose_best(const std::string& run, const std::vector<CheckpointRef>& all,
                                     std::span<const std::string_view> files) {
  const std::string metric = metric_of(all);
  const std::vector<RankedCheckpoint> ranked = rank_checkpoints(run, metric);
  if (ranked.empty()) {
    return invalid_error(
        "{}: best: {}{}; set save_best, so that the best ones are saved. Now {}", run,
        metric.empty() ? "no checkpoint was saved with an evaluation" : "no checkpoint has a number for ",
        metric, what_is_there(all));
  }
  ChosenCheckpoint out;
  for (const RankedCheckpoint& each : ranked) {
    const Status status = verify_checkpoint(each.checkpoint.path, files);
    if (!status.ok()) {
      out.skipped.push_back(status.message());
      continue;
    }
    out.path = each.checkpoint.path;
    out.why = fmt::format("best by {}: {:g}", metric, each.value);
    return out;
  }
  return none_is_complete(run, out.skipped[0]);
}

Result<ChosenCheckpoint> choose_latest(const std::string& run, std::span<const std::string_view> files) {
  ASSIGN_OR_RETURN(auto newest, newest_checkpoint(run, files));
  if (newest.found) return ChosenCheckpoint{newest.found->path, {}, std::move(newest.skipped)};
  if (!newest.skipped.empty()) return none_is_complete(run, newest.skipped[0]);
  return invalid_error("{}: {}", run, what_is_there({}));
}

Result<ChosenCheckpoint> choose_given(const std::string& path, std::span<const std::string_view> files) {
  RETURN_IF_ERROR(verify_checkpoint(path, files));
  return ChosenCheckpoint{path, {}, {}};
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
    return invalid_error("keep: got {}, expected 1 or more checkpoints to keep", *rule.newest);
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

Result<ChosenCheckpoint> choose_checkpoint(const std::string& run, std::string_view which,
                                           std::span<const std::string_view> files) {
  const auto step = parse_number<std::int64_t>(which);
  if (!which.empty() && which != kLatestName && which != kBestName && step.value_or(-1) < 0) {
    return invalid_error("checkpoint: got {}, expected best, latest or the number of a step", which);
  }
  if (is_checkpoint(run)) {
    if (which.empty()) return choose_given(run, files);
    return invalid_error("{}: is a checkpoint; to choose by {}, name its run's folder", run, which);
  }
  const std::vector<CheckpointRef> all = list_checkpoints(run);
  if (all.empty() || which.empty() || which == kLatestName) return choose_latest(run, files);
  if (which == kBestName) return choose_best(run, all, files);
  const auto found = std::ranges::find(all, *step, &CheckpointRef::step);
  if (found == all.end())
    return invalid_error("{}: no checkpoint of step {}; {}", run, which, what_is_there(all));
  return choose_given(found->path, files);
}

}  // namespace octavo_train
