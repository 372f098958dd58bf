// Tests the loading of states that do not match: errors name the difference and change nothing.
// SPDX-License-Identifier: MIT
#include "tests/train/libtorch_reference.h"
#include "tests/train/parts_support.h"

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns the error of loading `other` into an optimizer of `words`. The optimizer must be unchanged
// afterwards, and step like one that loaded nothing.
std::string load_error(const Words& words, const Saved& other) {
  const TrainingSettings t = training(words);
  const NamedTensors params = make_parameters(has_bf16_weights(t) ? torch::kBFloat16 : torch::kFloat32);
  const NamedTensors clean = copies(params);
  const auto optimizer = make(t, params), reference = make(t, clean);
  take_steps(*optimizer, params, 1, 2);
  take_steps(*reference, clean, 1, 2);
  const Status status = optimizer->load(copies(other.tensors), other.numbers);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(saved(*optimizer) == saved(*reference)) << status.message();
  take_steps(*optimizer, params, 3, 4);
  take_steps(*reference, clean, 3, 4);
  EXPECT_TRUE(same_bits(params, clean)) << status.message();
  return status.message();
}

Saved saved_after_steps(const Words& words, const NamedTensors& params) {
  const auto optimizer = make(training(words), params);
  take_steps(*optimizer, params, 1, 3);
  return saved(*optimizer);
}

const Words kFp32 = {"optimizer=adamw", "compute_dtype=float32"};
const Words k8bit = {"optimizer=adamw_8bit", "compute_dtype=float32"};
const Words k4bit = {"optimizer=adamw_4bit", "compute_dtype=float32"};
const Words kMaster24 = {"optimizer=adamw_8bit", "master_weights=24"};
const Words kMaster32 = {"optimizer=adamw_8bit", "master_weights=32"};

TEST(StepOptimizerLoad, AnotherFormat) {
  const Saved of_8bit = saved_after_steps(k8bit, make_parameters());
  EXPECT_THAT(
      load_error(k4bit, of_8bit),
      AllOf(HasSubstr("wide: 8bit states"), HasSubstr("expected 4bit"), HasSubstr("deep: 8bit states"),
            HasSubstr("use the optimizer and master_weights that it was saved with")));
  EXPECT_THAT(load_error(kFp32, of_8bit), HasSubstr("wide: 8bit states"));
}

TEST(StepOptimizerLoad, AnotherAlgorithm) {
  const Words lion = {"optimizer=lion_8bit", "compute_dtype=float32"};
  const Words sgd = {"optimizer=sgd_8bit", "compute_dtype=float32"};
  Saved of_adamw = saved_after_steps(k8bit, make_parameters());
  EXPECT_THAT(load_error(lion, of_adamw),
              HasSubstr("wide: its optimizer states are those of adamw, expected lion"));
  // The states have the same size, but another meaning.
  EXPECT_THAT(load_error(lion, saved_after_steps(sgd, make_parameters())),
              HasSubstr("those of sgd, expected lion"));
  EXPECT_THAT(
      load_error(kFp32, saved_after_steps({"optimizer=sgd", "compute_dtype=float32"}, make_parameters())),
      HasSubstr("those of sgd, expected adamw"));
  // Version 0.1 did not save the algorithm, but the sizes differ.
  for (auto& [name, state] : of_adamw.numbers.items()) state.erase("algorithm");
  EXPECT_THAT(load_error(lion, of_adamw), HasSubstr("wide: 8bit states"));
  const NamedTensors params = make_parameters();
  EXPECT_TRUE(make(training({"optimizer=adam_8bit", "compute_dtype=float32"}), params)
                  ->load(copies(of_adamw.tensors), saved_after_steps(k8bit, make_parameters()).numbers)
                  .ok())
      << "adam and adamw keep the same moments";
}

TEST(StepOptimizerLoad, AnotherMaster) {
  const Saved of_24 = saved_after_steps(kMaster24, make_parameters(torch::kBFloat16));
  EXPECT_THAT(load_error(kMaster32, of_24), AllOf(HasSubstr("wide: 8bit states"), HasSubstr("bytes")));
  EXPECT_THAT(load_error({"optimizer=adamw_8bit", "master_weights=none"}, of_24), HasSubstr("wide"));
  EXPECT_THAT(load_error(kMaster24, saved_after_steps(k8bit, make_parameters())), HasSubstr("wide"));
}

TEST(StepOptimizerLoad, AnotherShapeOrModel) {
  NamedTensors larger = make_parameters();
  larger[0].second = torch::ones({71, 61}).requires_grad_();
  EXPECT_THAT(load_error(k8bit, saved_after_steps(k8bit, larger)), HasSubstr("wide: 8bit states"));
  NamedTensors renamed = make_parameters();
  renamed[2].first = "other";
  EXPECT_THAT(load_error(k8bit, saved_after_steps(k8bit, renamed)),
              HasSubstr("2 tensors that belong to no parameter of this model"));
}

// Earlier versions saved the states of LibTorch's optimizers, which are read by convert_states() only.
TEST(StepOptimizerLoad, StatesOfLibtorch) {
  LibtorchReference libtorch(training(kFp32), make_parameters());
  libtorch.take_steps(1, 3);
  EXPECT_THAT(load_error(kFp32, libtorch.saved()),
              AllOf(HasSubstr("6 tensors that belong to no parameter of this model"),
                    HasSubstr("--resume convert_states=true")));
}

TEST(StepOptimizerLoad, TornStates) {
  // A tensor is missing.
  Saved torn = saved_after_steps(kFp32, make_parameters());
  torn.tensors.erase(torn.tensors.begin() + 3);
  EXPECT_THAT(load_error(kFp32, torn), HasSubstr("deep"));
  // All bytes are present, but not where they belong; only the last parameter shows it.
  Saved swapped = saved_after_steps(k8bit, make_parameters());
  swapped.numbers["deep"]["block_size"] = 64;
  EXPECT_THAT(load_error(k8bit, swapped),
              AllOf(HasSubstr("deep: 8bit"), HasSubstr("block_size 64, expected")));
}

TEST(StepOptimizer, WeightsAreInBf16WhereStepsComputeInIt) {
  EXPECT_TRUE(has_bf16_weights(training({"optimizer=lion_4bit"})));
  EXPECT_FALSE(has_bf16_weights(training({"bf16=false"})));
  EXPECT_FALSE(has_bf16_weights(training({"fp16=true"})));
}

TEST(StepOptimizer, Texts) {
  for (const octavo::AlgorithmInfo& info : octavo::algorithms())
    EXPECT_EQ(optimizer_text({info.number, octavo::StateFormat::int8}), std::string(info.title) + " 8-bit");
  EXPECT_EQ(optimizer_text({octavo::Algorithm::adamw, octavo::StateFormat::int8}), "AdamW 8-bit");
  EXPECT_EQ(optimizer_text({octavo::Algorithm::adam, octavo::StateFormat::int4_rank1}), "Adam 4-bit-rank1");
  EXPECT_EQ(optimizer_text({octavo::Algorithm::lion, octavo::StateFormat::fp32}), "Lion fp32");
  EXPECT_EQ(optimizer_text({octavo::Algorithm::sgd, octavo::StateFormat::bf16}), "SGD bf16");
}

}  // namespace
}  // namespace octavo_train
