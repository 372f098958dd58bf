// SPDX-License-Identifier: MIT
#include "train/run/dry_run.h"

#include "train/base/numbers.h"
#include "train/console/console.h"
#include "train/console/signals.h"
#include "train/data/order.h"
#include "train/device/device.h"
#include "train/distributed/agreement.h"
#include "train/run/divergence.h"
#include "train/run/errors.h"
#include "train/run/evaluation.h"
#include "train/run/progress.h"
#include "train/run/start.h"
#include "train/run/start_log.h"
#include "train/run/step.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>
#include <tuple>
#include <utility>

namespace octavo_train {
namespace {

using Clock = std::chrono::steady_clock;
using octavo::plan::Owner;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Gives the measured steps the largest batches of all stages. The run's own batches follow.
void put_largest_first(Run& run) {
  const TrainingSettings& training = run.config.training();
  const auto until =
      static_cast<std::uint64_t>(Stepper::kMeasuredStep * training.gradient_accumulation_steps);
  const Order all(run.config.stages.back().samples,
                  static_cast<std::uint64_t>(run.config.settings->data.seed), 0);
  // Each of these batches has one position, before the positions of the run.
  const auto rows_at = [usual = batch_source(run.config, *run.services.process_group, *run.state),
                        until](std::uint64_t position) {
    return position < until ? 1 : usual.rows_at(position - until);
  };
  const auto make =
      [&task = *run.state->task, usual = batch_source(run.config, *run.services.process_group, *run.state),
       all, until, asked = training.per_device_train_batch_size](std::uint64_t position, std::int64_t rows) {
        return position < until ? task.largest_batch(all, asked, Task::BatchUse::training)
                                : usual.make(position - until, rows);
      };
  run.trainer->stepper().replace_batches({rows_at, make});
}

std::int64_t evaluations_of(const Run& run) {
  const auto every = run.config.training().eval_steps;
  std::int64_t count = every ? run.config.steps() / *every : 0;
  for (const Stage& stage : run.config.stages) {
    if (!every || stage.last_step % *every != 0) ++count;
  }
  return count;
}

std::int64_t checkpoint_bytes(const Run& run) {
  std::int64_t total = 0;
  for (const SavedComponent& part : run.state->save().components) total += bytes_of(part.tensors);
  return total;
}

// Returns the number of checkpoints that are in the folder when the run ends.
std::int64_t checkpoints_kept(const Run& run) {
  const TrainingSettings& training = run.config.training();
  const std::int64_t steps = run.config.steps();
  const std::int64_t written =
      training.save_steps ? (steps + *training.save_steps - 1) / *training.save_steps : 1;
  const std::int64_t best = training.save_best ? std::min(training.save_best_limit, evaluations_of(run)) : 0;
  return std::min(written, training.save_total_limit.value_or(written)) + best;
}

// Returns the free bytes where the run's folder is or will be; nullopt: the system does not report them.
std::optional<double> free_bytes(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  while (!path.empty() && !std::filesystem::exists(path, error) && path != path.parent_path())
    path = path.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(path, error);
  if (error || space.capacity == 0) return std::nullopt;
  return static_cast<double>(space.available);
}

// A dry run: the steps, the evaluation, and what they showed.
class Rehearsal {
 public:
  explicit Rehearsal(Run& run)
      : run_(run), console_(run.services.console), stepper_(run.trainer->stepper()) {}

  Status run(std::int64_t steps, bool evaluates);
  [[nodiscard]] int signal() const { return signal_; }
  [[nodiscard]] DryRun done() const;

 private:
  [[nodiscard]] std::vector<std::string> lines() const;
  [[nodiscard]] Prediction measured() const;
  void take_steps(std::int64_t steps);
  void evaluate();
  void read(bool drain);
  [[nodiscard]] double step_seconds() const;
  [[nodiscard]] std::int64_t measured_peak() const;  // of a step
  [[nodiscard]] std::string speed_line() const;
  [[nodiscard]] std::string time_line() const;
  [[nodiscard]] std::vector<std::string> disk_lines() const;

