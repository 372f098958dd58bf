// SPDX-License-Identifier: MIT
#include "train/run/training_loop.h"

#include "train/base/metric_names.h"
#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/console/signals.h"
#include "train/distributed/agreement.h"
#include "train/predict/prediction.h"
#include "train/run/errors.h"
#include "train/run/evaluation.h"
#include "train/run/start_log.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

TrainingLoop::TrainingLoop(Run& run)
    : run_(run),
      console_(run.services.console),
      counters_(run.state.counters),
      stepper_(run),
      guard_(run),
      progress_(run, guard_),
      checkpointer_({.settings = *run.config.settings,
                     .yaml = run.config.yaml,
                     .resumed_from = run.config.resumed_from,
                     .last_step = run.config.steps(),
                     .process_group = *run.services.process_group,
                     .console = run.services.console,
                     .lock = run.services.lock,
                     .log = run.services.log.get(),
                     .counters = run.state.counters,
                     .components = [&state = run.state] { return state.save(); },
                     .data = run.data.record,
                     .extra_files = run.state.model.extra_files}) {}

Result<Outcome> TrainingLoop::run() {
  Outcome outcome;
  Status status;
  bool thrown = true;
  try {
    status = steps(outcome);
    if (status.ok()) status = finish(outcome);
    thrown = false;
  } catch (const ProcessGroupError& error) {
    // Rank 0 ends the message with what it has saved.
    status = Status::failed(run_.services.process_group->leads() ? error.failure().text : error.what());
    run_.services.process_group->fail(error.failure());
    another_failed_ = true;
  } catch (const c10::Error& error) {
    status = explain(run_, error, evaluating_);
  } catch (const std::exception& error) {
    status = status_of(error);
  }
  console_.doing("");
  if (status.ok()) return outcome;
  if (!another_failed_ && (run_.services.process_group->leads() || thrown))
    run_.services.process_group->fail(status.message());
  if (run_.services.process_group->leads()) return failed(status);
  // An error that is no exception is equal on all ranks, and rank 0 prints it.
  return thrown ? status : Status(status.code(), "");
}

Status TrainingLoop::steps(Outcome& outcome) {
  // A signal may have stopped an evaluation and then saved the checkpoint: that evaluation runs now.
  if (!run_.config.resumed_from.empty() && counters_.step <= run_.config.steps() && evaluation_due()) {
    RETURN_IF_ERROR(evaluate());
    if (checkpointer_.is_best()) {
      const Progress::Pause not_a_step(progress_);
      RETURN_IF_ERROR(checkpointer_.save(Checkpointer::Reason::best));
    }
  }
  note_long_run_on_cpu();
  while (counters_.step < run_.config.steps()) {
    // Ranks exchange signals when they begin a step.
    if (!run_.services.process_group->grouped()) outcome.signal = StopSignals::received();
    if (run_.services.process_group->grouped() && cut_short_)
      outcome.signal = signal_on_any(*run_.services.process_group);
    if (outcome.signal != 0) return {};
    if (counters_.samples != run_.config.stage_after(run_.state.counters.step).samples) {
      RETURN_IF_ERROR(next_stage());
    }
    const bool trained = stepper_.step();
    outcome.signal = stepper_.signal();
    if (outcome.signal != 0) return {};
    RETURN_IF_ERROR(log_fp8_choices(run_));
    RETURN_IF_ERROR(read(/*drain=*/!trained));  // the log's steps never go back
    RETURN_IF_ERROR(guard_.note_samples(trained));
    progress_.show();
    RETURN_IF_ERROR(at_step_end(counters_.step == run_.config.steps()));
  }
  if (counters_.evaluated != counters_.step) outcome.signal = signal_on_any(*run_.services.process_group);
  return {};
}

void TrainingLoop::note_long_run(double step_seconds, const std::string& how, const std::string& why) {
  const std::string note =
      long_run_note(*run_.config.settings, run_.task.text().speed_advice, counters_.step, run_.config.steps(),
                    step_seconds, run_.services.device.is_cpu(), how);
  if (!note.empty()) console_.note(why + note);
}

