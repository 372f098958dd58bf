// SPDX-License-Identifier: MIT
#include "train/run/step.h"

#include "train/console/signals.h"
#include "train/optim/param_groups.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <span>
#include <string>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP};

// A character per micro-batch of a rank: '1' if the batch has rows.
using ReadPasses = std::string;

void exchange(ProcessGroup& process_group, StepBatches& share, std::int64_t new_choices) {
  enum { kPasses, kRows, kLength, kPadded, kUnits, kLeftOut, kChoices, kSignals };
  std::array<double, kSignals + kStopSignals.size()> all = {static_cast<double>(share.fed.passes),
                                                            static_cast<double>(share.fed.rows),
                                                            share.fed.length,
                                                            share.fed.padded_length,
                                                            static_cast<double>(share.units),
                                                            static_cast<double>(share.passes_left_out),
                                                            static_cast<double>(new_choices)};
  const int received = StopSignals::received();
  for (std::size_t i = 0; i < kStopSignals.size(); ++i)
    all[kSignals + i] = received == kStopSignals[i] ? 1 : 0;
  process_group.sum(all);
  share.fed = {static_cast<std::int64_t>(all[kPasses]), static_cast<std::int64_t>(all[kRows]), all[kLength],
               all[kPadded], share.fed.largest};
  share.units = static_cast<std::int64_t>(all[kUnits]);
  share.passes_left_out = static_cast<std::int64_t>(all[kLeftOut]);
  share.new_choices = all[kChoices] > 0;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    if (all[kSignals + i] > 0 && share.signal == 0) share.signal = kStopSignals[i];
  }
}

// Numbers the batches. A batch without rows has no number, and later batches move up, as in one process.
void number(ProcessGroup& process_group, const ReadPasses& mine, StepBatches& share) {
  std::vector<ReadPasses> all(static_cast<std::size_t>(process_group.ranks()), ReadPasses(mine.size(), '1'));
  if (share.passes_left_out > 0) all = process_group.gather(mine);
  std::int64_t next = 0;
  for (std::size_t pass = 0; pass < mine.size(); ++pass) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][pass] != '1') continue;
      if (static_cast<int>(rank) == process_group.rank()) share.numbers.push_back(next);
      ++next;
    }
  }
  for (const ReadPasses& each : all)
    share.most_passes = std::max<std::int64_t>(share.most_passes, std::ranges::count(each, '1'));
}

std::int64_t new_choices(const Run& run) {
  return static_cast<std::int64_t>(run.state.fp8->choices() - run.state.fp8_choices_shared);
}

}  // namespace

struct StepMetrics::Pending {
  std::int64_t step = 0;
  torch::Tensor numbers;  // loss, norm, skipped, scale; on the host
  std::unique_ptr<c10::Event> copied;
};

StepMetrics::StepMetrics(const torch::Device& device, std::size_t depth) : device_(device), depth_(depth) {}
StepMetrics::~StepMetrics() = default;

void StepMetrics::push(std::int64_t step, const torch::Tensor& loss, const torch::Tensor& norm,
                       const torch::Tensor& skipped, const torch::Tensor& scale) {
  const torch::NoGradGuard no_grad;
  // fp32 is precise enough to show them, and every device has it.
  const auto number = [&](const torch::Tensor& t) {
    return t.defined() ? t.detach().reshape({}).to(device_, torch::kFloat32)
                       : torch::zeros({}, torch::TensorOptions(torch::kFloat32).device(device_));
  };
  const torch::Tensor here = torch::stack({number(loss), number(norm), number(skipped), number(scale)});
  Pending& made = pending_.emplace_back();
  made.step = step;
  if (!device_.is_cuda()) {
    made.numbers = here.cpu();
    return;
  }
  made.numbers = torch::empty({4}, torch::TensorOptions(torch::kFloat32).pinned_memory(true));
  made.numbers.copy_(here, /*non_blocking=*/true);
  made.copied = std::make_unique<c10::Event>(device_.type());
  made.copied->record(c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_));
}

std::optional<StepMetric> StepMetrics::pop(bool drain) {
  if (pending_.empty() || (!drain && pending_.size() <= depth_)) return std::nullopt;
  Pending oldest = std::move(pending_.front());
  pending_.pop_front();
  if (oldest.copied != nullptr) oldest.copied->synchronize();
  const auto* n = oldest.numbers.data_ptr<float>();
  StepMetric out{oldest.step, n[0], n[1], n[3], n[2] != 0.0F};
  if (out.loss_scale > 0) out.grad_norm /= out.loss_scale;
  return out;
}

