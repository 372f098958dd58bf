// Products in FP8 for a run: the context that the door for products (nn/project.h) finds during passes, and
// what surrounds it in a step, in a checkpoint and in the log. What it does is in octavo/torch/fp8.h.
//
// A step: forward passes inside a scope (backward passes need none), the optimizer's step, with several ranks
// the maximum of amaxes() over them, and step_done(). Passes outside a scope, such as those of an evaluation,
// are plain.
//
// With `select: measure` rank 0 measures and the others are told: they are made with Measuring::told, and
// take its decisions() between steps by adopt(). Until then their products are in FP8.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/component.h"
#include "train/config/fp8_settings.h"
#include "train/nn/named_tensors.h"
#include "train/nn/product_scope.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

class Fp8 {
 public:
  enum class Measuring { here, told };

  // `parameters`: the model's, where they train, in the same order on all ranks; those that can be weights of
  // products get states. `passes`: of this rank in a step, which share what weights are cast to. Throws
  // c10::Error for settings that do not fit and, unless the fallback is bf16, for a device without FP8.
  Fp8(const Fp8Settings& settings, const NamedTensors& parameters, std::int64_t passes = 1,
      Measuring measuring = Measuring::here);
  ~Fp8();
  Fp8(const Fp8&) = delete;
  Fp8& operator=(const Fp8&) = delete;

  // False: the device has no FP8, and everything here does nothing.
  [[nodiscard]] bool active() const;
  // Products of this thread are in FP8 while it lives.
  [[nodiscard]] ProductScope scope() const;

  // After the optimizer's step; `skipped` as StepOptimizer::skipped() has it. The host does not wait for it.
  void step_done(const torch::Tensor& skipped);

  // The maxima of the step under way: fp32 [count], the same count on every rank; empty where the recipe has
  // none. A copy: what the ranks agreed on is set.
  [[nodiscard]] torch::Tensor amaxes() const;
  void set_amaxes(const torch::Tensor& amaxes);

  // What was measured, a string for each shape; for other ranks.
  [[nodiscard]] std::vector<std::string> decisions() const;
  void adopt(const std::vector<std::string>& decisions);
  // How many there are.
  [[nodiscard]] std::size_t choices() const;

  // Lines for the log since the last call: what was measured and chosen, which products stay plain, and why.
  std::vector<std::string> news();

  // Of the codes of weights, and of scales and histories.
  [[nodiscard]] std::int64_t bytes() const;

  // Of a run that goes on: why scales and choices begin anew; empty: they are the checkpoint's.
  [[nodiscard]] const std::string& anew() const { return anew_; }
  // As Stateful has them; see Fp8Part. What was saved with other settings is not loaded.
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const;
  Result<Stateful::Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers);

 private:
  struct Parts;  // the adapter's; see product_scope.h for why it is hidden
  std::unique_ptr<Parts> parts_;
  std::string settings_;  // in words
  std::string anew_ = "the checkpoint has none";
};

// FP8 in a checkpoint. A run that takes it up at a checkpoint of one without begins with fresh scales.
class Fp8Part : public Stateful {
 public:
  explicit Fp8Part(Fp8& fp8) : fp8_(fp8) {}  // which outlives it

  [[nodiscard]] std::string_view name() const override { return "fp8"; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override {
    fp8_.save(tensors, numbers);
  }
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override {
    return fp8_.load(tensors, numbers);
  }
  [[nodiscard]] bool may_be_missing() const override { return true; }

 private:
  Fp8& fp8_;
};

}  // namespace octavo::train
