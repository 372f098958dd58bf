// SPDX-License-Identifier: MIT
#include "train/run/progress.h"

#include "train/base/metric_names.h"
#include "train/base/numbers.h"
#include "train/optim/param_groups.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

// They set libraries up: a step takes longer.
constexpr std::int64_t kFirstSteps = 10;
constexpr double kShowEvery = 2;  // seconds between lines of progress, where a step takes longer

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

Json memory_now(const torch::Device& device) {
  Json out = Json::object();
  if (!device.is_cpu()) {
    const DeviceMemory memory = device_memory(device);
    out["device"] = memory.allocated;
    out["device_peak"] = memory.peak;
    out["device_reserved"] = memory.reserved;
  }
  out["host"] = host_memory();
  return out;
}

}  // namespace

double cpu_matmul_rate(ComputeType type) {
  constexpr std::int64_t kSize = 1024, kTimes = 3;
  const torch::NoGradGuard no_grad;
  const auto dtype = type == ComputeType::float32    ? torch::kFloat32
                     : type == ComputeType::bfloat16 ? torch::kBFloat16
                                                     : torch::kFloat16;
  const torch::Tensor a = torch::ones({kSize, kSize}, dtype);
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < kTimes; ++i) {  // the first one sets the library up
    const auto begin = std::chrono::steady_clock::now();
    torch::mm(a, a);
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  constexpr auto kEdge = static_cast<double>(kSize);
  return 2 * kEdge * kEdge * kEdge / least;
}

std::string long_run_note(const Settings& settings, const std::string& shorter, std::int64_t step,
                          std::int64_t steps, double seconds, bool on_cpu, const std::string& how) {
  constexpr double kHour = 3600;
  const double left = static_cast<double>(steps - step) * seconds;
  if (left < kHour) return {};
  const auto hour = static_cast<std::int64_t>(kHour / seconds);
  return fmt::format("this run will take {} {}: {} steps of {} each. To make it shorter: {}{}{}", how,
                     duration_text(left), steps - step, duration_text(seconds),
                     on_cpu ? "train on a GPU (training.device is the CPU here); " : "", shorter,
                     settings.training.max_steps && hour > 0
                         ? fmt::format("; fewer steps (max_steps={} takes an hour)", step + hour)
                         : "");
}

std::string rate_text(double units_per_second, const Unit& unit) {
  const bool many = units_per_second >= 9950;
  return (many ? fixed(units_per_second / 1e3, 1) + "k " : fixed(units_per_second, 0) + " ") + unit.brief +
         "/s";
}

Progress::Progress(const RunConfig& config, const Services& services, TrainingState& state,
                   const Stepper& stepper, const DivergenceGuard& guard)
    : config_(config),
      services_(services),
      state_(state),
      stepper_(stepper),
      guard_(guard),
      counters_(state.counters),
      unit_(state.task->text().unit),
      first_step_(state.counters.step),
      begin_(Clock::now()),
      last_log_(begin_),
      last_shown_(begin_),
      units_logged_(state.counters.units),
      step_logged_(state.counters.step) {}

std::optional<Progress::Pace> Progress::settled() const {
  if (settled_steps_ == 0) return std::nullopt;
  const auto steps = static_cast<double>(settled_steps_);
  return Pace{settled_seconds_ / steps, settled_waited_ / steps};
}

double Progress::seconds() const { return seconds_between(begin_, Clock::now()); }

Progress::Rate Progress::rate(Clock::time_point now) const {
  const double seconds = seconds_between(last_log_, now) - paused_;
  const auto units = static_cast<double>(counters_.units - units_logged_);
  const std::int64_t steps = counters_.step - step_logged_;
  if (seconds <= 0 || steps <= 0) return {};
  return {units / seconds, seconds / static_cast<double>(steps)};
}

Progress::Shape Progress::shape() const {
  Shape out;
  const BatchTotals &now = stepper_.totals(), &then = totals_logged_;
  if (state_.data.batches != nullptr && now.micro_batches > then.micro_batches)
    out.rows = static_cast<double>(now.rows - then.rows) /
               static_cast<double>(now.micro_batches - then.micro_batches);
  if (now.padded_length > then.padded_length)
    out.padding = 1 - (now.length - then.length) / (now.padded_length - then.padded_length);
  return out;
}

void Progress::show() {
  const auto now = Clock::now();
  const std::int64_t every = config_.training().logging_steps;
  const bool logged = counters_.step % every == 0 || counters_.step == config_.steps();
  if (logged || guard_.last().step == 0 || seconds_between(last_shown_, now) < kShowEvery) return;
  last_shown_ = now;
  const Rate rate = this->rate(now);
  if (pace_ == 0) pace_ = rate.step_seconds;
  services_.console.progress(line(guard_.last().loss, rate.units_per_second));
}