// The first steps of a run that is too large for a CPU take minutes, and only then is their time known.
void TrainingLoop::note_long_run_on_cpu() {
  constexpr double kFewFlops = 1e15;  // less takes no hour
  if (!run_.services.device.is_cpu() || run_.config.prediction == nullptr) return;
  const double flops = run_.config.prediction->matmul_flops;
  if (flops * static_cast<double>(run_.config.steps() - counters_.step) < kFewFlops) return;
  note_long_run(flops / cpu_matmul_rate(run_.config.training().compute_dtype), "at least",
                "by its matmuls alone, ");
}

// Counts finished steps.
Status TrainingLoop::read(bool drain) {
  while (const auto numbers = stepper_.finished(drain)) {
    RETURN_IF_ERROR(guard_.add_step(*numbers));
  }
  return {};
}

bool TrainingLoop::due(const std::optional<std::int64_t>& every) const {
  return every && counters_.step % *every == 0;
}

bool TrainingLoop::evaluation_due() const {
  const bool stage_ends =
      counters_.step == run_.config.steps() ||
      (counters_.step > 0 && counters_.samples != run_.config.stage_after(run_.state.counters.step).samples);
  return counters_.evaluated != counters_.step && (due(run_.config.training().eval_steps) || stage_ends);
}

Status TrainingLoop::at_step_end(bool last) {
  const TrainingSettings& training = run_.config.training();
  const bool log = due(training.logging_steps) || last;
  const bool measured = stepper_.has_just_measured();
  const bool evaluation = evaluation_due();
  const bool save = due(training.save_steps) || last || save_pending_;
  if (!log && !measured && !evaluation && !save) return {};
  RETURN_IF_ERROR(read(/*drain=*/true));
  if (measured) progress_.measured(stepper_.measured_seconds());
  if (log) {
    RETURN_IF_ERROR(run_.services.lock.check());
    RETURN_IF_ERROR(checkpointer_.write_config());
    RETURN_IF_ERROR(progress_.log());
  }
  if (measured) RETURN_IF_ERROR(log_memory());
  if (evaluation) RETURN_IF_ERROR(evaluate());
  // No checkpoint is written while steps are skipped. At the end of the run finish() reports why.
  save_pending_ = save && (last ? guard_.weights_in_doubt() : counters_.skipped_in_a_row > 0);
  const bool saves = save && !save_pending_;
  if (!saves && !(evaluation && checkpointer_.is_best())) return {};
  const Progress::Pause not_a_step(progress_);
  return checkpointer_.save(saves ? Checkpointer::Reason::due : Checkpointer::Reason::best);
}

Status TrainingLoop::log_memory() {
  const MemoryByOwner& o = *stepper_.memory();
  Json record = {{"kind", "memory"},
                 {"step", counters_.step},
                 {"owners",
                  {{"params", o.params},
                   {"grads", o.grads},
                   {"states", o.states},
                   {"master", o.master},
                   {"activations", o.activations},
                   {"workspace", o.workspace}}},
                 {"peak", o.peak()}};
  if (run_.services.process_group->grouped()) record["owners"]["communication"] = o.communication;
  if (run_.state.fp8 != nullptr) record["owners"]["fp8"] = o.fp8;
  if (o.host() > 0)
    record["host"] = {{"states", o.host_states}, {"master", o.host_master}, {"copies", o.host_copies}};
  if (!run_.services.device.is_cpu()) record["device_peak"] = device_memory(run_.services.device).peak;
  RETURN_IF_ERROR(run_.services.record(record));
  note_long_run(progress_.step_seconds(), "about");
  return {};
}

