// Watches whether the weights of a run are still good. Steps whose gradients are not finite are skipped and
// counted, and ten skipped steps in a row end the run. Ten steps in a row without any sample end it, too.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/settings.h"
#include "train/optim/precision.h"
#include "train/run/run.h"
#include "train/run/step.h"

#include <cstdint>
#include <string>

namespace octavo_train {

struct Divergence {
  std::int64_t step = 1;   // the first step whose gradients were not finite
  std::int64_t steps = 1;  // steps of the run
  bool fp8 = false;        // FP8 is in use
  bool bf16 = true;        // the device computes in bfloat16
};

// Returns "try, the most likely first: learning_rate=0.001 (it is 1e+30), max_grad_norm=1.0 (gradients are
// not clipped)". It names settings that may be the cause, with their values.
std::string divergence_advice(const Settings& settings, const Divergence& found);

class DivergenceGuard {
 public:
  // All arguments outlive it. `fp8`: the run has FP8 matmuls.
  DivergenceGuard(const RunConfig& config, const Services& services, const LossScaler& scaler, bool fp8,
                  RunState& counters)
      : config_(config),
        services_(services),
        scaler_(scaler),
        fp8_(fp8),
        counters_(counters),
        first_bad_(counters.step - counters.skipped_in_a_row + 1) {}

  // Counts a finished step. Returns an error if training has diverged.
  Status add_step(const StepMetric& numbers);
  // Counts a step that had samples (`trained`) or none. Returns an error after too many steps without
  // samples.
  Status note_samples(bool trained);

  [[nodiscard]] const StepMetric& last() const { return last_; }  // the newest counted step
  [[nodiscard]] bool diverged() const;
  // Returns settings to try after a step was skipped. REQUIRES: a step was skipped.
  [[nodiscard]] std::string advice() const;
  // In float16 a step is often skipped because the scaled gradients overflowed. The loss is finite then, and
  // the weights are good.
  [[nodiscard]] bool weights_in_doubt() const;
  // Returns whether a run may resume from the checkpoint of a step. While steps are skipped, the step before
  // the first skipped one is not trusted: its update may have ruined the weights.
  [[nodiscard]] bool is_trusted(std::int64_t step) const {
    return !(diverged() || weights_in_doubt()) || step < first_bad_ - 1;
  }

 private:
  Status warn(std::int64_t step, const std::string& what);

  const RunConfig& config_;
  const Services& services_;
  const LossScaler& scaler_;
  const bool fp8_;
  RunState& counters_;
  StepMetric last_;
  std::int64_t first_bad_;  // the first of the steps that are being skipped; read only after one
  std::int64_t empty_in_a_row_ = 0;
};

}  // namespace octavo_train
