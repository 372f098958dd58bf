// Tests complete runs with parameter groups, and runs that resume with states of another format or precision.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"

#include "train/formats/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::byte> weight(const TinyRun& run, std::int64_t step, const std::string& name) {
  const auto file = Safetensors::open(run.checkpoint(step) + "/model.safetensors").value();
  const auto bytes = file.find(name)->bytes;
  return {bytes.begin(), bytes.end()};
}

const std::string kGroups =
    "groups=[{params: \"embed*\", freeze: true}, {params: [lm_head, \"encoder*\"], learning_rate: 1e-5, "
    "weight_decay: 0}, {params: decoder, state: 4bit}]";

TEST(RunGroups, EachParameterAsItsGroupSays) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({kGroups});
  EXPECT_THAT(run.said, AllOf(HasSubstr("3 parameters of 24.6k weights: weight_decay 0, learning_rate 1e-05"),
                              HasSubstr("1 parameter of 8.19k weights: 4bit states"),
                              HasSubstr("1 parameter of 8.19k weights: frozen")));
  EXPECT_EQ(weight(run, 4, "embed.weight"), weight(run, 12, "embed.weight"));
  EXPECT_NE(weight(run, 4, "lm_head"), weight(run, 12, "lm_head"));
  const Json states = run.state(12)["optimizer"];
  EXPECT_FALSE(states.contains("embed.weight"));
  EXPECT_EQ(states["decoder"]["format"], "4bit");
  EXPECT_EQ(states["encoder"]["format"], "8bit");
  EXPECT_FALSE(run.header(12, "optimizer.safetensors").contains("embed.weight.moment_0"));
  // 8,192 frozen weights use no memory for gradients.
  const TinyRun& whole = whole_run();
  EXPECT_EQ(whole.records("memory").back()["owners"]["grads"].get<std::int64_t>() -
                run.records("memory").back()["owners"]["grads"].get<std::int64_t>(),
            4 * 8192);
  TinyRun resumed(folder.path(), "resumed");
  resumed.finish({kGroups, "resume_from_checkpoint=" + run.checkpoint(4)});
  EXPECT_EQ(resumed.bits(12), run.bits(12));
  resumed.fail({"groups=[{params: decoder, state: 4bit}]", "max_steps=14"},
               "training.groups: [{params: \"embed*\", freeze: true}");
}

// All of this model's parameters have two dimensions, so the default exempts none of them from weight decay.
TEST(RunGroups, TheDefaultSparesNothingInThisModel) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"no_decay=none", "groups=null"});
  EXPECT_EQ(run.bits(12), whole_run().bits(12));
  TinyRun spared(folder.path(), "spared");
  spared.finish({"no_decay=lm_head"});
  EXPECT_NE(weight(spared, 12, "lm_head"), weight(run, 12, "lm_head"));
  EXPECT_THAT(spared.said, HasSubstr("1 parameter of 8.19k weights: weight_decay 0"));
}

TEST(RunGroups, APatternThatMatchesNothingEndsTheStart) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.fail({"groups=[{params: \"embd*\", freeze: true}]"},
           "training.groups[0].params: no parameter's name matches \"embd*\"; near it are: embed.weight");
  run.fail({"groups=[{params: \"*\", freeze: true}]"}, "every parameter is frozen");
  EXPECT_FALSE(run.has(4));
}

TEST(ConvertStatesRun, AnotherFormatGoesOnWhereItIsAskedFor) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"max_steps=4"});
  const Words other = {"optimizer=adamw_4bit", "resume_from_checkpoint=changed"};
  run.fail(other, "to convert them: --resume convert_states=true");
  Words converted = other;
  converted.emplace_back("convert_states=true");
  run.finish(converted);
  EXPECT_THAT(run.said,
              HasSubstr("changed since the checkpoint: optimizer states: 8bit -> 4bit (5 parameters)"));
  EXPECT_EQ(run.state(12)["optimizer"]["decoder"]["format"], "4bit");
  EXPECT_EQ(run.state(12)["optimizer"]["decoder"]["step"], 12);
  bool recorded = false;
  for (const Json& change : run.records("change"))
    recorded = recorded || change["message"] == "optimizer states: 8bit -> 4bit (5 parameters)";
  EXPECT_TRUE(recorded);
  run.fail({"optimizer=lion_4bit", "resume_from_checkpoint=changed", "convert_states=true", "max_steps=14"},
           "its optimizer states are those of adamw, expected lion");
}

TEST(ConvertStatesRun, AnotherPrecisionGoesOn) {
  const TempFolder folder;
  TinyRun bf16(folder.path(), "bf16");
  bf16.finish({"compute_dtype=bfloat16", "max_steps=4"});
  const std::string from = "resume_from_checkpoint=" + bf16.checkpoint(4);
  TinyRun refused(folder.path(), "refused");
  refused.fail({from}, "convert_states");
  TinyRun fp32(folder.path(), "fp32");
  fp32.finish({from, "convert_states=true"});
  EXPECT_EQ(fp32.header(12, "model.safetensors")["encoder"]["dtype"], "F32");
  EXPECT_FALSE(fp32.header(12, "optimizer.safetensors").contains("encoder.master"));
  EXPECT_THAT(fp32.said, HasSubstr("weights: bfloat16 with a 24-bit master -> float32 (5 parameters)"));
  TinyRun back(folder.path(), "back");
  back.finish({"resume_from_checkpoint=" + fp32.checkpoint(8), "convert_states=true",
               "compute_dtype=bfloat16", "master_weights=32"});
  EXPECT_EQ(back.header(12, "optimizer.safetensors")["encoder.master"]["dtype"], "I16");
}

// If nothing has to be converted, nothing changes.
TEST(ConvertStatesRun, TheSameKindKeepsItsBits) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"resume_from_checkpoint=" + whole_run().checkpoint(4), "convert_states=true"});
  EXPECT_EQ(run.bits(12), whole_run().bits(12));
  EXPECT_THAT(run.said, Not(HasSubstr("optimizer states:")));
}

}  // namespace
}  // namespace octavo_train
