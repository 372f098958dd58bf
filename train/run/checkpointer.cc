// SPDX-License-Identifier: MIT
#include "train/run/checkpointer.h"

#include "train/base/metric_names.h"
#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/files.h"
#include "train/io/text_file.h"
#include "train/run/agreement.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <chrono>
#include <exception>

namespace octavo_train {
namespace {

// The bytes of the files in a folder.
std::uint64_t folder_bytes(const std::string& path) {
  const auto names = list_folder(path);
  std::uint64_t bytes = 0;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    struct stat info {};
    if (stat((path + '/' + name).c_str(), &info) == 0) bytes += static_cast<std::uint64_t>(info.st_size);
  }
  return bytes;
}

}  // namespace

Checkpointer::Checkpointer(Run& run, const DivergenceGuard& guard)
    : run_(run), guard_(guard), counters_(run.state.counters) {
  if (run.config.resumed_from.empty()) return;
  saved_step_ = counters_.step;
  set_newest(run.config.resumed_from);
}

// Error messages about other ranks end with the newest checkpoint.
void Checkpointer::set_newest(const std::string& checkpoint) {
  newest_ = checkpoint;
  run_.services.process_group->set_error_suffix("; the newest checkpoint is " + checkpoint);
}

Status Checkpointer::add_evaluation(const std::vector<Metric>& metrics) {
  const auto& by = run_.config.training().save_best;
  evaluation_ = {metrics, by.value_or(""), false};
  evaluated_step_ = counters_.step;
  if (!by) return {};
  best_ = run_.services.process_group->broadcast_text(among_best() ? "best" : "") == "best";
  if (evaluation_->find(*by) != nullptr) return {};
  return failed_error("training.save_best: the evaluation has no {}, which the task {} declares", *by,
                      run_.config.settings->task);
}

const Metric* Checkpointer::best_metric() const {
  const auto& by = run_.config.training().save_best;
  return by && evaluated_step_ == counters_.step ? evaluation_->find(*by) : nullptr;
}

bool Checkpointer::among_best() const {
  const Metric* const metric = best_metric();
  const TrainingSettings& training = run_.config.training();
  return run_.services.process_group->leads() && metric != nullptr && counters_.skipped_in_a_row == 0 &&
         is_among_best(run_.config.settings->output_dir, *metric, counters_.step, training.save_best_limit);
}

std::string Checkpointer::best_text() const {
  const TrainingSettings& training = run_.config.training();
  const std::string metric = metric_label(*training.save_best);
  if (training.save_best_limit == 1) return fmt::format(", the best {} so far", metric);
  return fmt::format(", among the best {} by {}", training.save_best_limit, metric);
}

void Checkpointer::remove_superseded() {
  const TrainingSettings& training = run_.config.training();
  if (counters_.skipped_in_a_row > 0 || (!training.save_total_limit && !training.save_best)) return;
  const std::string& folder = run_.config.settings->output_dir;
  const std::string metric = training.save_best.value_or("");
  Status bad = prune_checkpoints(
      folder, {.newest = training.save_total_limit, .metric = metric, .best = training.save_best_limit});
  if (!metric.empty() && bad.ok()) bad = point_best(folder, metric);
  if (!bad.ok()) run_.services.console.note("warning: " + bad.message());
}

