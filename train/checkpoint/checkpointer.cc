// SPDX-License-Identifier: MIT
#include "train/checkpoint/checkpointer.h"

#include "train/base/metric_names.h"
#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/distributed/agreement.h"
#include "train/io/files.h"
#include "train/io/text_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <chrono>
#include <exception>
#include <utility>

namespace octavo_train {
namespace {

// Returns the bytes of the files in a folder.
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

Checkpointer::Checkpointer(CheckpointSources sources) : from_(std::move(sources)) {
  if (from_.resumed_from.empty()) return;
  saved_step_ = from_.counters.step;
  set_newest(from_.resumed_from);
}

// Error messages about other ranks end with the newest checkpoint.
void Checkpointer::set_newest(const std::string& checkpoint) {
  newest_ = checkpoint;
  from_.process_group.set_error_suffix("; the newest checkpoint is " + checkpoint);
}

Status Checkpointer::add_evaluation(const std::vector<Metric>& metrics) {
  const auto& by = training().save_best;
  evaluation_ = {metrics, by.value_or(""), false};
  evaluated_step_ = from_.counters.step;
  if (!by) return {};
  best_ = from_.process_group.broadcast_text(among_best() ? "best" : "") == "best";
  if (evaluation_->find(*by) != nullptr) return {};
  return failed_error("training.save_best: the evaluation has no {}, which the task {} declares", *by,
                      from_.settings.task);
}

const Metric* Checkpointer::best_metric() const {
  const auto& by = training().save_best;
  return by && evaluated_step_ == from_.counters.step ? evaluation_->find(*by) : nullptr;
}

bool Checkpointer::among_best() const {
  const Metric* const metric = best_metric();
  return from_.process_group.leads() && metric != nullptr && from_.counters.skipped_in_a_row == 0 &&
         is_among_best(folder(), *metric, from_.counters.step, training().save_best_limit);
}

std::string Checkpointer::best_text() const {
  const std::string metric = metric_label(*training().save_best);
  if (training().save_best_limit == 1) return fmt::format(", the best {} so far", metric);
  return fmt::format(", among the best {} by {}", training().save_best_limit, metric);
}

void Checkpointer::remove_superseded() {
  if (from_.counters.skipped_in_a_row > 0 || (!training().save_total_limit && !training().save_best)) return;
  const std::string metric = training().save_best.value_or("");
  Status bad = prune_checkpoints(
      folder(),
      {.newest = training().save_total_limit, .metric = metric, .best = training().save_best_limit});
  if (!metric.empty() && bad.ok()) bad = point_best(folder(), metric);
  if (!bad.ok()) from_.console.note("warning: " + bad.message());
}

Status Checkpointer::save(Reason reason) {
  RETURN_IF_ERROR(from_.lock.check());
  const RunState& counters = from_.counters;
  // A run that resumes may have evaluated its checkpoint only now: the best is written once more, with its
  // metrics.
  const bool again = saved_step_ == counters.step;
  if (again && reason != Reason::best) return {};
  const bool rescues = reason == Reason::rescue;
  const auto begin = std::chrono::steady_clock::now();
  if (!rescues)
    from_.console.doing(fmt::format("step {}/{}, saving a checkpoint", counters.step, from_.last_step));
  // Ranks communicate here. An exception of one rank must end the other ranks, too: they cannot agree on it.
  const SavedState state = from_.state();
  std::int64_t saved_bytes = 0;
  const auto write = [&]() -> Status {
    if (!from_.process_group.leads()) return {};
    std::uint64_t bytes = 0;
    for (const SavedComponent& each : state.components)
      bytes += static_cast<std::uint64_t>(bytes_of(each.tensors));
    // Rank 0 has everything that it writes: the failure of another rank must not end it.
    const LocalWork saving =
        from_.process_group.local_work("saving " + CheckpointName{counters.step}.text(), bytes);
    std::optional<EvaluationRecord> evaluation;
    if (evaluated_step_ == counters.step) evaluation = evaluation_;
    if (evaluation) evaluation->only_best = reason == Reason::best && !again;
    auto saved = save_checkpoint(folder(), state.counters, from_.data, state.components, from_.yaml,
                                 evaluation, from_.extra_files);
    if (!saved.ok()) return saved.status();
    // The newest checkpoint is set before rank 0 waits for other ranks, which may fail meanwhile.
    saved_step_ = counters.step;
    saved_bytes = saved->bytes;
    set_newest(folder() + '/' + saved->path);
    // A warning that comes with every checkpoint is printed once.
    if (!saved->warning.empty() && !warned_) from_.console.note("warning: " + saved->warning);
    warned_ = !saved->warning.empty();
    return {};
  };
  const Status status = rescues ? write() : run_on_all_ranks(from_.process_group, write);
  if (!status.ok()) {
    failed_ = true;
    return status;
  }
  saved_step_ = counters.step;
  set_newest(folder() + '/' + CheckpointName{counters.step}.text());
  RETURN_IF_ERROR(write_config());
  if (rescues) return {};
  from_.process_group.take_traffic();  // the states that went to rank 0 belong to no step
  if (from_.process_group.leads()) {
    const LocalWork deleting = from_.process_group.local_work("deleting checkpoints that are not kept");
    remove_superseded();
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  seconds_ += took;
  if (from_.log == nullptr) return {};
  nlohmann::ordered_json record = {{"kind", "checkpoint"},
                                   {"step", counters.step},
                                   {"path", CheckpointName{counters.step}.text()},
                                   {"seconds", took},
                                   {"bytes", saved_bytes}};
  if (is_best()) record["best"] = *training().save_best;
  return from_.log->write(record);
}

std::string Checkpointer::rescue() {
  try {
    if (from_.counters.step == 0 || from_.counters.skipped_in_a_row > 0) return {};
    if (!from_.lock.check().ok()) {  // the folder was removed, and with it what was saved
      // A folder that has the name now belongs to another process: this run must not write into it.
      if (path_exists(folder()) || !from_.lock.take(folder()).ok()) return {};
      saved_step_ = -1;
    }
    if (!save(Reason::rescue).ok()) return {};
    return fmt::format("; step {} is saved in {}", from_.counters.step, newest_);
  } catch (const std::exception&) {
    return {};
  }
}

std::string Checkpointer::last_good_checkpoint_text(
    const std::function<bool(std::int64_t step)>& is_trusted) const {
  for (const CheckpointRef& each : list_checkpoints(folder())) {
    if (!is_trusted(each.step)) continue;
    const LocalWork checking =
        from_.process_group.local_work("checking " + each.path, folder_bytes(each.path));
    if (verify_checkpoint(each.path).ok()) return "; the last good checkpoint is " + each.path;
  }
  return "; no good checkpoint was saved before";
}

Status Checkpointer::write_config() {
  if (config_written_ || !from_.process_group.leads()) return {};
  config_written_ = true;
  const std::string base = folder() + "/config", path = base + ".yaml";
  if (auto there = read_text_file(path, 1 << 20); there.ok() && *there != from_.yaml) {
    std::string aside;
    for (int number = 1; aside.empty() || path_exists(aside); ++number)
      aside = fmt::format("{}.{}.yaml", base, number);
    RETURN_IF_ERROR(rename_path(path, aside));
    from_.console.note("the config.yaml that was there is now " + aside);
  }
  return write_text_file(path, from_.yaml);
}

}  // namespace octavo_train
