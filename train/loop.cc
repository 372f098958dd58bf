// SPDX-License-Identifier: MIT
#include "loop.h"

#include "estimate.h"
#include "evaluate.h"
#include "schedule.h"
#include "signals.h"
#include "train/files/checkpoint_folder.h"
#include "train/files/checkpoint_names.h"
#include "train/files/text_file.h"
#include "train/format/numbers.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <new>
#include <tuple>
#include <utility>

namespace octavo::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kBadStepsInARow = 10;
constexpr std::int64_t kMeasuredStep = 2;  // of this process: by then states and workspaces are there
constexpr double kShowEvery = 2;           // seconds between lines of progress, where a step takes longer

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

Loop::Loop(Session& session, Heartbeat& console)
    : session_(session),
      console_(console),
      state_(session.state),
      readout_(session.device, session.device.is_cpu() ? 0 : 2) {}

Result<Outcome> Loop::run() {
  begin_ = last_log_ = last_shown_ = Clock::now();
  tokens_logged_ = state_.tokens;
  if (!session_.resumed_from.empty()) saved_step_ = state_.step, checkpoint_ = session_.resumed_from;
  Outcome outcome;
  Status status;
  try {
    status = steps(outcome);
    if (status.ok()) status = finish(outcome);
  } catch (const c10::Error& error) {
    status = explained(error);
  } catch (const std::bad_alloc&) {
    status = Status::failed("out of memory on the host");
  }
  console_.doing("");
  return status.ok() ? Result<Outcome>(outcome) : failed(status);
}

void Loop::doing(std::int64_t step, const std::string& what) {
  console_.doing("step " + std::to_string(step) + "/" + std::to_string(session_.steps()) + ", " + what);
}

Status Loop::steps(Outcome& outcome) {
  // A signal may have cut an evaluation short and then saved the checkpoint: it is done now.
  if (!session_.resumed_from.empty() && state_.step <= session_.steps() && evaluation_due()) {
    if (Status bad = evaluate_now(); !bad.ok()) return bad;
  }
  while (state_.step < session_.steps()) {
    outcome.signal = StopSignals::received();
    if (outcome.signal != 0) return {};
    if (state_.samples != session_.stage().samples) {
      if (Status bad = next_stage(); !bad.ok()) return bad;
    }
    step();
    if (Status bad = read(/*drain=*/false); !bad.ok()) return bad;
    show_progress();
    if (Status bad = at_step_end(state_.step == session_.steps()); !bad.ok()) return bad;
  }
  if (state_.evaluated != state_.step) outcome.signal = StopSignals::received();
  return {};
}

bool Loop::diverged() const { return state_.skipped_in_a_row >= kBadStepsInARow; }

// In float16 a step is often skipped because the scaled gradients overflowed. The loss is finite then, and
// the weights are good.
bool Loop::weights_in_doubt() const {
  const bool overflow = session_.scaler->active() && std::isfinite(last_.loss);
  return state_.skipped_in_a_row > 0 && !overflow;
}

Result<Outcome> Loop::failed(const Status& status) {
  const bool diverged = this->diverged();
  const std::string saved = diverged || save_failed_ || updating_ ? std::string() : rescue();
  const std::string message = status.message() + (saved.empty() ? left_to_go_on_from() : saved);
  // The run has failed already: an error of the log is not reported on top of it.
  std::ignore = session_.log->write({{"kind", "end"},
                                     {"step", state_.step},
                                     {"reason", diverged ? "diverged" : "failed"},
                                     {"message", message},
                                     {"seconds", seconds_between(begin_, Clock::now())}});
  return Status(status.code(), message);
}

// Tries to save the current step. Returns where it is saved, or nothing.
std::string Loop::rescue() {
  try {
    session_.sums->clear();
    std::ignore = read(/*drain=*/true);
    if (state_.step == 0 || state_.skipped_in_a_row > 0 || !save_files().ok()) return {};
    return "; step " + std::to_string(state_.step) + " is saved in " + checkpoint_;
  } catch (const std::exception&) {
    return {};
  }
}

