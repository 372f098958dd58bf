// SPDX-License-Identifier: MIT
#include "train/tasks/speech/model/step_parts.h"

#include <algorithm>
#include <cstddef>

namespace octavo_train {

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
  if (!measured_.at(static_cast<std::size_t>(part))) before_.at(static_cast<std::size_t>(part)) = after_;
  meter_.restart();
}

void StepMemory::end() {
  if (part_ >= 0) {
    const auto part = static_cast<std::size_t>(part_);
    most_ = std::max(most_, meter_.bytes());
    if (!measured_.at(part)) peak_.at(part) = meter_.bytes();
    measured_.at(part) = true;
  }
  after_ = meter_.now();
  part_ = -1;
}

}  // namespace octavo_train
