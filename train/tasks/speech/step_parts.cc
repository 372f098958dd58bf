// SPDX-License-Identifier: MIT
#include "train/tasks/speech/step_parts.h"

#include <cstddef>

namespace octavo::train {

void StepClock::begin(StepPart part) {
  end();
  watches_.emplace_back(part, Stopwatch(device_));
  watches_.back().second.start();
  running_ = true;
}

void StepClock::end() {
  if (running_) watches_.back().second.stop();
  running_ = false;
}

ByPart<double> StepClock::seconds() const {
  ByPart<double> out{};
  for (const auto& [part, watch] : watches_) out.at(static_cast<std::size_t>(part)) += watch.seconds();
  return out;
}

void StepMemory::begin(StepPart part) {
  end();
  part_ = static_cast<int>(part);
  before_.at(static_cast<std::size_t>(part)) = after_;
  meter_.restart();
}

void StepMemory::end() {
  if (part_ >= 0) peak_.at(static_cast<std::size_t>(part_)) = meter_.bytes();
  after_ = meter_.now();
  part_ = -1;
}

}  // namespace octavo::train