Status Loop::explained(const c10::Error& error) const {
  std::string what = error_text(error);
  // The CPU's allocator throws a plain c10::Error.
  const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                      what.find("can't allocate memory") != std::string::npos;
  if (!memory) return Status::failed("LibTorch: " + what);
  what = what.substr(0, what.find(" Including non-PyTorch"));  // torch's advice; ours follows
  return Status::failed(explain_out_of_memory(what, memory_now(), device_memory(session_.device),
                                              session_.settings, evaluating_));
}

// After a divergence, a checkpoint of the step before the first skipped one is not good: that step may have
// ruined the weights.
std::string Loop::left_to_go_on_from() const {
  for (const CheckpointRef& each : list_checkpoints(session_.settings.output_dir)) {
    if (diverged() && each.step >= first_bad_ - 1) continue;
    if (verify_checkpoint(each.path).ok()) return "; the last good checkpoint is " + each.path;
  }
  return "; no good checkpoint was saved before";
}

void Loop::step() {
  if (++steps_here_ == kMeasuredStep) {
    measure_memory();
  } else {
    passes_and_update(state_.step + 1);
  }
}

// Does a step and measures its memory: on a GPU by the allocator's peak, on the CPU by what the step adds.
void Loop::measure_memory() {
  session_.sums->clear();
  const MemoryByOwner held = session_.owners();
  const PeakMeter meter(session_.device);
  wait_for(session_.device);
  const auto begin = Clock::now();
  passes_and_update(state_.step + 1);
  wait_for(session_.device);
  pace_ = seconds_between(begin, Clock::now());
  MemoryByOwner owners = session_.owners();
  const std::int64_t sums = held.grads - held.params;  // fp32 sums are allocated all the time
  const std::int64_t base = held.params + held.states + held.master + held.workspace + sums;
  const std::int64_t peak =
      session_.device.is_cpu() ? base + meter.bytes() : device_memory(session_.device).peak;
  owners.activations = std::max<std::int64_t>(peak - owners.peak(), 0);
  owners_ = owners;
}

void Loop::passes_and_update(std::int64_t number) {
  const TrainingSettings& training = session_.settings.training;
  const std::int64_t passes = training.gradient_accumulation_steps;
  session_.sums->clear();
  std::vector<Stopwatch>& watches = watches_.emplace_back();
  torch::Tensor loss_sum;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::string which =
        passes > 1 ? "pass " + std::to_string(pass + 1) + " of " + std::to_string(passes) + ", " : "";
    doing(number, which + "forward");
    const BatchLoader::Batch batch = session_.loader->next();
    const TokenBatch tokens = to_tokens(batch.bytes, training.per_device_train_batch_size, session_.device);
    seed_random(training.seed, number, pass + 1);
    Stopwatch& watch = watches.emplace_back(session_.device);
    watch.start();
    torch::Tensor loss;
    {
      const AutocastScope autocast(session_.device, training.compute_dtype);
      loss = text_loss(*session_.model, tokens) / static_cast<double>(passes);
    }
    doing(number, which + "backward");
    session_.scaler->scaled(loss).backward();
    session_.sums->pass_done();
    loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
    if (pass + 1 == passes) {
      session_.optimizer->set_learning_rate(learning_rate(training, number, session_.steps()));
      session_.optimizer->set_loss_scale(session_.scaler->scale());
      doing(number, "optimizer step");
      updating_ = true;
      session_.optimizer->step();
      updating_ = false;
    }
    watch.stop();
  }
  readout_.push(number, loss_sum, session_.optimizer->grad_norm(), session_.optimizer->skipped(),
                session_.scaler->scale());
  session_.scaler->update(session_.optimizer->skipped());
  state_.step = number;
  state_.draws += static_cast<std::uint64_t>(draws_per_step(training));
  state_.tokens += draws_per_step(training) * session_.settings.data.block_size;
}

void Loop::tally_time() {
  for (const Stopwatch& watch : watches_.front()) computing_ += watch.seconds();
  watches_.pop_front();
}

