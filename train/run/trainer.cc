// SPDX-License-Identifier: MIT
#include "train/run/trainer.h"

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

Trainer::Trainer(const RunConfig& config, Services& services, TrainingState& state, Prefetch<Batch> batches)
    : config_(config),
      services_(services),
      process_group_(*services.process_group),
      console_(services.console),
      state_(state),
      counters_(state.counters),
      stepper_(config, services, state, std::move(batches)),
      guard_(config, services, state.scaler, state.fp8 != nullptr, state.counters),
      progress_(config, services, state, stepper_, guard_),
      checkpointer_({.settings = *config.settings,
                     .yaml = config.yaml,
                     .resumed_from = config.resumed_from,
                     .last_step = config.steps(),
                     .process_group = *services.process_group,
                     .console = services.console,
                     .lock = services.lock,
                     .log = services.log.get(),
                     .counters = state.counters,
                     .state = [&state] { return state.save(); },
                     .data = state.data.record,
                     .extra_files = state.model.extra_files}) {}

Result<Outcome> Trainer::run() {
  Outcome outcome;
  Status status;
  bool thrown = true;
  try {
    status = steps(outcome);
    if (status.ok()) status = finish(outcome);
    thrown = false;
  } catch (const ProcessGroupError& error) {
    // Rank 0 ends the message with what it has saved.
    status = Status::failed(process_group_.leads() ? error.failure().text : error.what());
    process_group_.fail(error.failure());
    another_failed_ = true;
  } catch (const c10::Error& error) {
    status = explain(config_, services_, state_, error, evaluating_);
  } catch (const std::exception& error) {
    status = status_of(error);
  }
  console_.doing("");
  if (status.ok()) return outcome;
  if (!another_failed_ && (process_group_.leads() || thrown)) process_group_.fail(status.message());
  if (process_group_.leads()) return failed(status);
  // An error that is no exception is equal on all ranks, and rank 0 prints it.
  return thrown ? status : Status(status.code(), "");
}

Status Trainer::steps(Outcome& outcome) {
  // A signal may have stopped an evaluation and then saved the checkpoint: that evaluation runs now.
  if (!config_.resumed_from.empty() && counters_.step <= config_.steps() && evaluation_due()) {
    RETURN_IF_ERROR(evaluate());
    if (checkpointer_.is_best()) {
      const Progress::Pause not_a_step(progress_);
      RETURN_IF_ERROR(checkpointer_.save(Checkpointer::Reason::best));
    }
  }
  note_long_run_on_cpu();
  while (counters_.step < config_.steps()) {
    // Ranks exchange signals when they begin a step.
    if (!process_group_.grouped()) outcome.signal = StopSignals::received();
    if (process_group_.grouped() && cut_short_) outcome.signal = signal_on_any(process_group_);
    if (outcome.signal != 0) return {};
    if (counters_.samples != config_.stage_after(counters_.step).samples) {
      RETURN_IF_ERROR(next_stage());
    }
    const bool trained = stepper_.step();
    outcome.signal = stepper_.signal();
    if (outcome.signal != 0) return {};
    RETURN_IF_ERROR(log_fp8_choices(services_, state_));
    RETURN_IF_ERROR(read(/*drain=*/!trained));  // the log's steps never go back
    RETURN_IF_ERROR(guard_.note_samples(trained));
    progress_.show();
    RETURN_IF_ERROR(at_step_end(counters_.step == config_.steps()));
  }
  if (counters_.evaluated != counters_.step) outcome.signal = signal_on_any(process_group_);
  return {};
}

void Trainer::note_long_run(double step_seconds, const std::string& how, const std::string& why) {
  const std::string note = long_run_note(*config_.settings, state_.task->text().speed_advice, counters_.step,
                                         config_.steps(), step_seconds, services_.device.is_cpu(), how);
  if (!note.empty()) console_.note(why + note);
}

// The first steps of a run that is too large for a CPU take minutes, and only then is their time known.
void Trainer::note_long_run_on_cpu() {
  constexpr double kFewFlops = 1e15;  // less takes no hour
  if (!services_.device.is_cpu() || config_.prediction == nullptr) return;
  const double flops = config_.prediction->matmul_flops;
  if (flops * static_cast<double>(config_.steps() - counters_.step) < kFewFlops) return;
  note_long_run(flops / cpu_matmul_rate(config_.training().compute_dtype), "at least",
                "by its matmuls alone, ");
}

// Counts finished steps.
Status Trainer::read(bool drain) {
  while (const auto numbers = stepper_.finished(drain)) {
    RETURN_IF_ERROR(guard_.add_step(*numbers));
  }
  return {};
}

bool Trainer::due(const std::optional<std::int64_t>& every) const {
  return every && counters_.step % *every == 0;
}

bool Trainer::evaluation_due() const {
  const bool stage_ends =
      counters_.step == config_.steps() ||
      (counters_.step > 0 && counters_.samples != config_.stage_after(counters_.step).samples);
  return counters_.evaluated != counters_.step && (due(config_.training().eval_steps) || stage_ends);
}

