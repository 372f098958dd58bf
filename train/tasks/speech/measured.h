// What a training step of the speech model took: time by part, memory by owner. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace octavo::train {

// In the order of a step.
enum class StepPart : std::uint8_t {
  features,           // recordings are copied to the device and become features
  encoder_forward,    // subsampling and layers
  predictor_forward,  // the prediction network, and the projections for the joint; of CTC that to tokens
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
  double step_seconds = 0;   // by the wall clock, from the first timed step to the last
  ByPart<double> seconds{};  // of a step; what they lack of it is the host's, and gaps between kernels
  double clips_per_second = 0;
  double loss = 0;           // of the last step
  std::int64_t skipped = 0;  // steps whose gradients were not finite: the optimizer did not do its work
  // The most that is held at once. The owners below do not all live at that moment.
  std::int64_t peak = 0;
  std::int64_t weights = 0, gradients = 0, states = 0, master = 0;
  std::int64_t activations = 0;     // what the forward pass has kept when the loss begins, and the batch
  std::int64_t loss_workspace = 0;  // the most that joint and loss need beyond that and beyond gradients
  std::int64_t reserved = 0;        // by torch's allocator; 0 on the CPU
  std::int64_t fp8 = 0;             // codes of weights and states of scales, of products in FP8
  std::int64_t host = 0;            // in host memory: offloaded states, copies of weights and gradients

  // Which products are in FP8, by time, and which stay plain and why; a line each.
  std::vector<std::string> products;

  // What the parts lack of the step.
  [[nodiscard]] double rest() const {
    double out = step_seconds;
    for (const double part : seconds) out -= part;
    return out > 0 ? out : 0;
  }
};

}  // namespace octavo::train
