// SPDX-License-Identifier: MIT
#include "train/run/run.h"

#include "train/data/order.h"
#include "train/data/prefetch.h"

#include <utility>

namespace octavo_train {

Prefetch<Batch>::Source batch_source(const RunConfig& config, const ProcessGroup& process_group,
                                     const OpenTask& task, const RunState& counters) {
  // counters.samples belongs to the stage before until the loop has begun the next one.
  const std::int64_t samples = config.stage_after(counters.step).samples;
  const Order now(samples, static_cast<std::uint64_t>(config.settings->data.seed),
                  samples == counters.samples ? counters.sampler_start : counters.position);
  std::shared_ptr<const Batches> division = task.data.batches;
  if (division == nullptr)
    division = std::make_shared<EqualBatches>(config.training().per_device_train_batch_size);
  Prefetch<Batch>::Source all = {
      [division, now](std::uint64_t position) { return division->rows_at(now, position); },
      [from = task.task.get(), now](std::uint64_t position, std::int64_t rows) {
        return from->read(now, position, rows);
      }};
  return shared_by_rank(std::move(all), process_group.rank(), process_group.ranks());
}

Run::Run(RunConfig given_config, Services given_services, OpenTask given_task,
         std::unique_ptr<TrainingState> given_state, Prefetch<Batch> given_batches)
    : task_(std::move(given_task)),
      state_(std::move(given_state)),
      batches_(std::make_unique<Prefetch<Batch>>(std::move(given_batches))),
      config(std::move(given_config)),
      services(std::move(given_services)),
      task(*task_.task),
      data(task_.data),
      state(*state_),
      batches(*batches_) {}

Run::~Run() {
  batches_.reset();
  state_.reset();
  task_.task.reset();
}

}  // namespace octavo_train