Status Trainer::at_step_end(bool last) {
  const TrainingSettings& training = config_.training();
  const bool log = due(training.logging_steps) || last;
  const bool measured = stepper_.has_just_measured();
  const bool evaluation = evaluation_due();
  const bool save = due(training.save_steps) || last || save_pending_;
  if (!log && !measured && !evaluation && !save) return {};
  RETURN_IF_ERROR(read(/*drain=*/true));
  if (measured) progress_.measured(stepper_.measured_seconds());
  if (log) {
    RETURN_IF_ERROR(services_.lock.check());
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

Status Trainer::log_memory() {
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
  if (process_group_.grouped()) record["owners"]["communication"] = o.communication;
  if (state_.fp8 != nullptr) record["owners"]["fp8"] = o.fp8;
  if (o.host() > 0)
    record["host"] = {{"states", o.host_states}, {"master", o.host_master}, {"copies", o.host_copies}};
  if (!services_.device.is_cpu()) record["device_peak"] = device_memory(services_.device).peak;
  RETURN_IF_ERROR(services_.record(record));
  note_long_run(progress_.step_seconds(), "about");
  return {};
}

Status Trainer::evaluate() {
  const auto begin = std::chrono::steady_clock::now();
  console_.progress(config_.step_text(counters_.step) + "  evaluating");
  console_.doing(config_.step_text(counters_.step) + ", evaluating");
  evaluating_ = true;
  state_.optimizer->wait();
  const auto result = evaluate_task(*state_.task, process_group_, services_.device);
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
  while (config_.stages[static_cast<std::size_t>(stage)].last_step < counters_.step) ++stage;
  Json record = {{"kind", "eval"}, {"step", counters_.step}};
  record.update(evaluation_json(*result, state_.task->text().unit));
  record["seconds"] = took;
  record["stage"] = stage;
  return services_.record(record);
}

Status Trainer::next_stage() {
  const Stage& stage = config_.stage_after(counters_.step);
  counters_.samples = stage.samples;
  counters_.sampler_start = counters_.position;
  stepper_.begin_stage();
  const auto number = &stage - config_.stages.data();
  console_.note(config_.stage_text(counters_.step));
  return services_.record(
      {{"kind", "stage"}, {"step", counters_.step}, {"stage", number}, {"samples", stage.samples}});
}

Status Trainer::finish(Outcome& outcome) {
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
          config_.steps() + 1 - first_step_of_resume(), guard_.advice());
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
std::int64_t Trainer::first_step_of_resume() const {
  if (config_.settings->data.stages || checkpointer_.newest().empty()) return 0;
  const auto state = saved_state(checkpointer_.newest());
  return state.ok() ? state->first_step : 0;
}

Status Trainer::write_end(const Outcome& outcome) {
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
    console_.note(
        fmt::format("{} samples could not be read and were skipped{}", counters_.left_out,
                    counters_.passes_left_out > 0
                        ? fmt::format(", and {} micro-batches without samples", counters_.passes_left_out)
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
  if (config_.prediction != nullptr && stepper_.done() >= Stepper::kMeasuredStep) {
    const auto settled = progress_.settled();
    const bool cpu = services_.device.is_cpu();
    const std::int64_t peak = !cpu                ? device_memory(services_.device).peak
                              : stepper_.memory() ? stepper_.memory()->peak()
                                                  : 0;
    const Prediction& prediction = *config_.prediction;
    const BatchTotals& totals = stepper_.totals();
    const double usual =
        totals.micro_batches > 0 ? totals.padded_length / static_cast<double>(totals.micro_batches) : 0;
    const Measured found{
        .peak = peak,
        .step_seconds = settled ? settled->step_seconds : progress_.step_seconds(),
        .evaluated = !cpu && evaluation_seconds_ > 0,
        .settled = settled.has_value(),
        .data_waited = settled ? std::optional(settled->data_waited) : std::nullopt,
        .largest_batch = is_as_large(prediction, cpu ? stepper_.measured_length() : totals.largest),
        .usual_batch = is_as_large(prediction, usual)};
    if (const std::string line = compare_with_measured(prediction, found); !line.empty()) console_.note(line);
    record["plan"] = comparison_json(prediction, found);
  }
  const std::vector<std::string> ending = state_.task->text().ending;
  for (const std::string& line : ending) console_.note(line);
  if (!ending.empty()) record["notes"] = ending;
  return services_.record(record);
}

Result<Outcome> Trainer::failed(const Status& status) {
  const bool diverged = guard_.diverged();
  // If another rank has failed, a GPU may wait for it forever.
  const bool stuck = another_failed_ && !services_.device.is_cpu();
  const bool hopeless =
      diverged || stuck || checkpointer_.failed() || stepper_.updating() || state_.shards != nullptr;
  // The reason is logged first: saving, and checking a checkpoint, may take minutes, and this process may be
  // killed meanwhile.
  record_failure(diverged, status.message());
  if (process_group_.grouped()) console_.note("the run has failed: " + status.message());
  console_.doing(hopeless ? "looking for a good checkpoint"
                          : config_.step_text(counters_.step) + ", saving a checkpoint after a failure");
  const std::string saved = hopeless ? std::string() : rescue();
  const auto is_trusted = [&](std::int64_t step) { return guard_.is_trusted(step); };
  const std::string left = saved.empty() ? checkpointer_.last_good_checkpoint_text(is_trusted) : saved;
  // A save that another rank's failure interrupted has not written config.yaml.
  if (checkpointer_.newest() != config_.resumed_from) std::ignore = checkpointer_.write_config();
  console_.doing("");
  record_failure(diverged, status.message() + left);
  return Status(status.code(), status.message() + left);
}

// The run has failed already: an error of the log is not reported on top of it. Readers take the last record.
void Trainer::record_failure(bool diverged, const std::string& message) {
  std::ignore = services_.record({{"kind", "end"},
                                  {"step", counters_.step},
                                  {"reason", diverged ? "diverged" : "failed"},
                                  {"message", message},
                                  {"seconds", progress_.seconds()}});
}

std::string Trainer::rescue() {
  try {
    state_.gradients->clear();
    std::ignore = read(/*drain=*/true);
    stepper_.forget_step();
  } catch (const std::exception&) {
    return {};
  }
  return checkpointer_.rescue();
}

}  // namespace octavo_train
