// SPDX-License-Identifier: MIT
#include "train/run/step.h"

#include "train/console/signals.h"
#include "train/data/order.h"
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
using ReadMicroBatches = std::string;

void exchange(ProcessGroup& process_group, StepBatches& share, std::int64_t new_choices) {
  enum { kMicroBatches, kRows, kLength, kPadded, kUnits, kEmpty, kChoices, kSignals };
  std::array<double, kSignals + kStopSignals.size()> all = {static_cast<double>(share.totals.micro_batches),
                                                            static_cast<double>(share.totals.rows),
                                                            share.totals.length,
                                                            share.totals.padded_length,
                                                            static_cast<double>(share.units),
                                                            static_cast<double>(share.empty_micro_batches),
                                                            static_cast<double>(new_choices)};
  const int received = StopSignals::received();
  for (std::size_t i = 0; i < kStopSignals.size(); ++i)
    all[kSignals + i] = received == kStopSignals[i] ? 1 : 0;
  process_group.sum(all);
  share.totals = {static_cast<std::int64_t>(all[kMicroBatches]), static_cast<std::int64_t>(all[kRows]),
                  all[kLength], all[kPadded], share.totals.largest};
  share.units = static_cast<std::int64_t>(all[kUnits]);
  share.empty_micro_batches = static_cast<std::int64_t>(all[kEmpty]);
  share.new_choices = all[kChoices] > 0;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    if (all[kSignals + i] > 0 && share.signal == 0) share.signal = kStopSignals[i];
  }
}

// Numbers the batches. A batch without rows has no number, and later batches move up, as in one process.
void number(ProcessGroup& process_group, const ReadMicroBatches& mine, StepBatches& share) {
  std::vector<ReadMicroBatches> all(static_cast<std::size_t>(process_group.ranks()),
                                    ReadMicroBatches(mine.size(), '1'));
  if (share.empty_micro_batches > 0) all = process_group.gather(mine);
  std::int64_t next = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][i] != '1') continue;
      if (static_cast<int>(rank) == process_group.rank()) share.numbers.push_back(next);
      ++next;
    }
  }
  for (const ReadMicroBatches& each : all)
    share.most_micro_batches =
        std::max<std::int64_t>(share.most_micro_batches, std::ranges::count(each, '1'));
}

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> rows;
  rows.reserve(tensors.size());
  for (const torch::Tensor& each : tensors) rows.push_back(each.flatten());
  return torch::cat(rows);
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

BufferSnapshot::BufferSnapshot(const NamedTensors& buffers) {
  for (const auto& [name, tensor] : buffers) {
    auto kind = std::ranges::find_if(kinds_, [&](const Kind& each) {
      return each.buffers[0].scalar_type() == tensor.scalar_type() &&
             each.buffers[0].device() == tensor.device();
    });
    if (kind == kinds_.end()) kind = kinds_.insert(kind, Kind{});
    kind->buffers.push_back(tensor);
  }
}

void BufferSnapshot::save() {
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) kind.kept = flat(kind.buffers);
}

void BufferSnapshot::give(Kind& kind, const torch::Tensor& values) {
  std::vector<torch::Tensor> parts;
  std::int64_t begin = 0;
  for (const torch::Tensor& each : kind.buffers) {
    parts.push_back(values.narrow(0, begin, each.numel()).view(each.sizes()));
    begin += each.numel();
  }
  at::_foreach_copy_(kind.buffers, parts);
}

void BufferSnapshot::average_across_ranks(ProcessGroup& process_group) {
  if (process_group.ranks() == 1) return;
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) {
    const torch::Tensor now = flat(kind.buffers);
    if (!now.is_floating_point()) {
      const torch::Tensor most = now.to(torch::kInt64);  // groups know no bool
      process_group.all_reduce(most, ProcessGroup::Reduce::max).wait();
      give(kind, most);
      continue;
    }
    // Equal infinities have no difference either.
    torch::Tensor change = (now - kind.kept).masked_fill_(now == kind.kept, 0);
    process_group.all_reduce(change).wait();
    give(kind, kind.kept + change.div_(process_group.ranks()));
  }
}

void BufferSnapshot::restore_if(const torch::Tensor& skipped) {
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_)
    give(kind, torch::where(skipped.to(kind.kept.device()) != 0, kind.kept, flat(kind.buffers)));
}

void BufferSnapshot::restore() {
  const torch::NoGradGuard no_grad;
  for (Kind& kind : kinds_) give(kind, kind.kept);
}

