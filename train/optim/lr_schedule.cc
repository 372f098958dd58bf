// SPDX-License-Identifier: MIT
#include "train/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace octavo_train {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Interpolate from `high` to `low` as `done` goes from 0 to 1.
double straight(double high, double low, double done) { return high + (low - high) * done; }
double half_cosine(double high, double low, double done) {
  return low + (high - low) * 0.5 * (1.0 + std::cos(kPi * done));
}

}  // namespace

double learning_rate(const TrainingSettings& training, std::int64_t step, std::int64_t steps) {
  const double high = training.learning_rate;
  const double low = std::min(training.min_lr, high);
  const std::int64_t warmup = training.warmup_steps;
  if (step <= warmup) return high * static_cast<double>(step) / static_cast<double>(warmup);
  const std::int64_t tail = training.decay_steps.value_or(std::max<std::int64_t>(steps / 10, 1));
  const std::int64_t from = training.lr_scheduler == Scheduler::wsd ? std::max(warmup, steps - tail) : warmup;
  if (step <= from || steps <= from) return high;
  const double done = std::min(static_cast<double>(step - 1 - from) / static_cast<double>(steps - from), 1.0);
  switch (training.lr_scheduler) {
    case Scheduler::cosine:
      return half_cosine(high, low, done);
    case Scheduler::linear:
    case Scheduler::wsd:
      return straight(high, low, done);
    case Scheduler::constant:
      break;
  }
  return high;
}

}  // namespace octavo_train
