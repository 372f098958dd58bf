// See stages.h.
// SPDX-License-Identifier: MIT
#include "train/data/stages.h"

#include "train/base/numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

namespace octavo_train {
namespace {

// Returns the sizes of the stages, limited to the data, without the stages that would add nothing.
std::vector<std::int64_t> sizes(const DataSettings& data, std::int64_t available) {
  std::vector<std::int64_t> out;
  for (const std::int64_t asked : data.stages.value_or(std::vector{data.max_samples})) {
    const std::int64_t size = asked < 0 ? available : std::min(asked, available);
    if (!out.empty() && size == out.back()) break;  // the stage before already has all the data
    out.push_back(size);
  }
  return out;
}

// Returns true if the number of draws fits in 64 bits.
bool can_count(std::int64_t steps, std::int64_t per_step) {
  return steps <= std::numeric_limits<std::int64_t>::max() / per_step;
}

Status too_many(std::string_view key, std::string_view value, std::int64_t per_step, int ranks) {
  return invalid_error(
      "{}: got {}, but with {} samples per step (per_device_train_batch_size x "
      "gradient_accumulation_steps{}) "
      "the run has 2^63 or more samples; make one of these numbers smaller",
      key, value, per_step, ranks > 1 ? " x ranks" : "");
}

std::string text_of(double value) { return decimal_text(value, std::chars_format::general, 6); }

// Returns the draws of `epochs` epochs, rounded up; nullopt if there are too many to count.
std::optional<std::int64_t> draws_of(double epochs, std::int64_t samples) {
  // The factor absorbs rounding: 0.07 epochs of 100 samples are 7 draws, not 8, although the product is
  // 7.000000000000001.
  const double draws = std::ceil(epochs * static_cast<double>(samples) * (1 - 0x1p-50));
  if (!(draws < 0x1p62)) return std::nullopt;
  return std::max<std::int64_t>(static_cast<std::int64_t>(draws), 1);
}

std::int64_t rounded_up(std::int64_t whole, std::int64_t part) {
  return whole / part + (whole % part != 0 ? 1 : 0);
}

// Counts the steps of stages whose batches differ in size, one stage after the other.
class Planner {
 public:
  Planner(const Batches& batches, std::uint64_t seed, std::int64_t per_step)
      : batches_(batches), seed_(seed), per_step_(per_step) {}

  // More draws would take too long to plan.
  static constexpr std::int64_t kMostDraws = std::int64_t{1} << 33;

  std::int64_t steps(std::int64_t samples, std::int64_t draws) {
    const Order order(samples, seed_, position_);
    Batches::BatchCount count = batches_.count_batches(order, static_cast<std::uint64_t>(draws));
    const std::int64_t steps = rounded_up(count.batches, per_step_);
    for (; count.batches < steps * per_step_; ++count.batches)
      count.end += static_cast<std::uint64_t>(batches_.rows_at(order, count.end));
    position_ = count.end;
    return steps;
  }

 private:
  const Batches& batches_;
  std::uint64_t seed_, position_ = 0;
  std::int64_t per_step_;  // batches per step
};

Status too_many_to_plan(double epochs) {
  return invalid_error(
      "training.num_train_epochs: got {}, but more than {} samples are not planned into batches before a run "
      "begins; use max_steps",
      text_of(epochs), Planner::kMostDraws);
}

}  // namespace

Result<std::vector<Stage>> plan_stages(const DataSettings& data, const TrainingSettings& training,
                                       std::int64_t samples_available, const Batches* own, int ranks,
                                       std::int64_t first_step) {
  const std::int64_t per_step = draws_per_step(training, ranks);
  const std::vector<std::int64_t> samples = sizes(data, samples_available);
  const auto stages = static_cast<std::int64_t>(samples.size());
  if (training.max_steps && *training.max_steps < stages) {
    return invalid_error(
        "training.max_steps: got {}, expected at least {}, one for each stage of data.stages; raise it or "
        "use data.stages: null",
        *training.max_steps, stages);
  }
  std::optional<Planner> planner;
  if (own != nullptr)
    planner.emplace(*own, static_cast<std::uint64_t>(data.seed),
                    training.gradient_accumulation_steps * ranks);
  std::vector<Stage> out;
  std::int64_t done = training.max_steps && !data.stages ? first_step : 0;
  const std::int64_t begin = done;
  for (const std::int64_t size : samples) {
    const bool last = static_cast<std::int64_t>(out.size()) + 1 == stages;
    std::int64_t end = done;
    if (training.max_steps) {
      end = last ? begin + *training.max_steps : done + *training.max_steps / stages;
      if (!planner && !can_count(end, per_step))
        return too_many("training.max_steps", std::to_string(*training.max_steps), per_step, ranks);
    } else {
      const double epochs = training.num_train_epochs.value_or(1);
      const auto draws = draws_of(epochs, size);
      if (planner) {
        if (!draws || *draws > Planner::kMostDraws) return too_many_to_plan(epochs);
        end = done + planner->steps(size, *draws);
      } else {
        const std::int64_t steps = draws ? rounded_up(*draws, per_step) : 0;
        if (!draws || steps > std::numeric_limits<std::int64_t>::max() - done ||
            !can_count(done + steps, per_step))
          return too_many("training.num_train_epochs", text_of(epochs), per_step, ranks);
        end = done + steps;
      }
    }
    out.push_back({size, done, end});
    done = end;
  }
  return out;
}

}  // namespace octavo_train
