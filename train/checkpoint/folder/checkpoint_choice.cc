// Chooses a checkpoint of a run by a word or a step; see checkpoint_choice.h.
// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_choice.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/best_checkpoints.h"
#include "train/checkpoint/folder/checkpoint_names.h"
#include "train/io/checksums.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kNamed = 8;  // the most checkpoints that a message lists
constexpr std::string_view kLatest = "latest";
constexpr std::string_view kBest = "best";

bool is_checkpoint(const std::string& path) {
  return path_exists(path + "/state.json") || path_exists(path + '/' + std::string(kChecksumsName));
}

std::string what_is_there(const std::vector<CheckpointRef>& all) {
  if (all.empty()) return "no checkpoint is there; expected a run's folder or a checkpoint's";
  std::string steps;
  for (std::size_t i = 0; i < all.size() && i < kNamed; ++i)
    steps += (i > 0 ? ", " : "") + std::to_string(all[i].step);
  if (all.size() > kNamed) steps += " and " + std::to_string(all.size() - kNamed) + " older ones";
  return "its checkpoints are of step " + steps;
}

std::optional<std::int64_t> step_in(std::string_view word) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), step);
  if (error != std::errc() || end != word.data() + word.size() || step < 0) return std::nullopt;
  return step;
}

std::string number_text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// Returns the metric that `best` refers to; empty if no checkpoint was evaluated.
std::string metric_of(const std::vector<CheckpointRef>& newest_first) {
  for (const CheckpointRef& each : newest_first) {
    const auto record = read_evaluation(each.path);
    if (!record.ok() || !*record) continue;
    if (!(*record)->best_by.empty()) return (*record)->best_by;
    if (!(*record)->metrics.empty()) return (*record)->metrics.front().name;
  }
  return {};
}

Status none_is_whole(const std::string& run, const std::string& reason) {
  return Status::invalid(run + ": no checkpoint is there that is whole: " + reason);
}

Result<ChosenCheckpoint> choose_best(const std::string& run, const std::vector<CheckpointRef>& all,
                                     std::span<const std::string_view> files) {
  const std::string metric = metric_of(all);
  const std::vector<RankedCheckpoint> ranked = rank_checkpoints(run, metric);
  if (ranked.empty()) {
    return Status::invalid(run + ": best: " +
                           (metric.empty() ? std::string("no checkpoint was saved with an evaluation")
                                           : "no checkpoint has a number for " + metric) +
                           "; set save_best, so that the best ones are saved. Now " + what_is_there(all));
  }
  ChosenCheckpoint out;
  for (const RankedCheckpoint& each : ranked) {
    const Status status = verify_checkpoint(each.checkpoint.path, files);
    if (!status.ok()) {
      out.skipped.push_back(status.message());
      continue;
    }
    out.path = each.checkpoint.path;
    out.why = "best by " + metric + ": " + number_text(each.value);
    return out;
  }
  return none_is_whole(run, out.skipped[0]);
}

Result<ChosenCheckpoint> choose_latest(const std::string& run, std::span<const std::string_view> files) {
  ASSIGN_OR_RETURN(auto newest, newest_checkpoint(run, files));
  if (newest.found) return ChosenCheckpoint{newest.found->path, {}, std::move(newest.skipped)};
  if (!newest.skipped.empty()) return none_is_whole(run, newest.skipped[0]);
  return Status::invalid(run + ": " + what_is_there({}));
}

Result<ChosenCheckpoint> choose_given(const std::string& path, std::span<const std::string_view> files) {
  RETURN_IF_ERROR(verify_checkpoint(path, files));
  return ChosenCheckpoint{path, {}, {}};
}

}  // namespace

Result<ChosenCheckpoint> choose_checkpoint(const std::string& run, std::string_view which,
                                           std::span<const std::string_view> files) {
  const std::optional<std::int64_t> step = step_in(which);
  if (!which.empty() && which != kLatest && which != kBest && !step) {
    return Status::invalid("checkpoint: got " + std::string(which) +
                           ", expected best, latest or the number of a step");
  }
  if (is_checkpoint(run)) {
    if (which.empty()) return choose_given(run, files);
    return Status::invalid(run + ": is a checkpoint; to choose by " + std::string(which) +
                           ", name its run's folder");
  }
  const std::vector<CheckpointRef> all = list_checkpoints(run);
  if (all.empty() || which.empty() || which == kLatest) return choose_latest(run, files);
  if (which == kBest) return choose_best(run, all, files);
  const auto found = std::ranges::find(all, *step, &CheckpointRef::step);
  if (found == all.end())
    return Status::invalid(run + ": no checkpoint of step " + std::string(which) + "; " + what_is_there(all));
  return choose_given(found->path, files);
}

}  // namespace octavo_train
