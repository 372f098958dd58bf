// SPDX-License-Identifier: MIT
#include "benchmarks/speech/step_profile.h"

#include "train/config/settings.h"
#include "train/device/device.h"
#include "train/device/memory.h"
#include "train/model/model.h"
#include "train/optim/fp8.h"
#include "train/optim/gradients.h"
#include "train/optim/optimizer.h"
#include "train/optim/precision.h"
#include "train/task.h"
#include "train/tasks/speech/data/batch.h"
#include "train/tasks/speech/features/featurizer.h"
#include "train/tasks/speech/model/speech_model.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

// Receives an event when a part of a step begins, which also ends the previous part. Autograd hooks signal
// when the backward pass moves from one part to the next.
class StepWatch {
 public:
  virtual ~StepWatch() = default;
  virtual void begin(StepPart part) = 0;
  virtual void end() = 0;  // called at the end of the step
};

// Times the parts with the device's own clock, without waiting for the device.
class StepClock : public StepWatch {
 public:
  explicit StepClock(const torch::Device& device) : device_(device) {}
  void begin(StepPart part) override {
    end();
    watches_.emplace_back(part, Stopwatch(device_));
    watches_.back().second.start();
    running_ = true;
  }
  void end() override {
    if (running_) watches_.back().second.stop();
    running_ = false;
  }

  // Returns the seconds of each part, summed over all steps so far. Waits for the device.
  [[nodiscard]] ByPart<double> seconds() const {
    ByPart<double> out{};
    for (const auto& [part, watch] : watches_) out.at(static_cast<std::size_t>(part)) += watch.seconds();
    return out;
  }

 private:
  torch::Device device_;
  std::deque<std::pair<StepPart, Stopwatch>> watches_;
  bool running_ = false;
};

// Measures the memory that a step adds to what was allocated at its start. With several micro-batches,
// before() and peak() describe the first, because later ones begin with gradients; most() covers all of them.
class StepMemory : public StepWatch {
 public:
  explicit StepMemory(const torch::Device& device) : meter_(device) {}
  void begin(StepPart part) override {
    end();
    part_ = static_cast<std::size_t>(part);
    if (!measured_.at(*part_)) before_.at(*part_) = after_;
    meter_.restart();
  }
  void end() override {
    if (part_) {
      most_ = std::max(most_, meter_.bytes());
      if (!measured_.at(*part_)) peak_.at(*part_) = meter_.bytes();
      measured_.at(*part_) = true;
    }
    after_ = meter_.now();
    part_.reset();
  }

  [[nodiscard]] const ByPart<std::int64_t>& before() const { return before_; }  // when a part began
  [[nodiscard]] const ByPart<std::int64_t>& peak() const { return peak_; }      // within it
  [[nodiscard]] std::int64_t most() const { return most_; }                     // in the step

 private:
  PeakMeter meter_;
  ByPart<std::int64_t> before_{}, peak_{};
  ByPart<bool> measured_{};
  std::int64_t after_ = 0, most_ = 0;
  std::optional<std::size_t> part_;  // the running part
};

constexpr int kWarmUp = 3;  // untimed steps, which load kernels and allocate states and workspaces

FeatureSettings features_of(const SpeechModelSettings& model) {
  FeatureSettings out;
  out.features = model.mel_bands;
  return out;
}

Batch random_batch(const SpeechModelSettings& model, const SpeechLoad& load) {
  const std::int64_t samples = load.frames * features_of(model).hop();
  Batch out;
  out.tensors = {
      {ClipTensors::audio, torch::randn({load.clips, samples}) * 0.1},
      {ClipTensors::targets, torch::randint(model.vocabulary, {load.clips, load.tokens}, torch::kInt64)}};
  for (std::int64_t i = 0; i < load.clips; ++i) out.draws.push_back(static_cast<std::uint64_t>(i));
  return out;
}