  Run& run_;
  Heartbeat& console_;
  Stepper& stepper_;
  int signal_ = 0;
  bool evaluating_ = false;
  std::int64_t skipped_ = 0;
  std::int64_t measured_ = 0;  // the step whose memory was measured; 0: none yet
  std::int64_t timed_ = 0;     // steps after it
  double timed_seconds_ = 0;   // of them
  double waited_ = 0;          // for their batches
  std::int64_t units_ = 0;     // of them, or, where there are none, of all steps
  double evaluation_seconds_ = 0;
  std::int64_t peak_ = 0;        // of the device, evaluation included
  std::int64_t train_peak_ = 0;  // without it
  std::int64_t reserved_ = 0;    // before it
};

Status Rehearsal::run(std::int64_t steps, bool evaluates) {
  try {
    put_largest_first(run_);
    release_cached_memory(run_.services.device);  // of an earlier dry run
    take_steps(std::min(steps, run_.config.steps()));
    if (signal_ == 0 && evaluates) evaluate();
  } catch (const c10::Error& error) {
    return explain(run_.config, run_.services, *run_.state, error, evaluating_);
  } catch (const std::bad_alloc&) {
    return Status::failed("out of memory on the host");
  } catch (const std::exception& error) {
    return status_of(error);
  }
  return {};
}

void Rehearsal::read(bool drain) {
  while (const auto numbers = stepper_.finished(drain)) {
    if (numbers->skipped) ++skipped_;
  }
}

void Rehearsal::take_steps(std::int64_t steps) {
  auto begin = Clock::now();
  while (stepper_.done() < steps) {
    if (!run_.services.process_group->grouped()) signal_ = StopSignals::received();
    if (signal_ != 0) return;
    stepper_.step();
    std::ignore = log_fp8_choices(run_.services, *run_.state);  // a dry run has no log
    signal_ = stepper_.signal();
    if (signal_ != 0) return;
    read(/*drain=*/false);
    console_.progress(fmt::format("dry run: step {} of {}", stepper_.done(), steps));
    if (!stepper_.has_just_measured()) continue;
    begin = Clock::now();
    waited_ = stepper_.data_wait_seconds();
    measured_ = stepper_.done();
    units_ = run_.state->counters.units;
  }
  read(/*drain=*/true);
  wait_for(run_.services.device);
  timed_ = measured_ > 0 ? stepper_.done() - measured_ : 0;
  timed_seconds_ = seconds_since(begin);
  waited_ = stepper_.data_wait_seconds() - waited_;
  units_ = run_.state->counters.units - (timed_ > 0 ? units_ : 0);
  const DeviceMemory memory = device_memory(run_.services.device);
  peak_ = train_peak_ = memory.peak;
  reserved_ = memory.reserved;
}

void Rehearsal::evaluate() {
  run_.state->gradients->clear();
  console_.doing("dry run: evaluating");
  evaluating_ = true;
  reset_peak(run_.services.device);
  const auto begin = Clock::now();
  run_.state->optimizer->wait();
  const auto result = evaluate_task(*run_.state->task, *run_.services.process_group, run_.services.device);
  wait_for(run_.services.device);
  evaluating_ = false;
  evaluation_seconds_ = seconds_since(begin);
  peak_ = std::max(peak_, device_memory(run_.services.device).peak);
  if (!result) signal_ = signal_on_any(*run_.services.process_group);
}

double Rehearsal::step_seconds() const {
  if (timed_ > 0) return timed_seconds_ / static_cast<double>(timed_);
  if (measured_ > 0) return stepper_.measured_seconds();
  const auto steps = std::max<std::int64_t>(stepper_.done(), 1);  // a run of one step
  return timed_seconds_ / static_cast<double>(steps);
}

std::int64_t Rehearsal::measured_peak() const {
  if (!run_.services.device.is_cpu()) return train_peak_;
  return stepper_.memory() ? stepper_.memory()->peak() : 0;
}

std::string Rehearsal::speed_line() const {
  const double seconds = step_seconds();
  const auto units = static_cast<double>(units_) / static_cast<double>(timed_ > 0 ? timed_ : stepper_.done());
  return fmt::format("speed: {}, {} s a step{}", rate_text(units / seconds, run_.state->task->text().unit),
                     significant(seconds, 3),
                     timed_ > 0 ? "" : " (of one step with the largest batches; more steps are more exact)");
}

std::string Rehearsal::time_line() const {
  const std::int64_t evaluations = evaluations_of(run_);
  const double steps = step_seconds() * static_cast<double>(run_.config.steps());
  const double evaluating = evaluation_seconds_ * static_cast<double>(evaluations);
  return fmt::format("to the end: {} in {}, {} in {}: {} hours, and the time to write checkpoints",
                     counted(run_.config.steps(), "step"), duration_text(steps),
                     counted(evaluations, "evaluation"), duration_text(evaluating),
                     significant((steps + evaluating) / 3600, 3));
}

std::vector<std::string> Rehearsal::disk_lines() const {
  const std::int64_t each = checkpoint_bytes(run_), count = checkpoints_kept(run_);
  const auto all = static_cast<double>(each) * static_cast<double>(count);
  const auto room = free_bytes(run_.config.settings->output_dir);
  std::vector<std::string> out = {fmt::format("checkpoints: {} of {}, {} in all{}", count, bytes_text(each),
                                              bytes_text(all),
                                              room ? fmt::format("; {} are free", bytes_text(*room)) : "")};
  if (room && all > *room)
    out.emplace_back(
        "warning: they do not fit; set save_total_limit, make save_steps larger, or choose another "
        "output_dir");
  return out;
}

std::vector<std::string> Rehearsal::lines() const {
  const std::int64_t rows = run_.config.training().per_device_train_batch_size;
  std::vector<std::string> out = {
      fmt::format("dry run: {} and an evaluation; nothing was written", counted(stepper_.done(), "step"))};
  if (stepper_.memory()) {
    out.push_back(fmt::format("memory, with {} in a micro-batch:", run_.state->task->text().batch(rows)));
    for (std::string& line : memory_table(*stepper_.memory())) out.push_back(std::move(line));
  }
  if (const DeviceMemory memory = device_memory(run_.services.device); peak_ > 0)
    out.push_back(
        fmt::format("  {} at the highest, evaluation included; {} reserved{}", bytes_text(peak_),
                    bytes_text(memory.reserved),
                    memory.total > 0 ? fmt::format(" of the device's {}", bytes_text(memory.total)) : ""));
  out.push_back(speed_line());
  if (run_.config.prediction != nullptr) {  // its batch is that of these steps
    Measured found{.peak = measured_peak(), .step_seconds = step_seconds(), .evaluated = false};
    if (timed_ > 0) found.data_waited = waited_ / static_cast<double>(timed_);
    out.push_back(compare_with_measured(*run_.config.prediction, found));
  }
  out.push_back(time_line());
  for (std::string& line : disk_lines()) out.push_back(std::move(line));
  if (run_.state->counters.left_out > 0)
    out.push_back(
        fmt::format("warning: {} samples could not be read and were skipped", run_.state->counters.left_out));
  if (skipped_ > 0)
    out.push_back(
        fmt::format("warning: {} {} skipped because of gradients that are not finite; {}",
                    counted(skipped_, "step"), skipped_ == 1 ? "was" : "were",
                    divergence_advice(*run_.config.settings, {.step = 1,
                                                              .steps = run_.config.steps(),
                                                              .fp8 = run_.state->fp8 != nullptr,
                                                              .bf16 = has_bf16(run_.services.device)})));
  return out;
}

// Returns the memory and the time of the measured step, without a GPU and texts of the task.
Prediction Rehearsal::measured() const {
  Prediction out;
  out.measured_on = device_text(run_.services.device);
  out.passes = run_.config.training().gradient_accumulation_steps;
  for (const auto& [name, tensor] : run_.state->parameters) out.parameters += tensor.numel();
  for (const auto& [name, tensor] : run_.state->groups.parameters) out.trained += tensor.numel();
  const MemoryByOwner owners = stepper_.memory().value_or(MemoryByOwner());
  out.states = {.states = owners.states,
                .master = owners.master,
                .host_states = owners.host_states,
                .host_master = owners.host_master,
                .host_copies = owners.host_copies};
  const auto set = [&](Owner owner, std::int64_t bytes) {
    out.memory.owners[static_cast<std::size_t>(owner)] = bytes;
    out.memory.allocated += bytes;
  };
  set(Owner::weights, owners.params);
  set(Owner::gradients, owners.grads);
  set(Owner::states, owners.states);
  set(Owner::master, owners.master);
  set(Owner::workspace, owners.workspace + owners.fp8);
  set(Owner::activations, owners.activations);
  out.memory.reserved = reserved_;
  out.peak = out.memory.allocated;
  out.step_seconds = stepper_.measured_seconds();
  return out;
}

DryRun Rehearsal::done() const {
  if (signal_ != 0) return {.signal = signal_};
  return {.lines = lines(), .measured = measured()};
}

Result<DryRun> rehearse(const Config& config, std::int64_t steps, bool evaluates, Heartbeat& console,
                        const std::shared_ptr<ProcessGroup>& process_group) {
  ASSIGN_OR_RETURN(auto run, start_run(config, console, Purpose::dry_run, process_group));
  Rehearsal rehearsal(*run);
  const Status status = rehearsal.run(steps, evaluates);
  console.doing("");
  if (!status.ok()) {
    if (!process_group->failure()) process_group->fail(status.message());
    return status;
  }
  return rehearsal.done();
}

}  // namespace

Result<DryRun> dry_run(const Config& config, std::int64_t steps, Console& console, bool evaluates,
                       std::optional<RankFailure>* failure) {
  ASSIGN_OR_RETURN(const auto rank_info, rank_info_of(config));
  RankConsole own(console, rank_info.rank);
  Heartbeat heartbeat(own);
  const StopSignals signals(rank_info.leads() ? kStoppingDryRun : "");
  heartbeat.doing("setting up: data, model and optimizer");
  ASSIGN_OR_RETURN(auto process_group, join_ranks(config, rank_info, failure));
  if (process_group == nullptr) return DryRun{.signal = StopSignals::received()};
  if (process_group->grouped())
    heartbeat.on_activity([&](const std::string& what) { process_group->set_activity(what); });
  auto done = rehearse(config, steps, evaluates, heartbeat, process_group);
  if (failure != nullptr) *failure = process_group->failure();
  return done;
}

Result<Prediction> measure_steps(const Config& config, Console& console) {
  constexpr std::int64_t kSteps = Stepper::kMeasuredStep + 1;
  ASSIGN_OR_RETURN(auto done, dry_run(config, kSteps, console, /*evaluates=*/false));
  if (done.signal != 0) return failed_error("the measurement was stopped by {}", signal_name(done.signal));
  if (done.measured.step_seconds <= 0)
    return Status::invalid("a plan measures the second step, and this run has one; raise training.max_steps");
  return std::move(done.measured);
}

}  // namespace octavo_train