Prefetch<Batch>::Source batch_source(const RunConfig& config, const ProcessGroup& process_group,
                                     const TrainingState& state) {
  const RunState& counters = state.counters;
  // counters.samples belongs to the previous stage until the loop has begun the next one.
  const std::int64_t samples = config.stage_after(counters.step).samples;
  const Order now(samples, static_cast<std::uint64_t>(config.settings->data.seed),
                  samples == counters.samples ? counters.sampler_start : counters.position);
  std::shared_ptr<const Batches> division = state.data.batches;
  if (division == nullptr)
    division = std::make_shared<EqualBatches>(config.training().per_device_train_batch_size);
  Prefetch<Batch>::Source all = {
      [division, now](std::uint64_t position) { return division->rows_at(now, position); },
      [from = state.task.get(), now](std::uint64_t position, std::int64_t rows) {
        return from->read(now, position, rows);
      }};
  return shared_by_rank(std::move(all), process_group.rank(), process_group.ranks());
}

int signal_on_any(ProcessGroup& process_group) {
  std::int64_t signal = StopSignals::received();
  process_group.max(std::span(&signal, 1));
  return static_cast<int>(signal);
}

Stepper::Stepper(const RunConfig& config, const Services& services, TrainingState& state,
                 Prefetch<Batch> batches)
    : config_(config),
      process_group_(*services.process_group),
      device_(services.device),
      console_(services.console),
      state_(state),
      batches_(std::move(batches)),
      task_waits_for_weights_(state.model.set_gate != nullptr),
      metrics_(device_, device_.is_cpu() ? 0 : 2),
      buffers_(state.buffers) {}

void Stepper::begin_stage() {
  batches_.reset(batch_source(config_, process_group_, state_), state_.counters.position);
}

StepBatches Stepper::read_batches() {
  StepBatches out;
  ReadMicroBatches read;
  const std::uint64_t begin = batches_.position();
  for (std::int64_t i = 0; i < config_.training().gradient_accumulation_steps; ++i) {
    const auto asked = std::chrono::steady_clock::now();
    Batch batch = batches_.next();
    out.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
    const bool has_rows = batch.rows() > 0;
    read += has_rows ? '1' : '0';
    if (!has_rows) {
      ++out.empty_micro_batches;
      continue;
    }
    out.units += batch.rows() * state_.data.units_per_row;
    out.totals += {1, batch.rows(), batch.length, batch.padded_length, batch.padded_length};
    out.batches.push_back(std::move(batch));
  }
  if (process_group_.grouped()) {
    const bool chooses = state_.fp8 != nullptr && process_group_.leads();
    exchange(process_group_, out,
             chooses ? static_cast<std::int64_t>(state_.fp8->choices() - fp8_choices_shared_) : 0);
  }
  number(process_group_, read, out);
  // The largest batch of a dry run takes one position.
  const auto positions = static_cast<std::int64_t>(batches_.position() - begin);
  out.skipped_samples = std::max<std::int64_t>(positions - out.totals.rows, 0);
  return out;
}

bool Stepper::step() {
  ++done_;
  if (done_ < kMeasuredStep || owners_) return run_step(state_.counters.step + 1);
  const bool trained = measure();
  held_.clear();
  return trained;
}

// Runs a step and measures its memory: on a GPU the allocator's peak, on the CPU what the step adds.
bool Stepper::measure() {
  state_.gradients->clear();
  const MemoryByOwner held = state_.memory();
  const PeakMeter meter(device_);
  wait_for(device_);
  const auto begin = std::chrono::steady_clock::now();
  if (!run_step(state_.counters.step + 1)) return false;
  wait_for(device_);
  measured_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MemoryByOwner owners = state_.memory();
  const std::int64_t base =
      held.params + held.states + held.master + held.workspace + held.fp8 + state_.gradients->sum_bytes();
  const std::int64_t peak = device_.is_cpu() ? base + meter.bytes() : device_memory(device_).peak;
  owners.activations = std::max<std::int64_t>(peak - owners.peak(), 0);
  owners_ = owners;
  measured_ = done_;
  measured_length_ = last_length_;
  return true;
}

void Stepper::count(std::int64_t number, const StepBatches& batches) {
  RunState& state = state_.counters;
  state.step = number;
  state.position = batches_.position();
  state.units += batches.units;
  state.left_out += batches.skipped_samples;
  state.passes_left_out += batches.empty_micro_batches;
  totals_ += batches.totals;
  last_length_ = batches.totals.largest;
  data_wait_seconds_ += batches.waited;
}

