// Finds settings with which a run fits a GPU, and the largest value of a setting that fits. Each is predicted
// like the run itself.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/predict/predict.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo_train {

// The part of a run that a setting makes smaller.
enum class Relief {
  micro_batch,  // the batch of one forward and backward pass
  step,         // other activations of a step
  always,       // weights, gradients, optimizer states, or all of a run
  evaluation,   // the batch of an evaluation
};

struct Advice {
  std::vector<std::string> words;  // settings, as on a command line
  std::string why;                 // what changes
  Relief relief = Relief::always;
  std::int64_t saves = 0;  // bytes of the device
  double slower = 1;       // time for the same work, as a multiple of the run's
  bool fits = false;
  std::int64_t sums = 0;  // bytes of fp32 sums of gradients that accumulation adds; `saves` is after them
  // Returns "+12%".
  [[nodiscard]] std::string time_text() const;
};

// Settings that save memory: those after which the run fits come first, and among equals the cheaper in time.
// If no setting is enough alone, pairs are tried, then three together, then the cheapest ones until it fits.
// A suggestion never has a key twice.
Result<std::vector<Advice>> advise(const LoadWith& load, const PredictionRequest& request,
                                   const Prediction& now);

// A run whose device has no memory left.
struct FullDevice {
  const Settings& settings;  // with the number of micro-batches of a rank
  const Task& task;
  const Prediction* prediction = nullptr;  // of the run; may be null
  bool gpu = true, fp8 = false;
  std::int64_t ranks = 1;
  bool evaluating = false;  // the device was full in an evaluation, not in a step
};

// Lines `key=value (why)` for the message about a full device. First half the batch with twice the
// accumulation, then the single settings of advise() in its order, each with its predicted memory. If the run
// has no prediction, or predicting fails, the order is fixed and there are no figures.
std::vector<std::string> memory_help(const FullDevice& full);

// What solve() looks for.
enum class Solve { batch, length, model, gpus };

struct Solution {
  std::string text;                // "per_device_train_batch_size=84 fits, 85 does not"
  std::vector<std::string> words;  // settings; empty: nothing fits
  std::int64_t num_gpus = 1;
};
// Finds the largest value that fits, or the smallest number of GPUs. Returns the errors of predict(), and
// an error if the task has no such key.
Result<Solution> solve(Solve what, const LoadWith& load, const PredictionRequest& request);

}  // namespace octavo_train