Status TrainingLoop::evaluate() {
  const auto begin = std::chrono::steady_clock::now();
  console_.progress(run_.config.step_text(counters_.step) + "  evaluating");
  console_.doing(run_.config.step_text(counters_.step) + ", evaluating");
  evaluating_ = true;
  run_.state.optimizer->wait();
  const auto result = evaluate_task(run_.task, *run_.services.process_group, run_.services.device);
  evaluating_ = false;
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  progress_.pause(took);
  evaluation_seconds_ += took;
  cut_short_ = !result;
  if (!result) return {};  // a signal stopped the evaluation: the loop ends next
  progress_.evaluated(result->metrics.front());
  RETURN_IF_ERROR(checkpointer_.add_evaluation(result->metrics));
  counters_.evaluated = counters_.step;
  std::string said;
  for (const Metric& metric : result->metrics)
    said += (said.empty() ? "" : ", ") + metric_text(metric.name, metric.value);
  if (checkpointer_.is_best()) said += checkpointer_.best_text();
  console_.note("step " + std::to_string(counters_.step) + ": evaluation " + said);
  show_examples(result->examples, console_);
  std::int64_t stage = 0;
  while (run_.config.stages[static_cast<std::size_t>(stage)].last_step < counters_.step) ++stage;
  Json record = {{"kind", "eval"}, {"step", counters_.step}};
  record.update(evaluation_json(*result, run_.task.text().unit));
  record["seconds"] = took;
  record["stage"] = stage;
  return run_.services.record(record);
}

Status TrainingLoop::next_stage() {
  const Stage& stage = run_.config.stage_after(run_.state.counters.step);
  counters_.samples = stage.samples;
  counters_.sampler_start = counters_.position;
  run_.batches.reset(run_.batch_source(), counters_.position);
  const auto number = &stage - run_.config.stages.data();
  console_.note(run_.config.stage_text(run_.state.counters.step));
  return run_.services.record(
      {{"kind", "stage"}, {"step", counters_.step}, {"stage", number}, {"samples", stage.samples}});
}

Status TrainingLoop::finish(Outcome& outcome) {
  RETURN_IF_ERROR(read(/*drain=*/true));
  if (guard_.weights_in_doubt()) {
    const std::string why = fmt::format(
        "nothing is saved, because the gradients of the last {} steps were not finite and the weights may be "
        "ruined",
        counters_.skipped_in_a_row);
    if (outcome.signal == 0) {
      // A resume repeats the skipped steps. Only a step with finite gradients shows that the weights are
      // good.
      return failed_error(
          "{}; to finish with these weights, train one step further: max_steps={}. Otherwise {}", why,
          run_.config.steps() + 1 - first_step_of_resume(), guard_.advice());
    }
    outcome.not_saved = why;
  } else {
    if (outcome.signal != 0) console_.note("stopping: a checkpoint is saved first");
    const Progress::Pause not_a_step(progress_);
    RETURN_IF_ERROR(checkpointer_.save(Checkpointer::Reason::due));
  }
  outcome.step = counters_.step;
  outcome.metric = progress_.metric();
  outcome.checkpoint = checkpointer_.newest();
  return write_end(outcome);
}

// Returns the step from which max_steps counts after a resume.
std::int64_t TrainingLoop::first_step_of_resume() const {
  if (run_.config.settings->data.stages || checkpointer_.newest().empty()) return 0;
  const auto state = saved_state(checkpointer_.newest());
  return state.ok() ? state->first_step : 0;
}

