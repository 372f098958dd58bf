// Tests which optimizer runs on which device, and states that do not match: errors name the difference and
// change nothing.
// SPDX-License-Identifier: MIT
#include "train/parts_support.h"

#include <octavo/describe.h>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Returns the error of loading `other` into an optimizer of `words`. The optimizer must be unchanged
// afterwards, and step like one that loaded nothing.
std::string load_error(const Words& words, const Saved& other, bool native = true) {
  const TrainingSettings t = training(words);
  const bool bf16 = native && t.compute_dtype == ComputeType::bfloat16;
  const NamedTensors params = make_parameters(bf16 ? torch::kBFloat16 : torch::kFloat32);
  const NamedTensors clean = copies(params);
  const auto optimizer = make(t, params, native), reference = make(t, clean, native);
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

Saved saved_after_steps(const Words& words, const NamedTensors& params, bool native = true) {
  const auto optimizer = make(training(words), params, native);
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
      load_error({"optimizer=adamw", "compute_dtype=float32"},
                 saved_after_steps({"optimizer=sgd", "compute_dtype=float32"}, make_parameters(), false),
                 false),
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
  EXPECT_THAT(load_error(kFp32, saved_after_steps(kFp32, larger, false), false),
              HasSubstr("wide.exp_avg has another shape"));
  NamedTensors renamed = make_parameters();
  renamed[2].first = "other";
  EXPECT_THAT(load_error(k8bit, saved_after_steps(k8bit, renamed)),
              HasSubstr("2 tensors that no parameter of this model has a place for"));
  EXPECT_THAT(load_error(kFp32, saved_after_steps(kFp32, renamed, false), false),
              HasSubstr("2 tensors have no place"));
}

TEST(StepOptimizerLoad, PlainAndNativeAreNotExchanged) {
  EXPECT_THAT(load_error(kFp32, saved_after_steps(kFp32, make_parameters(), false)),
              HasSubstr("tensors that no parameter of this model has a place for"));
  EXPECT_THAT(load_error(kFp32, saved_after_steps(kFp32, make_parameters()), false), HasSubstr("plain"));
}

TEST(StepOptimizerLoad, TornStates) {
  // A tensor is missing.
  for (const bool native : {true, false}) {
    Saved torn = saved_after_steps(kFp32, make_parameters(), native);
    torn.tensors.erase(torn.tensors.begin() + 3);
    EXPECT_THAT(load_error(kFp32, torn, native), HasSubstr("deep"));
  }
  // All bytes are present, but not where they belong; only the last parameter shows it.
  Saved swapped = saved_after_steps(k8bit, make_parameters());
  swapped.numbers["deep"]["block_size"] = 64;
  EXPECT_THAT(load_error(k8bit, swapped),
              AllOf(HasSubstr("deep: 8bit"), HasSubstr("block_size 64, expected")));
}

TEST(OptimizerChoice, WithABackend) {
  const TrainingSettings t = training({"optimizer=lion_4bit", "optimizer_fallback=adamw"});
  const OptimizerChoice plan = choose_optimizer(t, torch::kCPU, true).value();
  EXPECT_TRUE(plan.native);
  EXPECT_TRUE(plan.name == t.optimizer);
  EXPECT_TRUE(plan.bf16_weights);
  EXPECT_THAT(plan.warning, IsEmpty());
  EXPECT_FALSE(choose_optimizer(training({"bf16=false"}), torch::kCPU, true).value().bf16_weights);
  EXPECT_FALSE(choose_optimizer(training({"fp16=true"}), torch::kCPU, true).value().bf16_weights);
}

// Predictions the optimizer for a device without an Octavo backend.
Result<OptimizerChoice> elsewhere(const Words& words) {
  return choose_optimizer(training(words), torch::kMPS, false);
}

TEST(OptimizerChoice, PlainWhereThereIsNoBackend) {
  for (const char* name : {"optimizer=adamw", "optimizer=adam", "optimizer=sgd"}) {
    const OptimizerChoice plan = elsewhere({name}).value();
    EXPECT_FALSE(plan.native);
    EXPECT_FALSE(plan.bf16_weights) << "autocast alone";
    EXPECT_THAT(plan.warning, IsEmpty());
  }
  EXPECT_TRUE(elsewhere({"optimizer=adamw", "master_weights=32"}).ok());
  EXPECT_TRUE(elsewhere({"optimizer=adamw", "fp16=true"}).ok());
}

TEST(OptimizerChoice, Errors) {
  const auto error = [](const Words& words) { return elsewhere(words).status().message(); };
  EXPECT_THAT(
      error({"optimizer=adamw_8bit"}),
      AllOf(HasSubstr("training.optimizer: AdamW 8-bit cannot run here: there is no Octavo code for mps"),
            HasSubstr("plain LibTorch has fp32 states alone"), HasSubstr("set optimizer_fallback: adamw")));
  EXPECT_THAT(error({"optimizer=lion"}), HasSubstr("plain LibTorch has no Lion"));
  EXPECT_THAT(error({"optimizer=adamw", "master_weights=24"}), HasSubstr("(master_weights: 32)"));
  EXPECT_THAT(error({"optimizer=adamw_8bit", "optimizer_fallback=adamw_4bit"}),
              HasSubstr("training.optimizer_fallback: AdamW 4-bit cannot run here either"));
  EXPECT_EQ(elsewhere({"optimizer=lion"}).status().code(), StatusCode::unsupported);
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    const std::string name(info.name);
    EXPECT_EQ(elsewhere({"optimizer=" + name}).ok(), plain_has(info.number)) << name;
    EXPECT_EQ(optimizer_text({info.number, octavo::StateFormat::int8}), std::string(info.title) + " 8-bit");
  }
}

