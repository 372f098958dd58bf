// SPDX-License-Identifier: MIT
#include "train/run/measured_plan.h"

#include "train/base/status.h"
#include "train/console/signals.h"
#include "train/data/order.h"
#include "train/run/dry_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using octavo::plan::Owner;

// The second step is measured: the first makes the states.
constexpr std::int64_t kSteps = 3;

struct Sample {
  std::int64_t rows;
  DryRun found;
};

Result<Sample> sample(const LoadWith& load, const Settings& run, std::int64_t rows, Console& console) {
  // The number of micro-batches is the run's, for any number of rows.
  const std::vector<std::string> words = {
      "training.per_device_train_batch_size=" + std::to_string(rows), "training.global_batch_size=null",
      "training.num_gpus=null",
      "training.gradient_accumulation_steps=" + std::to_string(run.training.gradient_accumulation_steps)};
  ASSIGN_OR_RETURN(auto config, load(words));
  ASSIGN_OR_RETURN(auto found, dry_run(config, kSteps, console, /*evaluates=*/false));
  if (found.signal != 0)
    return Status::failed(std::string("the measurement was stopped by ") + signal_name(found.signal));
  if (found.step_seconds <= 0)
    return Status::invalid("a plan measures the second step, and this run has one; raise training.max_steps");
  return Sample{rows, std::move(found)};
}

}  // namespace

Result<Prediction> measure_plan(const LoadWith& load, const PredictionRequest& request, Console& console) {
  if (request.num_gpus > 1)
    return Status::unsupported("a plan of " + std::to_string(request.num_gpus) +
                               " GPUs cannot be measured on one; use --num-gpus 1");
  ASSIGN_OR_RETURN(auto config, load({}));
  const Settings& settings = config.settings;
  ASSIGN_OR_RETURN(const auto task, open_task(settings));
  const Order order(task.data.samples, static_cast<std::uint64_t>(settings.data.seed), 0);
  const std::int64_t asked = settings.training.per_device_train_batch_size;
  const std::int64_t rows = task.task->largest_batch(order, asked, Task::BatchUse::training).rows();

  // Few rows say nothing of the time of many: the host is the limit there.
  std::vector<Sample> samples;
  std::int64_t few = std::max<std::int64_t>(rows / 4, 1);
  while (samples.empty() || (samples.size() == 1 && samples.front().rows < rows)) {
    const std::int64_t tried = samples.empty() ? few : std::min(2 * samples.front().rows, rows);
    auto one = sample(load, settings, tried, console);
    if (one.ok()) {
      samples.push_back(std::move(*one));
      continue;
    }
    // Memory may be too small.
    if (one.status().code() != StatusCode::failed || few == 1 || StopSignals::received() != 0)
      return one.status();
    samples.clear();
    few = std::max<std::int64_t>(few / 4, 1);
  }
  // On the line through both; of the second where there is one.
  const auto at_rows = [&](auto value) {
    const double last = static_cast<double>(value(samples.back().found));
    if (samples.size() == 1) return last;
    const double each = (last - static_cast<double>(value(samples.front().found))) /
                        static_cast<double>(samples.back().rows - samples.front().rows);
    return last + std::max(each, 0.0) * static_cast<double>(rows - samples.back().rows);
  };
  const auto bytes_at_rows = [&](auto value) { return std::llround(at_rows(value)); };
  const MemoryByOwner& owners = samples.back().found.owners;

  Prediction out;
  out.gpu = request.gpu;
  for (const Sample& each : samples) out.measured_rows.push_back(each.rows);
  out.measured_on = samples.back().found.device;
  out.rows = rows;
  out.passes = settings.training.gradient_accumulation_steps;
  const TaskText text = task.task->text();
  out.batch = text.batch(asked);
  out.unit = text.unit.name;
  out.parameters = samples.back().found.parameters;
  out.trained = samples.back().found.trained;
  out.states.states = owners.states;
  out.states.master = owners.master;
  out.states.host_states = owners.host_states;
  out.states.host_master = owners.host_master;
  out.states.host_copies = owners.host_copies;
  const auto set = [&](Owner owner, std::int64_t bytes) {
    out.memory.owners[static_cast<std::size_t>(owner)] = bytes;
  };
  set(Owner::weights, owners.params);
  set(Owner::gradients, owners.grads);
  set(Owner::states, owners.states);
  set(Owner::master, owners.master);
  set(Owner::workspace, owners.workspace + owners.fp8);
  set(Owner::activations, bytes_at_rows([](const DryRun& run) { return run.owners.activations; }));
  for (const std::int64_t bytes : out.memory.owners) out.memory.allocated += bytes;
  out.memory.reserved = std::max<std::int64_t>(bytes_at_rows([](const DryRun& run) { return run.reserved; }),
                                               out.memory.allocated);
  out.peak = out.memory.allocated;
  out.step_seconds = at_rows([](const DryRun& run) { return run.step_seconds; });
  out.compute.gpu_seconds = out.step_seconds;
  out.units_per_second = static_cast<double>(rows * task.data.units_per_row * out.passes) / out.step_seconds;
  return out;
}

}  // namespace octavo_train