StepBatches read_step_batches(Run& run) {
  StepBatches out;
  ReadPasses read;
  const std::uint64_t begin = run.batches.position();
  for (std::int64_t i = 0; i < run.config.training().gradient_accumulation_steps; ++i) {
    const auto asked = std::chrono::steady_clock::now();
    Batch batch = run.batches.next();
    out.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
    const bool has_rows = batch.rows() > 0;
    read += has_rows ? '1' : '0';
    if (!has_rows) {
      ++out.passes_left_out;
      continue;
    }
    out.units += batch.rows() * run.data.units_per_row;
    out.fed += {1, batch.rows(), batch.length, batch.padded_length, batch.padded_length};
    out.batches.push_back(std::move(batch));
  }
  if (run.services.process_group->grouped())
    exchange(*run.services.process_group, out,
             run.state.fp8 != nullptr && run.services.process_group->leads() ? new_choices(run) : 0);
  number(*run.services.process_group, read, out);
  // The largest batch of a dry run takes one position.
  const auto positions = static_cast<std::int64_t>(run.batches.position() - begin);
  out.left_out = std::max<std::int64_t>(positions - out.fed.rows, 0);
  return out;
}

int signal_on_any(ProcessGroup& process_group) {
  std::int64_t signal = StopSignals::received();
  process_group.max(std::span(&signal, 1));
  return static_cast<int>(signal);
}

Stepper::Stepper(Run& run)
    : run_(run),
      console_(run.services.console),
      metrics_(run.services.device, run.services.device.is_cpu() ? 0 : 2),
      buffers_(run.state.buffers) {}

bool Stepper::step() {
  ++done_;
  if (done_ < kMeasuredStep || owners_) return passes_and_update(run_.state.counters.step + 1);
  const bool trained = measure();
  held_.clear();
  return trained;
}

// Runs a step and measures its memory: on a GPU the allocator's peak, on the CPU what the step adds.
bool Stepper::measure() {
  run_.state.gradients->clear();
  const MemoryByOwner held = run_.state.memory();
  const PeakMeter meter(run_.services.device);
  wait_for(run_.services.device);
  const auto begin = std::chrono::steady_clock::now();
  if (!passes_and_update(run_.state.counters.step + 1)) return false;
  wait_for(run_.services.device);
  measured_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MemoryByOwner owners = run_.state.memory();
  const std::int64_t base =
      held.params + held.states + held.master + held.workspace + held.fp8 + run_.state.gradients->sum_bytes();
  const std::int64_t peak =
      run_.services.device.is_cpu() ? base + meter.bytes() : device_memory(run_.services.device).peak;
  owners.activations = std::max<std::int64_t>(peak - owners.peak(), 0);
  owners_ = owners;
  measured_ = done_;
  measured_length_ = last_length_;
  return true;
}

void Stepper::count(std::int64_t number, const StepBatches& taken) {
  RunState& state = run_.state.counters;
  state.step = number;
  state.position = run_.batches.position();
  state.units += taken.units;
  state.left_out += taken.left_out;
  state.passes_left_out += taken.passes_left_out;
  run_.computed += taken.fed;
  last_length_ = taken.fed.largest;
  run_.data_wait_seconds += taken.waited;
}

