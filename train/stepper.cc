// SPDX-License-Identifier: MIT
#include "stepper.h"

#include "schedule.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace octavo::train {

Stepper::Stepper(Session& session, Heartbeat& console)
    : session_(session),
      console_(console),
      readout_(session.device, session.device.is_cpu() ? 0 : 2),
      buffers_(session.buffers) {}

void Stepper::step() {
  if (++done_ == kMeasuredStep) {
    measure();
    held_.clear();
  } else {
    passes_and_update(session_.state.step + 1);
  }
}

// Does a step and measures its memory: on a GPU by the allocator's peak, on the CPU by what the step adds.
void Stepper::measure() {
  session_.sums->clear();
  const MemoryByOwner held = session_.owners();
  const PeakMeter meter(session_.device);
  wait_for(session_.device);
  const auto begin = std::chrono::steady_clock::now();
  passes_and_update(session_.state.step + 1);
  wait_for(session_.device);
  measured_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MemoryByOwner owners = session_.owners();
  const std::int64_t base =
      held.params + held.states + held.master + held.workspace + session_.sums->sum_bytes();
  const std::int64_t peak =
      session_.device.is_cpu() ? base + meter.bytes() : device_memory(session_.device).peak;
  owners.activations = std::max<std::int64_t>(peak - owners.peak(), 0);
  owners_ = owners;
}

void Stepper::passes_and_update(std::int64_t number) {
  const TrainingSettings& training = session_.settings.training;
  const std::int64_t passes = training.gradient_accumulation_steps;
  session_.sums->clear();
  buffers_.remember();
  std::vector<Stopwatch>& watches = watches_.emplace_back();
  torch::Tensor loss_sum;
  std::int64_t units = 0;
  for (std::int64_t i = 0; i < passes; ++i) {
    Batch batch = to_device(session_.batches->next(), session_.device);
    units += session_.task->units(batch.rows());
    Stopwatch& watch = watches.emplace_back(session_.device);
    pass(number, i, batch, watch, loss_sum);
    if (done_ == kMeasuredStep) held_.push_back(std::move(batch));
    if (i + 1 == passes) update(number);
    watch.stop();
  }
  StepOptimizer& optimizer = *session_.optimizer;
  buffers_.undo_if(optimizer.skipped());
  readout_.push(number, loss_sum, optimizer.grad_norm(), optimizer.skipped(), session_.scaler->scale());
  session_.scaler->update(optimizer.skipped());
  RunState& state = session_.state;
  state.step = number;
  state.position = session_.batches->position();
  state.units += units;
}

// Forward and backward; the loss is added to `loss_sum`.
void Stepper::pass(std::int64_t number, std::int64_t index, const Batch& batch, Stopwatch& watch,
                   torch::Tensor& loss_sum) {
  const TrainingSettings& training = session_.settings.training;
  const std::int64_t passes = training.gradient_accumulation_steps;
  const std::string which =
      session_.step_text(number) + ", " +
      (passes > 1 ? "pass " + std::to_string(index + 1) + " of " + std::to_string(passes) + ", " : "");
  console_.doing(which + "forward");
  seed_random(training.seed, number, index + 1);
  watch.start();
  torch::Tensor loss;
  {
    const AutocastScope autocast(session_.device, training.compute_dtype);
    const PassKey key{static_cast<std::uint64_t>(training.seed), number};
    loss = session_.task->loss(batch, key) / static_cast<double>(passes);
  }
  console_.doing(which + "backward");
  session_.scaler->scaled(loss).backward();
  session_.sums->pass_done();
  loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
}

void Stepper::update(std::int64_t number) {
  StepOptimizer& optimizer = *session_.optimizer;
  optimizer.set_learning_rate(learning_rate(session_.settings.training, number, session_.steps()));
  optimizer.set_loss_scale(session_.scaler->scale());
  console_.doing(session_.step_text(number) + ", optimizer step");
  updating_ = true;
  optimizer.step();
  updating_ = false;
}

std::optional<StepNumbers> Stepper::finished(bool drain) {
  auto numbers = readout_.pop(drain);
  if (!numbers) return numbers;
  for (const Stopwatch& watch : watches_.front()) computing_ += watch.seconds();
  watches_.pop_front();
  return numbers;
}

}  // namespace octavo::train
