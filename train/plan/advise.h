// What would make a run fit a GPU, or the largest that fits: other settings, each planned as the run was.
// SPDX-License-Identifier: MIT
#pragma once

#include "plan/plan.h"
#include "train/config/config.h"

#include <octavo/status.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace octavo::train {

// The run with other settings, as `key=value` words.
using LoadWith = std::function<Result<Config>(const std::vector<std::string>& words)>;

struct Advice {
  std::vector<std::string> words;  // settings, as on a command line
  std::string why;                 // what changes
  std::int64_t saves = 0;          // bytes of the device
  double slower = 1;               // times as long for the same work
  bool fits = false;
};

// Settings that save memory: those after which the run fits come first, and among equals the cheaper in time.
// If no setting is enough alone, pairs are tried, then three together, then the cheapest ones until it fits.
// A suggestion never has a key twice.
Result<std::vector<Advice>> advise(const LoadWith& load, const PlanRequest& request, const Plan& now);

// What solve() looks for.
enum class Solve { batch, length, model, gpus };

struct Solution {
  std::string text;                // "per_device_train_batch_size=84 fits, 85 does not"
  std::vector<std::string> words;  // settings; empty: nothing fits
  std::int64_t num_gpus = 1;
};
// The largest value that fits; of gpus the fewest. Errors: those of plans, and a task that has no such key.
Result<Solution> solve(Solve what, const LoadWith& load, const PlanRequest& request);

}  // namespace octavo::train
