// SPDX-License-Identifier: MIT
#include "train/run/session.h"

#include "train/checkpoint/folder/checkpoint_names.h"
#include "train/data/rank_share.h"
#include "train/run/agreement.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <utility>

namespace octavo::train {
namespace {

std::vector<const Stateful*> pointers(const std::vector<std::unique_ptr<Stateful>>& parts) {
  std::vector<const Stateful*> out;
  for (const auto& part : parts) out.push_back(part.get());
  return out;
}

Result<SavedCheckpoint> write_saved(const Session& s, const std::vector<SavedPart>& saved,
                                    const std::optional<EvaluationRecord>& evaluation) {
  std::uint64_t bytes = 0;
  for (const SavedPart& part : saved) bytes += static_cast<std::uint64_t>(bytes_of(part.tensors));
  // Rank 0 has everything that it writes: what happens to another rank must not end it.
  const LocalWork saving = s.world->local_work("saving " + CheckpointName{s.state.step}.text(), bytes);
  return save_checkpoint(s.settings.output_dir, s.state, s.task->data_record(), saved, s.config_yaml,
                         evaluation, s.task->kept_files());
}

}  // namespace

const Stage& Session::stage() const {
  for (const Stage& each : stages) {
    if (state.step < each.last_step) return each;
  }
  return stages.back();
}

std::string Session::stage_text() const {
  const Stage& now = stage();
  return "stage " + std::to_string(&now - stages.data() + 1) + " of " + std::to_string(stages.size()) + ": " +
         std::to_string(now.samples) + " samples, to step " + std::to_string(now.last_step);
}

std::string Session::step_text(std::int64_t step) const {
  return "step " + std::to_string(step) + '/' + std::to_string(steps());
}

Order Session::order() const {
  const std::int64_t samples = stage().samples;
  return Order(samples, static_cast<std::uint64_t>(settings.data.seed),
               samples == state.samples ? state.sampler_start : state.position);
}

Prefetch<Batch>::Source Session::source() const {
  const Order now = order();
  std::shared_ptr<const Batches> equal;
  const Batches* division = task->batches();
  if (division == nullptr) {
    equal = std::make_shared<EqualBatches>(settings.training.per_device_train_batch_size);
    division = equal.get();
  }
  Prefetch<Batch>::Source all = {
      [equal, division, now](std::uint64_t position) { return division->rows_at(now, position); },
      [task = task.get(), now](std::uint64_t position, std::int64_t rows) {
        return task->read(now, position, rows);
      }};
  return shared_by_rank(std::move(all), world->rank(), world->ranks());
}

Result<SavedCheckpoint> Session::write(const std::optional<EvaluationRecord>& evaluation) const {
  optimizer->wait();
  return write_saved(*this, collect_parts(pointers(parts)), evaluation);
}

Result<SavedCheckpoint> Session::save(const std::optional<EvaluationRecord>& evaluation,
                                      const std::function<void(const SavedCheckpoint&)>& written) const {
  SavedCheckpoint saved{CheckpointName{state.step}.text(), 0, {}};
  optimizer->wait();
  // Ranks communicate here: an exception of one must end the others, too, and is not for them to agree on.
  const std::vector<SavedPart> all = collect_parts(pointers(parts));
  const Status status = together(*world, [&]() -> Status {
    if (!world->leads()) return {};
    auto done = write_saved(*this, all, evaluation);
    if (done.ok()) written(saved = std::move(*done));
    return done.status();
  });
  if (!status.ok()) return status;
  return saved;
}

Status Session::record(const nlohmann::ordered_json& line) { return log ? log->write(line) : Status(); }

MemoryByOwner Session::owners() const {
  MemoryByOwner out;
  const StepOptimizer::Bytes bytes = optimizer->bytes();
  out.params = bytes_of(parameters);
  out.grads = gradients->bytes();
  out.states = bytes.states;
  out.master = bytes.master;
  out.workspace = bytes.workspace;
  out.host_states = bytes.host_states;
  out.host_master = bytes.host_master;
  out.host_copies = bytes.host_copies;
  out.fp8 = fp8 != nullptr ? fp8->bytes() : 0;
  out.communication = gradients->communication_bytes() + (shards != nullptr ? shards->padding_bytes() : 0);
  return out;
}

}  // namespace octavo::train
