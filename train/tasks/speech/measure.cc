// SPDX-License-Identifier: MIT
#include "train/tasks/speech/measure.h"

#include "train/device/device.h"
#include "train/model/model.h"
#include "train/optim/fp8.h"
#include "train/optim/gradients.h"
#include "train/optim/optimizer.h"
#include "train/optim/precision.h"
#include "train/task.h"
#include "train/tasks/speech/batch.h"
#include "train/tasks/speech/features.h"
#include "train/tasks/speech/step_parts.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

namespace octavo_train {
namespace {

constexpr int kWarmUp = 3;  // untimed steps, which load kernels and allocate states and workspaces

constexpr const char* kAudio = "audio";

FeatureSettings features_of(const SpeechModelSettings& model) {
  FeatureSettings out;
  out.features = model.mel_bands;
  return out;
}

Batch random_batch(const SpeechModelSettings& model, const SpeechLoad& load) {
  const std::int64_t samples = load.frames * features_of(model).hop();
  Batch out;
  out.tensors = {
      {kAudio, torch::randn({load.clips, samples}) * 0.1},
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
    const auto [features, lengths] = featurizer_(batch.at(kAudio), samples_, pass);
    watch.begin(StepPart::encoder_forward);
    torch::Tensor loss;
    {
      const AutocastScope autocast(device_, training_.compute_dtype);
      const MatmulPrecisionScope products = fp8_ != nullptr ? fp8_->scope() : MatmulPrecisionScope(nullptr);
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
    for (const auto& [name, tensor] : tensors_of(model_))
      out.weights += static_cast<std::int64_t>(tensor.nbytes());
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

  // Waits until no work is pending on the host or the device.
  void wait_for_all() {
    optimizer_->wait();
    wait_for(device_);
  }

  [[nodiscard]] double loss() const { return loss_.item<double>(); }
  [[nodiscard]] std::vector<std::string> products() const {
    return fp8_ != nullptr ? fp8_->pop_log_lines() : std::vector<std::string>();
  }
  [[nodiscard]] std::int64_t skipped() const { return skipped_.item<std::int64_t>(); }

 private:
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
  StepClock untimed(device), clock(device);
  for (int i = 0; i < kWarmUp; ++i) bench.step(untimed);
  bench.measure_memory(out);
  bench.wait_for_all();
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < load.steps; ++i) bench.step(clock);
  bench.wait_for_all();
  const auto steps = static_cast<double>(load.steps);
  out.step_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / steps;
  out.clips_per_second =
      static_cast<double>(load.clips * training.gradient_accumulation_steps) / out.step_seconds;
  out.seconds = clock.seconds();
  for (double& part : out.seconds) part /= steps;
  out.loss = bench.loss();
  out.skipped = bench.skipped();
  out.products = bench.products();
  return out;
}

}  // namespace octavo_train