// Reads the numbers of finished steps, and counts skipped ones.
Status Loop::read(bool drain) {
  while (const auto numbers = readout_.pop(drain)) {
    last_ = *numbers;
    tally_time();
    if (!last_.skipped) {
      state_.skipped_in_a_row = 0;
      state_.loss_sum += last_.loss;
      ++state_.loss_count;
      continue;
    }
    ++state_.skipped;
    if (++state_.skipped_in_a_row == 1) first_bad_ = last_.step;
    const std::string what = "step " + std::to_string(last_.step) +
                             " was skipped: its gradients are not finite (loss " +
                             significant(last_.loss, 6) + ")";
    console_.note("warning: " + what);
    if (Status bad = session_.log->write({{"kind", "warning"}, {"step", last_.step}, {"message", what}});
        !bad.ok())
      return bad;
    if (diverged()) {
      return Status::failed("training diverged: " + std::to_string(kBadStepsInARow) +
                            " steps in a row had gradients that are not finite, the last one step " +
                            std::to_string(last_.step) + "; lower learning_rate or raise warmup_steps");
    }
  }
  return {};
}

bool Loop::due(const std::optional<std::int64_t>& every) const { return every && state_.step % *every == 0; }

bool Loop::evaluation_due() const {
  const bool stage_ends =
      state_.step == session_.steps() || (state_.step > 0 && state_.samples != session_.stage().samples);
  return state_.evaluated != state_.step && (due(session_.settings.training.eval_steps) || stage_ends);
}

Status Loop::at_step_end(bool last) {
  const TrainingSettings& training = session_.settings.training;
  const bool log = due(training.logging_steps) || last || (steps_here_ == kMeasuredStep && owners_);
  const bool evaluate = evaluation_due();
  const bool save = due(training.save_steps) || last || save_pending_;
  if (!log && !evaluate && !save) return {};
  if (Status bad = read(/*drain=*/true); !bad.ok()) return bad;
  if (due(training.logging_steps) || last) {
    if (Status bad = log_metrics(); !bad.ok()) return bad;
  }
  if (steps_here_ == kMeasuredStep && owners_) {
    const MemoryByOwner& o = *owners_;
    Json record = {{"kind", "memory"},
                   {"step", state_.step},
                   {"owners",
                    {{"params", o.params},
                     {"grads", o.grads},
                     {"states", o.states},
                     {"master", o.master},
                     {"activations", o.activations},
                     {"workspace", o.workspace}}},
                   {"peak", o.peak()}};
    if (!session_.device.is_cpu()) record["device_peak"] = device_memory(session_.device).peak;
    if (Status bad = session_.log->write(record); !bad.ok()) return bad;
    const std::string note =
        long_run_note(session_.settings, state_.step, session_.steps(), pace_, session_.device.is_cpu());
    if (!note.empty()) console_.note(note);
  }
  if (evaluate) {
    if (Status bad = evaluate_now(); !bad.ok()) return bad;
  }
  save_pending_ = save && !last && state_.skipped_in_a_row > 0;
  return save && !save_pending_ ? save_now() : Status();
}

Loop::Rate Loop::rate(Clock::time_point now) const {
  const TrainingSettings& training = session_.settings.training;
  const double seconds = seconds_between(last_log_, now) - paused_;
  const auto tokens = static_cast<double>(state_.tokens - tokens_logged_);
  const auto a_step = static_cast<double>(draws_per_step(training) * session_.settings.data.block_size);
  if (seconds <= 0 || tokens <= 0) return {};
  return {tokens / seconds, seconds * a_step / tokens};
}

// Between the lines of metrics, where steps are slow.
void Loop::show_progress() {
  const auto now = Clock::now();
  const bool logged = due(session_.settings.training.logging_steps) || state_.step == session_.steps();
  if (logged || last_.step == 0 || seconds_between(last_shown_, now) < kShowEvery) return;
  last_shown_ = now;
  const Rate rate = this->rate(now);
  if (pace_ == 0) pace_ = rate.step_seconds;
  console_.progress(progress_line(last_.loss, rate.tokens_per_second));
}

