// SPDX-License-Identifier: MIT
#include "train/checkpoint/resume.h"

#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/config/checks.h"
#include "train/config/config.h"
#include "train/config/paths.h"
#include "train/io/text_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::uint64_t kConfigLimit = 1 << 20;
const std::string kResumeKey = "training.resume_from_checkpoint: ";

// Returns true if changes must be refused. They are allowed if the user named this checkpoint or asked for
// `allow_changes`.
bool must_be_the_same(const Settings& settings) {
  const Resume& resume = settings.training.resume_from_checkpoint;
  return resume.latest && !resume.allow_changes;
}

Status another_run(const Settings& settings, const std::string& checkpoint, const std::string& what,
                   const std::vector<std::string>& changes) {
  return Status::invalid(
      fmt::format("output_dir: {} has a run with other {} ({}): {}. For a run of its own: output_dir={}. To "
                  "resume this run all the same: --resume (resume_from_checkpoint=allow_changes)",
                  settings.output_dir, what, checkpoint, fmt::join(changes, "; "), free_folder(settings)));
}

Result<std::string> find_named(const Settings& settings, const std::vector<CheckpointRef>& there) {
  const std::string& path = settings.training.resume_from_checkpoint.path;
  if (!path_exists(path))
    return Status::invalid(kResumeKey + path + " does not exist" + places_looked_at(settings, path));
  if (!list_checkpoints(path).empty())
    return Status::invalid(kResumeKey + path + " is a run's folder; name a checkpoint in it, or use true");
  if (Status bad = verify_checkpoint(path); !bad.ok()) return Status(bad.code(), kResumeKey + bad.message());
  std::error_code ignored;
  for (const CheckpointRef& each : there) {
    if (std::filesystem::equivalent(each.path, path, ignored)) return path;
  }
  if (there.empty()) return path;
  return Status::invalid(kResumeKey + path + " is not of output_dir, which has checkpoints of its own (" +
                         there[0].path + "); choose another output_dir");
}

bool have_equal_batches(const TrainingSettings& then, const TrainingSettings& now) {
  return then.per_device_train_batch_size == now.per_device_train_batch_size &&
         then.gradient_accumulation_steps == now.gradient_accumulation_steps &&
         then.global_batch_size == now.global_batch_size;
}

Status cannot_divide(const std::string& checkpoint, const TrainingSettings& training, std::int64_t batches,
                     std::int64_t ranks) {
  const std::string has = fmt::format("{}: its steps have {} batches", checkpoint, batches);
  if (training.per_device_train_batch_size == kNoLimit) {
    std::vector<std::int64_t> possible;
    for (std::int64_t count = 1; count <= batches; ++count) {
      if (batches % count == 0) possible.push_back(count);
    }
    return Status::invalid(fmt::format("{}, which {} ranks cannot divide; ranks that can: {}", has, ranks,
                                       fmt::join(possible, ", ")));
  }
  const std::int64_t rows = training.per_device_train_batch_size, global = batches * rows;
  return Status::invalid(
      fmt::format("{} of {} samples, {} in all, and a resumed run keeps the samples of its steps; {}", has,
                  rows, global, possible_batch_splits(global, rows, ranks)));
}

}  // namespace

std::string free_folder(const Settings& settings) {
  std::string folder = settings.output_dir;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  int number = 2;
  while (path_exists(fmt::format("{}-{}", folder, number))) ++number;
  return fmt::format("{}-{}", folder, number);
}

Result<std::string> find_resume(const Settings& settings, bool restarted, Console& console) {
  const std::vector<CheckpointRef> there = list_checkpoints(settings.output_dir);
  Resume resume = settings.training.resume_from_checkpoint;
  if (restarted && !there.empty()) resume.latest = true, resume.path.clear();
  if (!resume.path.empty()) return find_named(settings, there);
  if (!resume.latest) {
    if (there.empty()) return std::string();
    return Status::invalid(
        fmt::format("output_dir: {} has checkpoints already ({}), and resume_from_checkpoint is "
                    "false; resume, remove them, or choose another",
                    settings.output_dir, there[0].path));
  }
  ASSIGN_OR_RETURN(auto newest, newest_checkpoint(settings.output_dir));
  for (const std::string& reason : newest.skipped) console.note("warning: not resumed from " + reason);
  if (!newest.found && !newest.skipped.empty()) {
    return Status::failed("output_dir: no checkpoint in " + settings.output_dir +
                          " is whole; remove them to start from the beginning");
  }
  if (!newest.found && resume.allow_changes) {
    return Status::invalid(kResumeKey + "there is no checkpoint in " + settings.output_dir +
                           " to resume from; omit --resume to start from the beginning");
  }
  return newest.found ? newest.found->path : std::string();
}

Status check_newest(const Settings& settings, std::int64_t step) {
  for (const CheckpointRef& each : list_checkpoints(settings.output_dir)) {
    if (each.step > step && !settings.training.resume_from_checkpoint.path.empty())
      return Status::invalid(kResumeKey + each.path + " is newer; remove it, or choose another output_dir");
  }
  return {};
}

Status continue_data(const std::string& checkpoint, const Settings& settings,
                     const std::vector<std::string>& changed, Changes& changes) {
  if (!changed.empty() && must_be_the_same(settings))
    return another_run(settings, checkpoint, "data", changed);
  changes.insert(changes.end(), changed.begin(), changed.end());
  return {};
}

Result<Settings> saved_settings(const std::string& checkpoint) {
  const std::string path = checkpoint + "/config.yaml";
  ASSIGN_OR_RETURN(const auto text, read_text_file(path, kConfigLimit));
  ASSIGN_OR_RETURN(auto config, parse(text, path));
  return std::move(config.settings);
}

Status continue_settings(const std::string& checkpoint, const RunState& then, const Settings& settings,
                         std::int64_t ranks, Changes& changes, Console& console) {
  const auto saved = saved_settings(checkpoint);
  if (!saved.ok()) {
    console.note("warning: the settings cannot be compared with the checkpoint's: " +
                 saved.status().message());
    return {};
  }
  Settings before = with_absolute_paths(*saved);
  const Settings now = with_absolute_paths(settings);
  if (then.ranks > 0) before.training.gradient_accumulation_steps = then.batches_per_step / then.ranks;
  const std::vector<std::string> matter =
      experiment_differences(before, now, std::max<std::int64_t>(then.ranks, 1), ranks);
  if (!matter.empty() && must_be_the_same(settings))
    return another_run(settings, checkpoint, "settings", matter);
  // This key determines how a process starts, not what the run trains.
  before.training.resume_from_checkpoint = now.training.resume_from_checkpoint;
  for (std::string& change : differences(before, now)) changes.push_back(std::move(change));
  return {};
}

Result<std::int64_t> micro_batches_per_rank(const Settings& given, std::int64_t ranks,
                                            const std::string& checkpoint) {
  const TrainingSettings& training = given.training;
  if (checkpoint.empty() || training.global_batch_size) return accumulation_for(training, ranks);
  ASSIGN_OR_RETURN(const auto state, saved_state(checkpoint));
  const auto then = saved_settings(checkpoint);
  if (!then.ok() || !have_equal_batches(then->training, training)) return accumulation_for(training, ranks);
  const std::int64_t batches =
      state.batches_per_step > 0 ? state.batches_per_step : training.gradient_accumulation_steps;
  if (batches % ranks != 0) return cannot_divide(checkpoint, training, batches, ranks);
  return batches / ranks;
}

}  // namespace octavo_train
