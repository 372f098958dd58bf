// Measures a training step of the speech model: time by part, memory by owner. The model, the optimizer and
// the precision are those of a run; weights, recordings and labels are random. This header does not need
// LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace c10 {
struct Device;
}  // namespace c10

namespace octavo_train {

class SpeechModelImpl;
struct TrainingSettings;

// The parts of a step, in order.
enum class StepPart : std::uint8_t {
  features,           // copies recordings to the device and computes their features
  encoder_forward,    // subsampling and layers
  predictor_forward,  // prediction network and the joint's projections; for CTC, the projection to tokens
  loss_forward,       // joint and loss
  loss_backward,
  predictor_backward,
  encoder_backward,
  optimizer,
};
inline constexpr std::array<const char*, 8> kStepParts = {
    "features",      "encoder forward",    "predictor forward", "loss forward",
    "loss backward", "predictor backward", "encoder backward",  "optimizer"};
template <class T>
using ByPart = std::array<T, kStepParts.size()>;

struct SpeechMeasure {
  double step_seconds = 0;   // wall-clock mean over the timed steps
  ByPart<double> seconds{};  // per step; see rest() for the remainder
  double clips_per_second = 0;
  double loss = 0;           // loss of the last step
  std::int64_t skipped = 0;  // steps without an update, because gradients were not finite
  // Peak memory in bytes. The owners below do not all reach their size at that moment.
  std::int64_t peak = 0;
  std::int64_t weights = 0, gradients = 0, states = 0, master = 0;
  std::int64_t activations = 0;     // saved by the forward pass when the loss begins, plus the batch
  std::int64_t loss_workspace = 0;  // peak of joint and loss, without activations and gradients
  std::int64_t reserved = 0;        // reserved by torch's allocator; 0 on the CPU
  std::int64_t fp8 = 0;             // FP8 codes of weights, and states of FP8 scales
  std::int64_t host = 0;            // host memory: offloaded states, copies of weights and gradients

  // Lists the matmuls that run in FP8 according to their timings, and the matmuls that do not and why; a line
  // each.
  std::vector<std::string> products;

  // Returns the seconds of a step that no part accounts for: host time, and gaps between kernels.
  [[nodiscard]] double rest() const {
    double out = step_seconds;
    for (const double part : seconds) out -= part;
    return out > 0 ? out : 0;
  }
};

// A micro-batch: clips of equal length, all with the same number of labels. A step has
// training.gradient_accumulation_steps micro-batches.
struct SpeechLoad {
  std::int64_t clips = 0, frames = 0, tokens = 0;
  std::int64_t steps = 0;  // timed steps, after a few untimed ones
};

// Runs and measures training steps. REQUIRES: a model with a transducer head or a CTC head, placed on the
// device with place_model() as the settings require. Throws c10::Error, such as c10::OutOfMemoryError.
SpeechMeasure measure_step(SpeechModelImpl& model, const SpeechLoad& load, const TrainingSettings& training,
                           const c10::Device& device);

}  // namespace octavo_train