Status Loop::log_metrics() {
  if (Status bad = write_config(); !bad.ok()) return bad;
  const auto now = Clock::now();
  const Rate rate = this->rate(now);
  if (rate.step_seconds > 0) pace_ = pace_ == 0 ? rate.step_seconds : 0.5 * (pace_ + rate.step_seconds);
  // If every step since the last line was skipped, there is no mean: show the last loss.
  const double loss =
      state_.loss_count > 0 ? state_.loss_sum / static_cast<double>(state_.loss_count) : last_.loss;
  const DeviceMemory device = device_memory(session_.device);
  Json memory = Json::object();
  if (!session_.device.is_cpu()) {
    memory["device"] = device.allocated;
    memory["device_peak"] = device.peak;
    memory["device_reserved"] = device.reserved;
  }
  memory["host"] = host_memory();
  Json record = {{"kind", "train"},
                 {"step", state_.step},
                 {"loss", loss},
                 {"lr", learning_rate(session_.settings.training, state_.step, session_.steps())},
                 {"grad_norm", last_.grad_norm},
                 {"tokens", state_.tokens},
                 {"tokens_per_second", rate.tokens_per_second},
                 {"seconds", seconds_between(begin_, now)},
                 {"skipped", state_.skipped}};
  if (last_.loss_scale > 0) record["loss_scale"] = last_.loss_scale;
  record["memory"] = memory;
  const std::string line = progress_line(loss, rate.tokens_per_second);
  state_.step == session_.steps() ? console_.note(line) : console_.progress(line);
  state_.loss_sum = 0;
  state_.loss_count = 0;
  tokens_logged_ = state_.tokens;
  last_log_ = last_shown_ = now;
  paused_ = 0;
  return session_.log->write(record);
}

std::string Loop::progress_line(double loss, double tokens_per_second) const {
  std::string out = "step " + std::to_string(state_.step) + "/" + std::to_string(session_.steps()) +
                    "  loss " + fixed(loss, 4);
  if (eval_loss_) out += " (eval " + fixed(*eval_loss_, 4) + ")";
  out += tokens_per_second >= 9950 ? "  " + fixed(tokens_per_second / 1e3, 1) + "k tok/s"
                                   : "  " + fixed(tokens_per_second, 0) + " tok/s";
  out += "  lr " + significant(learning_rate(session_.settings.training, state_.step, session_.steps()), 3);
  out += "  grad " + significant(last_.grad_norm, 3);
  if (!session_.device.is_cpu()) out += "  gpu " + bytes_text(device_memory(session_.device).peak);
  out += "  host " + bytes_text(host_memory());
  if (state_.skipped > 0) out += "  skipped " + std::to_string(state_.skipped);
  if (state_.step < session_.steps())
    out += "  eta " + duration_text(pace_ * static_cast<double>(session_.steps() - state_.step));
  return out;
}

Status Loop::evaluate_now() {
  const auto begin = Clock::now();
  const Settings& settings = session_.settings;
  console_.progress("step " + std::to_string(state_.step) + "/" + std::to_string(session_.steps()) +
                    "  evaluating");
  doing(state_.step, "evaluating");
  evaluating_ = true;
  const auto result =
      evaluate(*session_.model, session_.text.validation.corpus, session_.evaluation,
               settings.data.block_size, settings.training.per_device_eval_batch_size, session_.device,
               settings.training.compute_dtype, [] { return StopSignals::received() != 0; });
  evaluating_ = false;
  const double took = seconds_between(begin, Clock::now());
  paused_ += took;
  evaluation_seconds_ += took;
  if (!result) return {};  // a signal stopped the evaluation: the loop ends next
  eval_loss_ = result->loss;
  state_.evaluated = state_.step;
  console_.note("step " + std::to_string(state_.step) + ": evaluation loss " + fixed(result->loss, 4));
  std::int64_t stage = 0;
  while (session_.stages[static_cast<std::size_t>(stage)].last_step < state_.step) ++stage;
  return session_.log->write({{"kind", "eval"},
                              {"step", state_.step},
                              {"loss", result->loss},
                              {"tokens", result->tokens},
                              {"seconds", result->seconds},
                              {"stage", stage}});
}