TEST(OptimizerChoice, TheFallbackIsUsedWithAWarning) {
  const OptimizerChoice plan = elsewhere({"optimizer=lion_8bit", "optimizer_fallback=adamw"}).value();
  EXPECT_TRUE(plan.name == (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::fp32}));
  EXPECT_FALSE(plan.native);
  EXPECT_THAT(plan.warning, AllOf(HasSubstr("AdamW fp32 is used instead of Lion 8-bit (optimizer_fallback)"),
                                  HasSubstr("no Octavo code for mps")));
}

TEST(OptimizerChoice, FormatsOfGroupsNeedABackend) {
  const std::string groups = "groups=[{params: \"*\", state: 8bit}]";
  EXPECT_TRUE(choose_optimizer(training({"optimizer=adamw", groups}), torch::kCPU, true).ok());
  EXPECT_THAT(elsewhere({"optimizer=adamw", groups}).status().message(),
              AllOf(HasSubstr("training.groups: their state formats cannot be used here"),
                    HasSubstr("remove `state` from the groups")));
  EXPECT_TRUE(elsewhere({"optimizer=adamw", "groups=[{params: \"*\", weight_decay: 0}]"}).ok());
  EXPECT_THAT(elsewhere({"optimizer=adamw_8bit", "optimizer_fallback=adamw", groups}).value().warning,
              HasSubstr("the states of training.groups are fp32, too"));
}

// Defaults that depend on the optimizer's name, such as beta2, are those of the fallback.
TEST(OptimizerChoice, TheFallbackStepsAsIfItHadBeenAskedFor) {
  const TrainingSettings fallen =
      training({"optimizer=lion_8bit", "optimizer_fallback=adamw", "compute_dtype=float32"});
  const TrainingSettings asked = training(kFp32);
  const NamedTensors params = make_parameters(), expected = copies(params);
  const auto optimizer = make_optimizer(
      elsewhere({"optimizer=lion_8bit", "optimizer_fallback=adamw", "compute_dtype=float32"}).value(), fallen,
      params);
  const auto reference = make(asked, expected, /*native=*/false);
  take_steps(*optimizer, params, 1, 3);
  take_steps(*reference, expected, 1, 3);
  EXPECT_TRUE(same_bits(params, expected));
}

TEST(OptimizerChoice, Texts) {
  EXPECT_EQ(optimizer_text({octavo::Algorithm::adamw, octavo::StateFormat::int8}), "AdamW 8-bit");
  EXPECT_EQ(optimizer_text({octavo::Algorithm::adam, octavo::StateFormat::int4_rank1}), "Adam 4-bit-rank1");
  EXPECT_EQ(optimizer_text({octavo::Algorithm::lion, octavo::StateFormat::fp32}), "Lion fp32");
  EXPECT_EQ(optimizer_text({octavo::Algorithm::sgd, octavo::StateFormat::bf16}), "SGD bf16");
}

}  // namespace
}  // namespace octavo_train
