// Measures the parts of a training step of the speech model, one after another: their time, with the device's
// own clock and without waiting for the device, or their memory. Autograd hooks signal when the backward pass
// moves from one part to the next.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/device/device.h"
#include "train/device/memory.h"
#include "train/tasks/speech/model/measured.h"

#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <utility>

namespace octavo_train {

// Receives an event when a part of a step begins, which also ends the previous part.
class StepWatch {
 public:
  virtual ~StepWatch() = default;
  virtual void begin(StepPart part) = 0;
  virtual void end() = 0;  // called at the end of the step
};

class StepClock : public StepWatch {
 public:
  explicit StepClock(const torch::Device& device) : device_(device) {}
  void begin(StepPart part) override;
  void end() override;

  // Returns the seconds of each part, summed over all steps so far. Waits for the device.
  [[nodiscard]] ByPart<double> seconds() const;

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
  void begin(StepPart part) override;
  void end() override;

  [[nodiscard]] const ByPart<std::int64_t>& before() const { return before_; }  // when a part began
  [[nodiscard]] const ByPart<std::int64_t>& peak() const { return peak_; }      // within it
  [[nodiscard]] std::int64_t most() const { return most_; }                     // in the step

 private:
  PeakMeter meter_;
  ByPart<std::int64_t> before_{}, peak_{};
  ByPart<bool> measured_{};
  std::int64_t after_ = 0, most_ = 0;
  int part_ = -1;
};

}  // namespace octavo_train
