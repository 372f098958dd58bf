// SPDX-License-Identifier: MIT
#include "train/run/run.h"

#include "train/data/batches.h"
#include "train/data/prefetch.h"

#include <utility>

namespace octavo_train {

Order sample_order(const RunConfig& config, const RunState& counters) {
  const std::int64_t samples = config.stage_after(counters.step).samples;
  return Order(samples, static_cast<std::uint64_t>(config.settings->data.seed),
               samples == counters.samples ? counters.sampler_start : counters.position);
}

Prefetch<Batch>::Source batch_source(const RunConfig& config, const ProcessGroup& world, const Task& task,
                                     const RunState& counters) {
  const Order now = sample_order(config, counters);
  std::shared_ptr<const Batches> equal;
  const Batches* division = task.batches();
  if (division == nullptr) {
    equal = std::make_shared<EqualBatches>(config.training().per_device_train_batch_size);
    division = equal.get();
  }
  Prefetch<Batch>::Source all = {
      [equal, division, now](std::uint64_t position) { return division->rows_at(now, position); },
      [&task, now](std::uint64_t position, std::int64_t rows) { return task.read(now, position, rows); }};
  return shared_by_rank(std::move(all), world.rank(), world.ranks());
}

Run::Run(RunConfig given_config, Services given_services, std::unique_ptr<Task> given_task,
         std::unique_ptr<TrainingState> given_state, Prefetch<Batch> given_batches)
    : task_(std::move(given_task)),
      state_(std::move(given_state)),
      batches_(std::make_unique<Prefetch<Batch>>(std::move(given_batches))),
      config(std::move(given_config)),
      services(std::move(given_services)),
      task(*task_),
      state(*state_),
      batches(*batches_) {}

Run::~Run() {
  batches_.reset();
  state_.reset();
  task_.reset();
}

}  // namespace octavo_train
