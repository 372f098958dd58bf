// SPDX-License-Identifier: MIT
#include "train/run/saver.h"

#include "train/checkpoint/folder/best_checkpoints.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/checkpoint_names.h"
#include "train/io/folders.h"
#include "train/io/text_file.h"
#include "train/strings/metric_names.h"

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <chrono>
#include <exception>

namespace octavo::train {
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

Saver::Saver(Session& session, Heartbeat& console, const Health& health)
    : session_(session), console_(console), health_(health), state_(session.state) {
  if (session.resumed_from.empty()) return;
  saved_step_ = state_.step;
  is_newest(session.resumed_from);
}

// A message about a failure of another rank ends with it.
void Saver::is_newest(const std::string& checkpoint) {
  checkpoint_ = checkpoint;
  session_.world->remember("; the newest checkpoint is " + checkpoint);
}

Status Saver::evaluated(const std::vector<Metric>& metrics) {
  const auto& by = session_.settings.training.save_best;
  evaluation_ = {metrics, by.value_or(""), false};
  evaluated_step_ = state_.step;
  if (!by) return {};
  best_ = session_.world->share(among_best() ? "best" : "") == "best";
  if (evaluation_->find(*by) != nullptr) return {};
  return Status::failed("training.save_best: the evaluation has no " + *by + ", which the task " +
                        session_.settings.task + " declares");
}

const Metric* Saver::best_metric() const {
  const auto& by = session_.settings.training.save_best;
  return by && evaluated_step_ == state_.step ? evaluation_->find(*by) : nullptr;
}

bool Saver::among_best() const {
  const Metric* const metric = best_metric();
  const TrainingSettings& training = session_.settings.training;
  return session_.world->leads() && metric != nullptr && state_.skipped_in_a_row == 0 &&
         is_among_best(session_.settings.output_dir, *metric, state_.step, training.save_best_limit);
}

std::string Saver::best_text() const {
  const TrainingSettings& training = session_.settings.training;
  const std::string metric = metric_label(*training.save_best);
  if (training.save_best_limit == 1) return ", the best " + metric + " so far";
  return ", among the best " + std::to_string(training.save_best_limit) + " by " + metric;
}

void Saver::keep_best_and_newest() {
  const TrainingSettings& training = session_.settings.training;
  if (state_.skipped_in_a_row > 0 || (!training.save_total_limit && !training.save_best)) return;
  const std::string& folder = session_.settings.output_dir;
  const std::string metric = training.save_best.value_or("");
  Status bad = prune_checkpoints(
      folder, {.newest = training.save_total_limit, .metric = metric, .best = training.save_best_limit});
  if (!metric.empty() && bad.ok()) bad = point_best(folder, metric);
  if (!bad.ok()) console_.note("warning: " + bad.message());
}

Status Saver::save(Reason reason) {
  // A run that goes on may have evaluated its checkpoint only now: the best is written once more, with its
  // metrics.
  if (saved_step_ == state_.step && reason != Reason::best) return {};
  const auto begin = std::chrono::steady_clock::now();
  const bool best = is_best();
  if (Status bad = save_files(reason); !bad.ok()) return bad;
  if (session_.world->leads()) {
    const LocalWork deleting = session_.world->local_work("deleting checkpoints that are not kept");
    keep_best_and_newest();
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  seconds_ += took;
  nlohmann::ordered_json record = {{"kind", "checkpoint"},
                                   {"step", state_.step},
                                   {"path", CheckpointName{state_.step}.text()},
                                   {"seconds", took},
                                   {"bytes", saved_bytes_}};
  if (best) record["best"] = *session_.settings.training.save_best;
  return session_.record(record);
}

Status Saver::save_files(Reason reason) {
  const bool again = saved_step_ == state_.step;
  console_.doing(session_.step_text(state_.step) + ", saving a checkpoint");
  const bool evaluated = evaluated_step_ == state_.step;
  if (evaluated) evaluation_->only_best = reason == Reason::best && !again;
  return take(session_.save(evaluated ? evaluation_ : std::nullopt,
                            [this](const SavedCheckpoint& saved) { note_saved(saved); }));
}

void Saver::note_saved(const SavedCheckpoint& saved) {
  saved_step_ = state_.step;
  saved_bytes_ = saved.bytes;
  is_newest(session_.settings.output_dir + '/' + saved.path);
}

Status Saver::take(const Result<SavedCheckpoint>& saved) {
  if (!saved.ok()) {
    failed_ = true;
    return saved.status();
  }
  // What fails at every checkpoint is said at the first.
  if (!saved->warning.empty() && !warned_) console_.note("warning: " + saved->warning);
  warned_ = !saved->warning.empty();
  note_saved(*saved);
  return write_config();
}

std::string Saver::rescue() {
  try {
    if (state_.step == 0 || state_.skipped_in_a_row > 0) return {};
    if (!session_.lock.check().ok()) {  // the folder is gone, and with it what was saved
      // A folder that has the name now belongs to another process: this run must not write into it.
      if (path_exists(session_.settings.output_dir)) return {};
      if (!session_.lock.take(session_.settings.output_dir).ok()) return {};
      saved_step_ = -1;
    }
    const bool evaluated = evaluated_step_ == state_.step;
    if (evaluated) evaluation_->only_best = false;
    if (saved_step_ != state_.step && !take(session_.write(evaluated ? evaluation_ : std::nullopt)).ok())
      return {};
    return "; step " + std::to_string(state_.step) + " is saved in " + checkpoint_;
  } catch (const std::exception&) {
    return {};
  }
}

std::string Saver::left_to_go_on_from() const {
  for (const CheckpointRef& each : list_checkpoints(session_.settings.output_dir)) {
    if (!health_.trusts(each.step)) continue;
    const LocalWork checking = session_.world->local_work("checking " + each.path, folder_bytes(each.path));
    if (verify_checkpoint(each.path).ok()) return "; the last good checkpoint is " + each.path;
  }
  return "; no good checkpoint was saved before";
}

Status Saver::write_config() {
  if (config_written_ || !session_.world->leads()) return {};
  config_written_ = true;
  const std::string base = session_.settings.output_dir + "/config";
  const std::string path = base + ".yaml";
  if (auto there = read_text_file(path, 1 << 20); there.ok() && *there != session_.config_yaml) {
    int number = 1;
    while (path_exists(base + '.' + std::to_string(number) + ".yaml")) ++number;
    const std::string aside = base + '.' + std::to_string(number) + ".yaml";
    if (Status bad = rename_path(path, aside); !bad.ok()) return bad;
    console_.note("the config.yaml that was there is now " + aside);
  }
  return write_text_file(path, session_.config_yaml);
}

}  // namespace octavo::train