Status Checkpointer::save(Reason reason) {
  // A run that resumes may have evaluated its checkpoint only now: the best is written once more, with its
  // metrics.
  const bool again = saved_step_ == counters_.step;
  if (again && reason != Reason::best) return {};
  const auto begin = std::chrono::steady_clock::now();
  ProcessGroup& process_group = *run_.services.process_group;
  run_.services.console.doing(run_.config.step_text(counters_.step) + ", saving a checkpoint");
  // Ranks communicate here: an exception of one must end the others, too, and is not for them to agree on.
  const std::vector<SavedComponent> parts = run_.state.save();
  const Status status = run_on_all_ranks(process_group, [&] {
    return process_group.leads() ? write(parts, reason == Reason::best && !again) : Status();
  });
  if (!status.ok()) {
    failed_ = true;
    return status;
  }
  saved_step_ = counters_.step;
  set_newest(run_.config.settings->output_dir + '/' + CheckpointName{counters_.step}.text());
  RETURN_IF_ERROR(write_config());
  if (process_group.leads()) {
    const LocalWork deleting = process_group.local_work("deleting checkpoints that are not kept");
    remove_superseded();
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  seconds_ += took;
  nlohmann::ordered_json record = {{"kind", "checkpoint"},
                                   {"step", counters_.step},
                                   {"path", CheckpointName{counters_.step}.text()},
                                   {"seconds", took},
                                   {"bytes", saved_bytes_}};
  if (is_best()) record["best"] = *run_.config.training().save_best;
  return run_.services.record(record);
}

// Sets the newest checkpoint before other ranks are asked again: another rank may fail in the meantime.
Status Checkpointer::write(std::span<const SavedComponent> parts, bool only_best) {
  const Settings& settings = *run_.config.settings;
  const bool evaluated = evaluated_step_ == counters_.step;
  if (evaluated) evaluation_->only_best = only_best;
  std::uint64_t bytes = 0;
  for (const SavedComponent& part : parts) bytes += static_cast<std::uint64_t>(bytes_of(part.tensors));
  // Rank 0 has everything that it writes: what happens to another rank must not end it.
  const LocalWork saving =
      run_.services.process_group->local_work("saving " + CheckpointName{counters_.step}.text(), bytes);
  auto saved = save_checkpoint(settings.output_dir, counters_, run_.data.record, parts, run_.config.yaml,
                               evaluated ? evaluation_ : std::nullopt, run_.state.model.extra_files);
  if (!saved.ok()) return saved.status();
  saved_step_ = counters_.step;
  saved_bytes_ = saved->bytes;
  set_newest(settings.output_dir + '/' + saved->path);
  // A warning that comes with every checkpoint is printed once.
  if (!saved->warning.empty() && !warned_) run_.services.console.note("warning: " + saved->warning);
  warned_ = !saved->warning.empty();
  return {};
}

std::string Checkpointer::rescue() {
  try {
    if (counters_.step == 0 || counters_.skipped_in_a_row > 0) return {};
    if (!run_.services.lock.check().ok()) {  // the folder is gone, and with it what was saved
      // A folder that has the name now belongs to another process: this run must not write into it.
      if (path_exists(run_.config.settings->output_dir)) return {};
      if (!run_.services.lock.take(run_.config.settings->output_dir).ok()) return {};
      saved_step_ = -1;
    }
    if (saved_step_ != counters_.step) {
      const Status status = write(run_.state.save(), /*only_best=*/false);
      failed_ = !status.ok();
      if (failed_ || !write_config().ok()) return {};
    }
    return fmt::format("; step {} is saved in {}", counters_.step, newest_);
  } catch (const std::exception&) {
    return {};
  }
}

std::string Checkpointer::last_good_checkpoint_text() const {
  for (const CheckpointRef& each : list_checkpoints(run_.config.settings->output_dir)) {
    if (!guard_.is_trusted(each.step)) continue;
    const LocalWork checking =
        run_.services.process_group->local_work("checking " + each.path, folder_bytes(each.path));
    if (verify_checkpoint(each.path).ok()) return "; the last good checkpoint is " + each.path;
  }
  return "; no good checkpoint was saved before";
}

Status Checkpointer::write_config() {
  if (config_written_ || !run_.services.process_group->leads()) return {};
  config_written_ = true;
  const std::string base = run_.config.settings->output_dir + "/config", path = base + ".yaml";
  if (auto there = read_text_file(path, 1 << 20); there.ok() && *there != run_.config.yaml) {
    std::string aside;
    for (int number = 1; aside.empty() || path_exists(aside); ++number)
      aside = fmt::format("{}.{}.yaml", base, number);
    RETURN_IF_ERROR(rename_path(path, aside));
    run_.services.console.note("the config.yaml that was there is now " + aside);
  }
  return write_text_file(path, run_.config.yaml);
}

}  // namespace octavo_train