Status Progress::log() {
  const auto now = Clock::now();
  const Rate rate = this->rate(now);
  if (rate.step_seconds > 0) pace_ = pace_ == 0 ? rate.step_seconds : 0.5 * (pace_ + rate.step_seconds);
  const std::int64_t steps = counters_.step - step_logged_;
  const double waited = stepper_.data_wait_seconds() - waited_logged_;
  if (step_logged_ - first_step_ >= kFirstSteps) {
    settled_steps_ += steps;
    settled_seconds_ += rate.step_seconds * static_cast<double>(steps);
    settled_waited_ += waited;
  }
  // If every step since the last line was skipped, there is no mean: show the last loss.
  const StepMetric& last = guard_.last();
  const double loss =
      counters_.loss_count > 0 ? counters_.loss_sum / static_cast<double>(counters_.loss_count) : last.loss;
  Json record = {{"kind", "train"},
                 {"step", counters_.step},
                 {"loss", loss},
                 {"lr", learning_rate(config_.training(), counters_.step, config_.steps())},
                 {"grad_norm", last.grad_norm},
                 {unit_.name, counters_.units},
                 {unit_.name + "_per_second", rate.units_per_second},
                 {"seconds", seconds_between(begin_, now)},
                 {"skipped", counters_.skipped}};
  if (last.loss_scale > 0) record["loss_scale"] = last.loss_scale;
  const Shape shape = this->shape();
  if (shape.rows) record["rows"] = *shape.rows;
  if (shape.padding) record["padding"] = *shape.padding;
  if (steps > 0) record["data_waited"] = waited / static_cast<double>(steps);
  if (counters_.left_out > 0) record["left_out"] = counters_.left_out;
  if (services_.process_group->grouped()) {
    count_traffic();
    traffic_ += sent_;
    put(record, std::exchange(sent_, {}), steps);
  }
  record["memory"] = memory_now(services_.device);
  const std::string said = line(loss, rate.units_per_second);
  counters_.step == config_.steps() ? services_.console.note(said) : services_.console.progress(said);
  counters_.loss_sum = 0;
  counters_.loss_count = 0;
  units_logged_ = counters_.units;
  step_logged_ = counters_.step;
  totals_logged_ = stepper_.totals();
  waited_logged_ = stepper_.data_wait_seconds();
  last_log_ = last_shown_ = now;
  paused_ = 0;
  return services_.record(record);
}

Progress::Pause::Pause(Progress& progress) : progress_(progress) {
  progress_.count_traffic();
  begin_ = Clock::now();
}

Progress::Pause::~Pause() { progress_.pause(seconds_between(begin_, Clock::now())); }

void Progress::count_traffic() {
  if (services_.process_group->grouped()) sent_ += services_.process_group->take_traffic();
}

void Progress::put(Json& record, const Traffic& traffic, std::int64_t steps) {
  if (steps <= 0) return;
  const auto count = static_cast<double>(steps);
  record["comm_bytes"] = static_cast<double>(traffic.bytes) / count;
  record["comm_seconds"] = traffic.seconds / count;
  record["comm_waited"] = traffic.waited / count;
}

void Progress::add_traffic(Json& record) const {
  if (services_.process_group->grouped()) put(record, traffic_, step_logged_ - first_step_);
}

// The most important parts come first: a terminal shows the parts that it has columns for.
std::string Progress::line(double loss, double units_per_second) const {
  std::string out = config_.step_text(counters_.step);
  const auto add = [&](const std::string& part) { out += "  " + part; };
  if (counters_.step < config_.steps())
    add("eta " + duration_text(pace_ * static_cast<double>(config_.steps() - counters_.step)));
  std::string evaluated;
  if (metric_)
    evaluated =
        metric_->name == "loss" ? fixed(metric_->value, 4) : metric_text(metric_->name, metric_->value);
  add("loss " + fixed(loss, 4) + (evaluated.empty() ? "" : " (eval " + evaluated + ")"));
  if (counters_.skipped > 0) add("skipped " + std::to_string(counters_.skipped));
  if (counters_.left_out > 0) add("left out " + std::to_string(counters_.left_out));
  add(rate_text(units_per_second, unit_) +
      (services_.process_group->ranks() > 1
           ? " on " + std::to_string(services_.process_group->ranks()) + " ranks"
           : ""));
  if (!services_.device.is_cpu()) add("gpu " + bytes_text(device_memory(services_.device).peak));
  add("lr " + significant(learning_rate(config_.training(), counters_.step, config_.steps()), 3));
  add("grad " + significant(guard_.last().grad_norm, 3));
  const Shape shape = this->shape();
  if (shape.rows) add("rows " + fixed(*shape.rows, 1));
  if (shape.padding) add("padding " + percent_text(*shape.padding));
  add("host " + bytes_text(host_memory()));
  return out;
}

}  // namespace octavo_train