std::unique_ptr<Gradients> gradients_of(const NamedTensors& parameters, const TrainingSettings& training,
                                        StepOptimizer& optimizer) {
  const std::int64_t passes = training.gradient_accumulation_steps;
  if (training.offload_gradients) return std::make_unique<OffloadedGradients>(parameters, passes, optimizer);
  return std::make_unique<GradientSums>(parameters, passes);
}

class Bench {
 public:
  Bench(SpeechModelImpl& model, const SpeechLoad& load, const TrainingSettings& training,
        const torch::Device& device)
      : model_(model),
        training_(training),
        device_(device),
        batch_((seed_random(training.seed, 0, 1), random_batch(model.settings(), load))),
        featurizer_(features_of(model.settings()), device),
        samples_(static_cast<std::size_t>(load.clips), load.frames * featurizer_.settings().hop()),
        frames_(static_cast<std::size_t>(load.clips), load.frames),
        labels_(static_cast<std::size_t>(load.clips), load.tokens),
        parameters_(parameters_of(model)),
        optimizer_(std::make_unique<StepOptimizer>(training, one_group(training, parameters_))),
        gradients_(gradients_of(parameters_, training, *optimizer_)),
        scaler_(device, training.compute_dtype),
        fp8_(training.fp8.enabled ? std::make_unique<Fp8>(training.fp8, parameters_) : nullptr) {
    optimizer_->set_learning_rate(training.learning_rate);
    skipped_ = torch::zeros({}, torch::TensorOptions(torch::kInt64).device(device));
    model_.set_gate([optimizer = optimizer_.get()](const torch::nn::Module& part) { optimizer->wait(part); });
  }
  ~Bench() { model_.set_gate({}); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // Performs a training step like Stepper (train/run/step.h).
  void step(StepWatch& watch) {
    gradients_->clear();
    ++number_;
    for (std::int64_t i = 0; i < training_.gradient_accumulation_steps; ++i) micro_batch(watch);
    gradients_->finish();
    watch.begin(StepPart::optimizer);
    optimizer_->set_loss_scale(scaler_.scale());
    optimizer_->step();
    scaler_.update(optimizer_->skipped());
    skipped_ += optimizer_->skipped() != 0;
    if (fp8_ != nullptr) fp8_->step_done(optimizer_->skipped());
    watch.end();
  }

  // Performs the forward and backward pass of a micro-batch. All micro-batches have the same clips.
  void micro_batch(StepWatch& watch) {
    watch.begin(StepPart::features);
    const Batch batch = to_device(batch_, device_);
    const DropoutKey pass{static_cast<std::uint64_t>(training_.seed), number_, draw_numbers(batch, device_)};
    const auto [features, lengths] = featurizer_(batch.at(ClipTensors::audio), samples_, pass);
    watch.begin(StepPart::encoder_forward);
    torch::Tensor loss;
    {
      const AutocastScope autocast(device_, training_.compute_dtype);
      const MatmulPrecisionScope precision = fp8_ != nullptr ? fp8_->scope() : MatmulPrecisionScope(nullptr);
      loss = model_.loss(
          {features, lengths, batch.at(ClipTensors::targets), frames_, labels_}, pass,
          [&](SpeechPart part, const std::vector<torch::Tensor>& made) { observe(watch, part, made); });
    }
    watch.begin(StepPart::loss_backward);
    in_loss_ = true;
    optimizer_->wait();
    scaler_.scaled(loss / training_.gradient_accumulation_steps).backward();
    gradients_->pass_done();
    loss_ = loss.detach();
  }

  // Measures the memory of one step. Clears gradients and loss first, because the CPU's meter cannot account
  // for tensors that were allocated before the step and freed in it.
  void measure_memory(SpeechMeasure& out) {
    gradients_->clear();
    loss_.reset();
    out.weights = bytes_of(tensors_of(model_));
    const StepOptimizer::Bytes bytes = optimizer_->bytes();
    out.gradients = gradients_->bytes();
    out.states = bytes.states;
    out.master = bytes.master;
    out.fp8 = fp8_ != nullptr ? fp8_->bytes() : 0;
    out.host = bytes.host_states + bytes.host_master + bytes.host_copies;
    const std::int64_t on_cpu =
        out.weights + bytes.states + bytes.master + bytes.workspace + out.fp8 + gradients_->sum_bytes();
    const std::int64_t held = device_.is_cpu() ? on_cpu : device_memory(device_).allocated;
    StepMemory memory(device_);
    step(memory);
    const auto at = [](StepPart part) { return static_cast<std::size_t>(part); };
    const auto& before = memory.before();
    const auto& peak = memory.peak();
    out.peak = held + memory.most();
    const std::size_t forward = at(StepPart::loss_forward), backward = at(StepPart::loss_backward);
    out.activations = before[forward];
    // After the loss's backward pass, gradients remain allocated. They are not workspace.
    out.loss_workspace = std::max(peak[forward] - before[forward],
                                  peak[backward] - std::max(before[backward + 1], before[forward]));
    out.reserved = device_memory(device_).reserved;
  }

  // Times `steps` steps.
  void measure_time(std::int64_t steps, SpeechMeasure& out) {
    StepClock clock(device_);
    wait_for_all();
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < steps; ++i) step(clock);
    wait_for_all();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    out.step_seconds = took.count() / static_cast<double>(steps);
    out.clips_per_second =
        static_cast<double>(batch_.rows() * training_.gradient_accumulation_steps) / out.step_seconds;
    out.seconds = clock.seconds();
    for (double& part : out.seconds) part /= static_cast<double>(steps);
    out.loss = loss_.item<double>();
    out.skipped = skipped_.item<std::int64_t>();
    if (fp8_ != nullptr) out.products = fp8_->pop_log_lines();
  }