Status Loop::save_now() {
  if (saved_step_ == state_.step) return {};
  const auto begin = Clock::now();
  if (Status bad = save_files(); !bad.ok()) return bad;
  const std::string& folder = session_.settings.output_dir;
  const auto keep = session_.settings.training.save_total_limit;
  if (keep && state_.skipped_in_a_row == 0) {
    if (Status bad = prune_checkpoints(folder, *keep); !bad.ok()) console_.note("warning: " + bad.message());
  }
  const double took = seconds_between(begin, Clock::now());
  paused_ += took;
  checkpoint_seconds_ += took;
  return session_.log->write({{"kind", "checkpoint"},
                              {"step", state_.step},
                              {"path", "checkpoint-" + std::to_string(state_.step)},
                              {"seconds", took},
                              {"bytes", saved_bytes_}});
}

// Writes nothing to the log: rescue() calls this after the log itself has failed.
Status Loop::save_files() {
  if (saved_step_ == state_.step) return {};
  const std::string& folder = session_.settings.output_dir;
  doing(state_.step, "saving a checkpoint");
  auto saved = save_checkpoint(folder, state_, session_.parts(), session_.config_yaml);
  if (!saved.ok()) {
    save_failed_ = true;
    return saved.status();
  }
  // What fails at every checkpoint is said at the first.
  if (!saved->warning.empty() && !save_warned_) console_.note("warning: " + saved->warning);
  save_warned_ = !saved->warning.empty();
  saved_step_ = state_.step;
  saved_bytes_ = saved->bytes;
  checkpoint_ = folder + '/' + saved->path;
  return write_config();
}

// Called with the first metrics or the first checkpoint, so that a run that fails at once has changed
// nothing. If config.yaml is there with other settings, it is kept under another name.
Status Loop::write_config() {
  if (config_written_) return {};
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

Status Loop::next_stage() {
  const Stage& stage = session_.stage();
  state_.samples = stage.samples;
  state_.sampler_start = state_.draws;
  session_.loader->reset(session_.sampler(), state_.draws);
  const auto number = &stage - session_.stages.data();
  console_.note(session_.stage_text());
  return session_.log->write(
      {{"kind", "stage"}, {"step", state_.step}, {"stage", number}, {"samples", stage.samples}});
}

Status Loop::finish(Outcome& outcome) {
  if (Status bad = read(/*drain=*/true); !bad.ok()) return bad;
  if (outcome.signal != 0 && weights_in_doubt()) {
    outcome.not_saved = "nothing is saved, for the gradients of the last " +
                        std::to_string(state_.skipped_in_a_row) +
                        " steps were not finite and the weights may be ruined";
  } else {
    if (outcome.signal != 0) console_.note("stopping: a checkpoint is saved first");
    if (Status bad = save_now(); !bad.ok()) return bad;
  }
  const double seconds = seconds_between(begin_, Clock::now());
  const double working = seconds - evaluation_seconds_ - checkpoint_seconds_;
  Json record = {{"kind", "end"},
                 {"step", state_.step},
                 {"reason", outcome.signal != 0 ? "interrupted" : "finished"},
                 {"seconds", seconds},
                 {"evaluation_seconds", evaluation_seconds_},
                 {"checkpoint_seconds", checkpoint_seconds_}};
  if (steps_here_ > 0 && seconds > 0) {
    console_.note("time: " + duration_text(seconds) + ", of which evaluations " +
                  percent_text(evaluation_seconds_ / seconds) + ", checkpoints " +
                  percent_text(checkpoint_seconds_ / seconds));
  }
  // The share of time outside of passes, steps, evaluations and checkpoints. The first steps would distort
  // it.
  if (steps_here_ > kMeasuredStep && working > 0)
    record["overhead"] = std::max(1.0 - computing_ / working, 0.0);
  outcome.step = state_.step;
  outcome.eval_loss = eval_loss_;
  outcome.checkpoint = checkpoint_;
  return session_.log->write(record);
}

MemoryByOwner Loop::memory_now() const {
  MemoryByOwner owners = session_.owners();
  const std::int64_t peak = device_memory(session_.device).peak;
  owners.activations = std::max<std::int64_t>(peak - owners.peak(), 0);
  return owners;
}

}  // namespace octavo::train