Status TrainingLoop::write_end(const Outcome& outcome) {
  const double seconds = progress_.seconds(), checkpoints = checkpointer_.seconds();
  const double working = seconds - evaluation_seconds_ - checkpoints;
  Json record = {{"kind", "end"},
                 {"step", counters_.step},
                 {"reason", outcome.signal != 0 ? "interrupted" : "finished"},
                 {"seconds", seconds},
                 {"evaluation_seconds", evaluation_seconds_},
                 {"checkpoint_seconds", checkpoints}};
  if (counters_.left_out > 0) {
    record["left_out"] = counters_.left_out;
    console_.note(fmt::format("{} samples could not be read and were left out{}", counters_.left_out,
                              counters_.passes_left_out > 0
                                  ? fmt::format(", and {} passes without samples", counters_.passes_left_out)
                                  : ""));
  }
  if (stepper_.done() > 0 && seconds > 0) {
    console_.note(fmt::format("time: {}, of which evaluations {}, checkpoints {}", duration_text(seconds),
                              percent_text(evaluation_seconds_ / seconds),
                              percent_text(checkpoints / seconds)));
  }
  // The share of time outside of micro-batches, updates, evaluations and checkpoints. The first steps would
  // distort it.
  if (stepper_.done() > Stepper::kMeasuredStep && working > 0)
    record["overhead"] = std::max(1.0 - stepper_.computing() / working, 0.0);
  progress_.add_traffic(record);
  if (run_.config.prediction != nullptr && stepper_.done() >= Stepper::kMeasuredStep) {
    const auto settled = progress_.settled();
    const bool cpu = run_.services.device.is_cpu();
    const std::int64_t peak = !cpu                ? device_memory(run_.services.device).peak
                              : stepper_.memory() ? stepper_.memory()->peak()
                                                  : 0;
    const Prediction& plan = *run_.config.prediction;
    const BatchTotals& fed = run_.computed;
    const double usual = fed.passes > 0 ? fed.padded_length / static_cast<double>(fed.passes) : 0;
    const Measured found{.peak = peak,
                         .step_seconds = settled ? settled->step_seconds : progress_.step_seconds(),
                         .evaluated = !cpu && evaluation_seconds_ > 0,
                         .settled = settled.has_value(),
                         .data_waited = settled ? std::optional(settled->data_waited) : std::nullopt,
                         .largest_batch = is_as_large(plan, cpu ? stepper_.measured_length() : fed.largest),
                         .usual_batch = is_as_large(plan, usual)};
    if (const std::string line = compare_with_measured(plan, found); !line.empty()) console_.note(line);
    record["plan"] = comparison_json(plan, found);
  }
  const std::vector<std::string> ending = run_.task.text().ending;
  for (const std::string& line : ending) console_.note(line);
  if (!ending.empty()) record["notes"] = ending;
  return run_.services.record(record);
}

Result<Outcome> TrainingLoop::failed(const Status& status) {
  const bool diverged = guard_.diverged();
  // If another rank has failed, a GPU may wait for it forever.
  const bool stuck = another_failed_ && !run_.services.device.is_cpu();
  const bool hopeless =
      diverged || stuck || checkpointer_.failed() || stepper_.updating() || run_.state.shards != nullptr;
  // The reason is logged first: saving, and checking a checkpoint, may take minutes, and this process may be
  // killed meanwhile.
  record_failure(diverged, status.message());
  if (run_.services.process_group->grouped()) console_.note("the run has failed: " + status.message());
  console_.doing(hopeless ? "looking for a good checkpoint"
                          : run_.config.step_text(counters_.step) + ", saving a checkpoint after a failure");
  const std::string saved = hopeless ? std::string() : rescue();
  const auto is_trusted = [&](std::int64_t step) { return guard_.is_trusted(step); };
  const std::string left = saved.empty() ? checkpointer_.last_good_checkpoint_text(is_trusted) : saved;
  // A save that another rank's failure interrupted has not written config.yaml.
  if (checkpointer_.newest() != run_.config.resumed_from) std::ignore = checkpointer_.write_config();
  console_.doing("");
  record_failure(diverged, status.message() + left);
  return Status(status.code(), status.message() + left);
}

// The run has failed already: an error of the log is not reported on top of it. Readers take the last record.
void TrainingLoop::record_failure(bool diverged, const std::string& message) {
  std::ignore = run_.services.record({{"kind", "end"},
                                      {"step", counters_.step},
                                      {"reason", diverged ? "diverged" : "failed"},
                                      {"message", message},
                                      {"seconds", progress_.seconds()}});
}

std::string TrainingLoop::rescue() {
  try {
    run_.state.gradients->clear();
    std::ignore = read(/*drain=*/true);
    stepper_.forget_step();
  } catch (const std::exception&) {
    return {};
  }
  return checkpointer_.rescue();
}

}  // namespace octavo_train