 private:
  // Waits until no work is pending on the host or the device.
  void wait_for_all() {
    optimizer_->wait();
    wait_for(device_);
  }

  // Registers hooks on the outputs of a part of the forward pass. A part of the backward pass begins when a
  // gradient reaches them.
  void observe(StepWatch& watch, SpeechPart part, const std::vector<torch::Tensor>& made) {
    const bool encoded = part == SpeechPart::encoder;
    for (const torch::Tensor& each : made) {
      if (!each.requires_grad()) continue;
      each.register_hook([this, &watch, encoded](const torch::Tensor& grad) {
        // The loss has two inputs. The first gradient of either means that the loss's backward pass is done.
        if (encoded || in_loss_) {
          watch.begin(encoded ? StepPart::encoder_backward : StepPart::predictor_backward);
        }
        in_loss_ = false;
        return grad;
      });
    }
    watch.begin(encoded ? StepPart::predictor_forward : StepPart::loss_forward);
  }

  SpeechModelImpl& model_;
  const TrainingSettings& training_;
  torch::Device device_;
  Batch batch_;
  Featurizer featurizer_;
  std::vector<std::int64_t> samples_, frames_, labels_;
  NamedTensors parameters_;
  std::unique_ptr<StepOptimizer> optimizer_;
  std::unique_ptr<Gradients> gradients_;
  LossScaler scaler_;
  std::unique_ptr<Fp8> fp8_;  // null if FP8 is off
  torch::Tensor loss_, skipped_;
  std::uint64_t number_ = 0;
  bool in_loss_ = false;
};

}  // namespace

SpeechMeasure measure_step(SpeechModelImpl& model, const SpeechLoad& load, const TrainingSettings& training,
                           const torch::Device& device) {
  SpeechMeasure out;
  Bench bench(model, load, training, device);
  StepClock untimed(device);
  for (int i = 0; i < kWarmUp; ++i) bench.step(untimed);
  bench.measure_memory(out);
  bench.measure_time(load.steps, out);
  return out;
}

}  // namespace octavo_train