// Reads all batches before the first forward pass. The counters change when the step is done, so a checkpoint
// can be saved after an error before that.
bool Stepper::run_step(std::int64_t number) {
  console_.doing(config_.step_text(number) + ", reading its batches");
  StepBatches batches = read_batches();
  if (batches.new_choices) {
    share_choices(process_group_, *state_.fp8);
    fp8_choices_shared_ = state_.fp8->choices();
  }
  if (batches.signal != 0) {
    signal_ = batches.signal;
    --done_;
    return false;
  }
  const auto rows = static_cast<double>(batches.totals.rows);
  if (batches.totals.micro_batches == 0) {
    count(number, batches);
    return false;
  }
  const auto micro_batches = static_cast<std::int64_t>(batches.batches.size());
  state_.gradients->clear();
  state_.gradients->expect(micro_batches, batches.most_micro_batches);
  buffers_.save();
  begun_ = true;
  std::vector<Stopwatch>& watches = watches_.emplace_back();
  torch::Tensor loss_sum;
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    Batch batch = to_device(std::move(batches.batches[static_cast<std::size_t>(i)]), device_);
    Stopwatch& watch = watches.emplace_back(device_);
    micro_batch({number, i, micro_batches, batches.numbers[static_cast<std::size_t>(i)],
                 rows / static_cast<double>(batch.rows())},
                batch, watch, loss_sum);
    if (done_ >= kMeasuredStep && !owners_) held_.push_back(std::move(batch));
    if (i + 1 == micro_batches) update(number);
    watch.stop();
  }
  if (micro_batches == 0) update(number);  // with the gradients of other ranks
  buffers_.average_across_ranks(process_group_);
  StepOptimizer& optimizer = *state_.optimizer;
  buffers_.restore_if(optimizer.skipped());
  if (state_.fp8 != nullptr) {
    reduce_maxima(process_group_, *state_.fp8);
    state_.fp8->step_done(optimizer.skipped());
  }
  metrics_.push(number, over_ranks(loss_sum), optimizer.grad_norm(), optimizer.skipped(),
                state_.scaler.scale());
  state_.scaler.update(optimizer.skipped());
  count(number, batches);
  begun_ = updating_ = false;
  return true;
}

// Runs the forward and backward pass of a micro-batch and adds its loss to `loss_sum`. If all micro-batches
// have equal rows, the divisor is their number.
void Stepper::micro_batch(const MicroBatch& which, const Batch& batch, Stopwatch& watch,
                          torch::Tensor& loss_sum) {
  const TrainingSettings& training = config_.training();
  const std::string where = config_.step_text(which.step) + ", " +
                            (which.count > 1 ? "micro-batch " + std::to_string(which.index + 1) + " of " +
                                                   std::to_string(which.count) + ", "
                                             : "");
  console_.doing(where + "forward");
  seed_random(training.seed, which.step, which.number + 1);
  watch.start();
  torch::Tensor loss;
  {
    const AutocastScope autocast(device_, training.compute_dtype);
    const MatmulPrecisionScope products =
        state_.fp8 != nullptr ? state_.fp8->scope() : MatmulPrecisionScope(nullptr);
    const PassKey key{static_cast<std::uint64_t>(training.seed), which.step};
    if (!task_waits_for_weights_) state_.optimizer->wait();
    loss = state_.task->loss(batch, key) / which.divisor;
  }
  // The backward pass overwrites gradients that the last update may still read.
  state_.optimizer->wait();
  console_.doing(where + "backward");
  state_.scaler.scaled(loss).backward();
  state_.gradients->micro_batch_done();
  loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
}

// Returns the step's loss: the sum over the ranks' parts.
torch::Tensor Stepper::over_ranks(const torch::Tensor& loss) const {
  if (!process_group_.grouped()) return loss;
  const auto options = torch::TensorOptions(torch::kFloat32).device(device_);
  const torch::Tensor sum = torch::zeros({1}, options);
  if (loss.defined()) sum.copy_(loss);
  process_group_.all_reduce(sum).wait();
  return sum;
}

void Stepper::update(std::int64_t number) {
  StepOptimizer& optimizer = *state_.optimizer;
  // A rank without micro-batches has not waited yet, and finish() overwrites gradients that the last update
  // reads.
  optimizer.wait();
  state_.gradients->finish();
  optimizer.set_learning_rate(learning_rate(config_.training(), number, config_.steps()));
  optimizer.set_loss_scale(state_.scaler.scale());
  console_.doing(config_.step_text(number) + ", optimizer step");
  updating_ = true;  // until the step is counted, because another rank may fail in between
  optimizer.step();
  if (state_.shards != nullptr) state_.shards->gather();
}

void Stepper::forget_step() {
  if (begun_) buffers_.restore();
  if (begun_ && state_.fp8 != nullptr) state_.fp8->step_done(torch::ones({1}));
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
