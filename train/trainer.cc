// SPDX-License-Identifier: MIT
#include "train/trainer.h"

#include "train/base/status.h"
#include "train/console/console.h"
#include "train/console/signals.h"
#include "train/io/text_file.h"
#include "train/report/report.h"
#include "train/run/run.h"
#include "train/run/start.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <memory>
#include <utility>

namespace octavo_train {
namespace {

// Prints and logs a sample of the model's output.
Status show_preview(Run& run, std::int64_t step, Heartbeat& console) {
  console.doing("making a sample");
  run.state->optimizer->wait();
  const auto preview =
      run.state->task->preview(run.services.device, [] { return StopSignals::received() != 0; });
  if (!preview) return {};
  console.note(preview->title + ":" + preview->shown);
  nlohmann::ordered_json record = {{"kind", "sample"}, {"step", step}};
  for (const auto& [name, text] : preview->record) record[name] = text;
  return run.services.log->write(record);
}

Result<std::string> write_report(const std::string& run) {
  ASSIGN_OR_RETURN(auto page, make_report(std::span(&run, 1)));
  const std::string path = run + "/report.html";
  RETURN_IF_ERROR(write_text_file(path, page));
  return path;
}

// Finishes a run after its last step: memory table, sample, report. The steps are saved or lost by now, so
// errors are warnings.
void close_run(Run& run, Result<Outcome>& outcome, Heartbeat& console) {
  const auto say = [&](const Status& bad) {
    if (!bad.ok()) console.note("warning: " + bad.message());
  };
  // After a second Ctrl-C nothing but the checkpoint is written.
  if (StopSignals::received_again()) return say(run.services.log->flush());
  try {
    const Stepper& stepper = run.trainer->stepper();
    if (outcome.ok() && outcome->signal == 0 && stepper.done() > 0) {
      if (stepper.memory()) {
        console.note("memory:");
        for (const std::string& line : memory_table(*stepper.memory())) console.note(line);
      }
      say(show_preview(run, outcome->step, console));
    }
  } catch (const c10::Error& error) {
    say(Status::failed(std::string("no sample: ") + error.what_without_backtrace()));
  }
  console.doing("writing the report");
  const LocalWork writing = run.services.process_group->local_work("writing the report");
  say(run.services.log->flush());
  auto report = write_report(run.config.settings->output_dir);
  say(report.status());
  if (outcome.ok() && report.ok()) outcome->report = *report;
}

Result<Outcome> run_all(const Config& config, Heartbeat& console,
                        const std::shared_ptr<ProcessGroup>& process_group) {
  console.doing("setting up: data, model and optimizer");
  ASSIGN_OR_RETURN(auto started, start_run(config, console, Purpose::run, process_group));
  Run& run = *started;
  const RunState& counters = run.state->counters;
  if (counters.step >= run.config.steps()) {
    console.note(
        complete_text(*run.config.settings, run.config.resumed_from, counters.step, counters.first_step));
  }
  auto outcome = run.trainer->run();
  if (process_group->leads()) close_run(run, outcome, console);
  return outcome;
}

}  // namespace

// The order of a run: join_ranks() and start_run() (train/run/start.h), Trainer::run() (train/run/trainer.h),
// close_run().
Result<Outcome> train(const Config& config, Console& console, std::shared_ptr<ProcessGroup> process_group,
                      std::optional<RankFailure>* failure) {
  ASSIGN_OR_RETURN(auto rank_info, process_group != nullptr ? Result<RankInfo>(process_group->rank_info())
                                                            : rank_info_of(config));
  RankConsole own(console, rank_info.rank);
  Heartbeat heartbeat(own);
  const StopSignals signals(rank_info.leads() ? kStopping : "");
  if (process_group == nullptr) {
    heartbeat.doing("waiting for the other ranks");
    ASSIGN_OR_RETURN(auto joined, join_ranks(config, rank_info, failure));
    if (joined == nullptr) {
      Outcome stopped;
      stopped.signal = StopSignals::received();
      stopped.started = false;
      return stopped;
    }
    process_group = std::move(joined);
  }
  if (process_group->grouped())
    heartbeat.on_activity([&](const std::string& what) { process_group->set_activity(what); });
  auto outcome = run_all(config, heartbeat, process_group);
  if (failure != nullptr) *failure = process_group->failure();
  return outcome;
}

}  // namespace octavo_train
