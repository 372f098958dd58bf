// FP8 matmuls of a run. Owns the FP8 context that matmuls with weights (train/nn/weight_matmul.h) use during
// forward passes, and handles it in steps, checkpoints and the log. The FP8 computation is in
// octavo/torch/fp8.h.
//
// A step runs its forward passes inside a scope (backward passes need none) and then the optimizer. With
// several ranks, set_amaxes() gets the maximum of amaxes() over ranks. step_done() ends the step. Forward
// passes outside a scope, such as those of evaluation and generation, run without FP8, like a trained model
// elsewhere.
//
// With `select: measure` only rank 0 measures. The other ranks are created with Measuring::told, and adopt()
// rank 0's decisions() between steps. Until then their matmuls are in FP8.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/settings.h"
#include "train/distributed/process_group.h"
#include "train/nn/named_tensors.h"
#include "train/nn/weight_matmul.h"

#include <octavo/torch/fp8.h>
#include <torch/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

class Fp8 {
 public:
  enum class Measuring { here, told };

  // `parameters`: the model's parameters on the training device, in the same order on all ranks; those that
  // can be weights of matmuls get FP8 states. `uses`: how often a step of this rank uses each weight; all
  // uses share one cast to FP8. Throws c10::Error for invalid settings and, unless the fallback is bf16, for
  // a device without FP8.
  Fp8(const Fp8Settings& settings, const NamedTensors& parameters, std::int64_t uses = 1,
      Measuring measuring = Measuring::here);
  ~Fp8();
  Fp8(const Fp8&) = delete;
  Fp8& operator=(const Fp8&) = delete;

  // Returns false if the device has no FP8. All other functions then do nothing.
  [[nodiscard]] bool active() const;
  // Returns a scope in which this thread's matmuls with weights are in FP8.
  [[nodiscard]] MatmulPrecisionScope scope() const;

  // Ends a step. Call it after the optimizer's step. `skipped`: StepOptimizer::skipped(); the host does not
  // wait for it.
  void step_done(const torch::Tensor& skipped);

  // Returns a copy of the maxima of the current step: fp32 [count], with the same count on every rank; empty
  // if the recipe has none. set_amaxes() sets the maxima that the ranks agreed on.
  [[nodiscard]] torch::Tensor amaxes() const;
  void set_amaxes(const torch::Tensor& amaxes);

  // Returns the measured decisions, a string for each shape, for adopt() on other ranks.
  [[nodiscard]] std::vector<std::string> decisions() const;
  void adopt(const std::vector<std::string>& decisions);
  // Returns the number of decisions.
  [[nodiscard]] std::size_t choices() const;

  // Returns and clears the log lines since the last call: measurements and choices, and which matmuls run
  // without FP8 and why.
  std::vector<std::string> pop_log_lines();

  // Returns the bytes of the weights' FP8 codes, scales and histories.
  [[nodiscard]] std::int64_t bytes() const;

  // Returns why a resumed run starts with initial scales and no choices; empty: they were loaded from the
  // checkpoint.
  [[nodiscard]] const std::string& reset_reason() const { return reset_reason_; }
  // Implement Checkpointable for Fp8Component. State that was saved with other settings is not loaded.
  void save(NamedTensors& tensors, nlohmann::ordered_json& scalars) const;
  Result<Checkpointable::Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& scalars);

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;                        // of pop_log_lines()
  std::shared_ptr<octavo::torch::fp8::Context> context_;  // null: the device has no FP8
  std::string settings_;                                  // text of the recipe
  std::string reset_reason_ = "the checkpoint has no FP8 state";
};

// The FP8 state in a checkpoint. If the checkpoint was saved without FP8, scales start from their initial
// values.
class Fp8Component : public Checkpointable {
 public:
  explicit Fp8Component(Fp8& fp8) : fp8_(fp8) {}  // `fp8` outlives this object

  [[nodiscard]] std::string_view name() const override { return "fp8"; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& scalars) const override {
    fp8_.save(tensors, scalars);
  }
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& scalars) override {
    return fp8_.load(tensors, scalars);
  }
  [[nodiscard]] bool is_optional() const override { return true; }

 private:
  Fp8& fp8_;
};

struct Fp8Choice {
  bool enabled = false;
  std::string warning;  // why FP8 is off although the settings enable it
};

// Decides whether FP8 is used on a device. If the device has no FP8, returns a choice without it
// (fp8.fallback: bf16) or an error with the possible fixes.
Result<Fp8Choice> choose_fp8(const Fp8Settings& settings, const torch::Device& device);
// Turns FP8 off on all ranks if any rank's device does not have it. Collective.
void agree_on_fp8(ProcessGroup& process_group, Fp8Choice& choice);

// Returns a line for the log that describes the settings.
std::string fp8_text(const Fp8Settings& settings);

// Replaces the maxima (amaxes) by their maximum over all ranks, in one collective. Call it on all ranks
// before step_done().
void reduce_maxima(ProcessGroup& process_group, Fp8& fp8);
// Copies rank 0's choices to all ranks. Call it between steps.
void share_choices(ProcessGroup& process_group, Fp8& fp8);

}  // namespace octavo_train
