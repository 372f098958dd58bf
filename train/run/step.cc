// SPDX-License-Identifier: MIT
#include "train/run/step.h"

#include "train/optim/lr_schedule.h"

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

bool Stepper::step() {
  ++done_;
  if (done_ < kMeasuredStep || owners_) return passes_and_update(session_.state.step + 1);
  const bool trained = measure();
  held_.clear();
  return trained;
}

// Does a step and measures its memory: on a GPU by the allocator's peak, on the CPU by what the step adds.
bool Stepper::measure() {
  session_.gradients->clear();
  const MemoryByOwner held = session_.owners();
  const PeakMeter meter(session_.device);
  wait_for(session_.device);
  const auto begin = std::chrono::steady_clock::now();
  if (!passes_and_update(session_.state.step + 1)) return false;
  wait_for(session_.device);
  measured_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MemoryByOwner owners = session_.owners();
  const std::int64_t base =
      held.params + held.states + held.master + held.workspace + held.fp8 + session_.gradients->sum_bytes();
  const std::int64_t peak =
      session_.device.is_cpu() ? base + meter.bytes() : device_memory(session_.device).peak;
  owners.activations = std::max<std::int64_t>(peak - owners.peak(), 0);
  owners_ = owners;
  measured_ = done_;
  measured_length_ = last_length_;
  return true;
}

// Reads all batches of a step before its first pass. The state changes when the step is done: until then an
// error leaves what a checkpoint can be saved of.
StepShare Stepper::take_batches() {
  console_.doing(session_.step_text(session_.state.step + 1) + ", reading its batches");
  return take_step(session_);
}

void Stepper::count(std::int64_t number, const StepShare& taken) {
  RunState& state = session_.state;
  state.step = number;
  state.position = session_.batches->position();
  state.units += taken.units;
  state.left_out += taken.left_out;
  state.passes_left_out += taken.passes_left_out;
  session_.fed += taken.fed;
  last_length_ = taken.fed.largest;
  session_.waited += taken.waited;
}

bool Stepper::passes_and_update(std::int64_t number) {
  StepShare taken = take_batches();
  if (taken.new_choices) {
    share_choices(*session_.world, *session_.fp8);
    session_.shared_choices = session_.fp8->choices();
  }
  if (taken.signal != 0) {
    signal_ = taken.signal;
    --done_;
    return false;
  }
  const auto rows = static_cast<double>(taken.fed.rows);
  if (taken.fed.passes == 0) {
    count(number, taken);
    return false;
  }
  const auto passes = static_cast<std::int64_t>(taken.batches.size());
  session_.gradients->clear();
  session_.gradients->expect(passes, taken.most_passes);
  buffers_.remember();
  begun_ = true;
  std::vector<Stopwatch>& watches = watches_.emplace_back();
  torch::Tensor loss_sum;
  for (std::int64_t i = 0; i < passes; ++i) {
    Batch batch = to_device(std::move(taken.batches[static_cast<std::size_t>(i)]), session_.device);
    Stopwatch& watch = watches.emplace_back(session_.device);
    pass({number, i, passes, taken.numbers[static_cast<std::size_t>(i)],
          rows / static_cast<double>(batch.rows())},
         batch, watch, loss_sum);
    if (done_ >= kMeasuredStep && !owners_) held_.push_back(std::move(batch));
    if (i + 1 == passes) update(number);
    watch.stop();
  }
  if (passes == 0) update(number);  // with the gradients of other ranks
  buffers_.share(*session_.world);
  StepOptimizer& optimizer = *session_.optimizer;
  buffers_.undo_if(optimizer.skipped());
  if (session_.fp8 != nullptr) {
    reduce_maxima(*session_.world, *session_.fp8);
    session_.fp8->step_done(optimizer.skipped());
  }
  readout_.push(number, over_ranks(loss_sum), optimizer.grad_norm(), optimizer.skipped(),
                session_.scaler->scale());
  session_.scaler->update(optimizer.skipped());
  count(number, taken);
  begun_ = updating_ = false;
  return true;
}

// Forward and backward; the loss is added to `loss_sum`. Where all passes have the same rows, the divisor is
// their number.
void Stepper::pass(const Pass& which, const Batch& batch, Stopwatch& watch, torch::Tensor& loss_sum) {
  const TrainingSettings& training = session_.settings.training;
  const std::string where = session_.step_text(which.step) + ", " +
                            (which.count > 1 ? "pass " + std::to_string(which.index + 1) + " of " +
                                                   std::to_string(which.count) + ", "
                                             : "");
  console_.doing(where + "forward");
  seed_random(training.seed, which.step, which.number + 1);
  watch.start();
  torch::Tensor loss;
  {
    const AutocastScope autocast(session_.device, training.compute_dtype);
    const ProductScope products = session_.fp8 != nullptr ? session_.fp8->scope() : ProductScope(nullptr);
    const PassKey key{static_cast<std::uint64_t>(training.seed), which.step};
    if (!session_.gated) session_.optimizer->wait();
    loss = session_.task->loss(batch, key) / which.divisor;
  }
  // The backward pass writes gradients where the last update has read them.
  session_.optimizer->wait();
  console_.doing(where + "backward");
  session_.scaler->scaled(loss).backward();
  session_.gradients->pass_done();
  loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
}

// The step's loss. Each rank's is its passes' part of it.
torch::Tensor Stepper::over_ranks(const torch::Tensor& loss) const {
  if (!session_.world->grouped()) return loss;
  const auto options = torch::TensorOptions(torch::kFloat32).device(session_.device);
  const torch::Tensor sum = torch::zeros({1}, options);
  if (loss.defined()) sum.copy_(loss);
  session_.world->all_reduce(sum).wait();
  return sum;
}

void Stepper::update(std::int64_t number) {
  StepOptimizer& optimizer = *session_.optimizer;
  optimizer.wait();  // a rank without a pass has not: gradients are summed where the last update reads them
  session_.gradients->finish();
  optimizer.set_learning_rate(learning_rate(session_.settings.training, number, session_.steps()));
  optimizer.set_loss_scale(session_.scaler->scale());
  console_.doing(session_.step_text(number) + ", optimizer step");
  updating_ = true;  // until the step is counted: an error of another rank may come between
  optimizer.step();
  if (session_.shards != nullptr) session_.shards->gather();
}

void Stepper::forget_step() {
  if (begun_) buffers_.undo();
  if (begun_ && session_.fp8 != nullptr) session_.fp8->step_done(torch::ones({1}));
  begun_ = false;
}

std::optional<StepNumbers> Stepper::finished(bool drain) {
  auto numbers = readout_.pop(drain);
  if (!numbers) return numbers;
  for (const Stopwatch& watch : watches_.front()) computing_ += watch.seconds();
  watches_.pop_front();
  return numbers;
}

}  // namespace octavo::train