// Reads all batches before the first forward pass. The counters change when the step is done, so a checkpoint
// can be saved after an error before that.
bool Stepper::passes_and_update(std::int64_t number) {
  console_.doing(run_.config.step_text(number) + ", reading its batches");
  StepBatches taken = read_step_batches(run_);
  if (taken.new_choices) {
    share_choices(*run_.services.process_group, *run_.state.fp8);
    run_.state.fp8_choices_shared = run_.state.fp8->choices();
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
  run_.state.gradients->clear();
  run_.state.gradients->expect(passes, taken.most_passes);
  buffers_.save();
  begun_ = true;
  std::vector<Stopwatch>& watches = watches_.emplace_back();
  torch::Tensor loss_sum;
  for (std::int64_t i = 0; i < passes; ++i) {
    Batch batch = to_device(std::move(taken.batches[static_cast<std::size_t>(i)]), run_.services.device);
    Stopwatch& watch = watches.emplace_back(run_.services.device);
    micro_batch({number, i, passes, taken.numbers[static_cast<std::size_t>(i)],
                 rows / static_cast<double>(batch.rows())},
                batch, watch, loss_sum);
    if (done_ >= kMeasuredStep && !owners_) held_.push_back(std::move(batch));
    if (i + 1 == passes) update(number);
    watch.stop();
  }
  if (passes == 0) update(number);  // with the gradients of other ranks
  buffers_.average_across_ranks(*run_.services.process_group);
  StepOptimizer& optimizer = *run_.state.optimizer;
  buffers_.restore_if(optimizer.skipped());
  if (run_.state.fp8 != nullptr) {
    reduce_maxima(*run_.services.process_group, *run_.state.fp8);
    run_.state.fp8->step_done(optimizer.skipped());
  }
  metrics_.push(number, over_ranks(loss_sum), optimizer.grad_norm(), optimizer.skipped(),
                run_.state.scaler.scale());
  run_.state.scaler.update(optimizer.skipped());
  count(number, taken);
  begun_ = updating_ = false;
  return true;
}

// Runs the forward and backward pass of a micro-batch and adds its loss to `loss_sum`. If all micro-batches
// have equal rows, the divisor is their number.
void Stepper::micro_batch(const MicroBatch& which, const Batch& batch, Stopwatch& watch,
                          torch::Tensor& loss_sum) {
  const TrainingSettings& training = run_.config.training();
  const std::string where = run_.config.step_text(which.step) + ", " +
                            (which.count > 1 ? "pass " + std::to_string(which.index + 1) + " of " +
                                                   std::to_string(which.count) + ", "
                                             : "");
  console_.doing(where + "forward");
  seed_random(training.seed, which.step, which.number + 1);
  watch.start();
  torch::Tensor loss;
  {
    const AutocastScope autocast(run_.services.device, training.compute_dtype);
    const MatmulPrecisionScope products =
        run_.state.fp8 != nullptr ? run_.state.fp8->scope() : MatmulPrecisionScope(nullptr);
    const PassKey key{static_cast<std::uint64_t>(training.seed), which.step};
    if (!run_.state.task_waits_for_weights) run_.state.optimizer->wait();
    loss = run_.task.loss(batch, key) / which.divisor;
  }
  // The backward pass overwrites gradients that the last update may still read.
  run_.state.optimizer->wait();
  console_.doing(where + "backward");
  run_.state.scaler.scaled(loss).backward();
  run_.state.gradients->micro_batch_done();
  loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
}

// Returns the step's loss: the sum over the ranks' parts.
torch::Tensor Stepper::over_ranks(const torch::Tensor& loss) const {
  if (!run_.services.process_group->grouped()) return loss;
  const auto options = torch::TensorOptions(torch::kFloat32).device(run_.services.device);
  const torch::Tensor sum = torch::zeros({1}, options);
  if (loss.defined()) sum.copy_(loss);
  run_.services.process_group->all_reduce(sum).wait();
  return sum;
}

void Stepper::update(std::int64_t number) {
  StepOptimizer& optimizer = *run_.state.optimizer;
  // A rank without micro-batches has not waited yet, and finish() overwrites gradients that the last update
  // reads.
  optimizer.wait();
  run_.state.gradients->finish();
  optimizer.set_learning_rate(learning_rate(run_.config.training(), number, run_.config.steps()));
  optimizer.set_loss_scale(run_.state.scaler.scale());
  console_.doing(run_.config.step_text(number) + ", optimizer step");
  updating_ = true;  // until the step is counted, because another rank may fail in between
  optimizer.step();
  if (run_.state.shards != nullptr) run_.state.shards->gather();
}

void Stepper::forget_step() {
  if (begun_) buffers_.restore();
  if (begun_ && run_.state.fp8 != nullptr) run_.state.fp8->step_done(torch::ones({1}));
  begun_ = false;
}

std::optional<StepMetric> Stepper::finished(bool drain) {
  auto numbers = metrics_.pop(drain);
  if (!numbers) return numbers;
  for (const Stopwatch& watch : watches_.front()) computing_ += watch.seconds();
  watches_.pop_front();
  return numbers;
}

}  // namespace octavo_train
