// Tests complete runs with FP8 matmuls, using the CPU's reference implementation: saving and resuming, the
// meaning of a step, and the messages where FP8 is not available.
// SPDX-License-Identifier: MIT
#include "tests/train/fp8_reference.h"
#include "tests/train/run_support.h"
#include "train/run/dry_run.h"

#include <cstring>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kFp8 = {"use_fp8=true", "fp8_amax_history_len=4", "lr_scheduler=constant", "save_steps=3",
                    "max_steps=6"};

std::string scales(const TinyRun& run, std::int64_t step) {
  return read_bytes(run.checkpoint(step) + "/fp8.safetensors");
}

void expect_equal(const TinyRun& run, const TinyRun& other, std::int64_t step, const std::string& what) {
  EXPECT_TRUE(run.bits(step) == other.bits(step)) << what;
  EXPECT_TRUE(scales(run, step) == scales(other, step)) << what;
  EXPECT_EQ(run.state(step)["fp8"], other.state(step)["fp8"]) << what;
}

TEST(Fp8Run, GoesOnToTheBitsOfARunThatWasNotStopped) {
  const Fp8Reference reference;
  const TempFolder folder;
  const Words ways[] = {{"compute_dtype=float32"},
                        {"compute_dtype=bfloat16", "gradient_accumulation_steps=2"},
                        {"compute_dtype=bfloat16", "gradient_checkpointing=true", "optimizer=adamw_4bit"},
                        {"compute_dtype=float16", "fp8_format=e4m3"},
                        {"compute_dtype=bfloat16", "fp8_format=e5m2", "fp8_amax_compute_algo=most_recent"},
                        {"compute_dtype=bfloat16", "offload=host"}};
  for (const Words& way : ways) {
    const std::string number = std::to_string(&way - ways);
    TinyRun whole(folder.path(), "whole" + number), parts(folder.path(), "parts" + number);
    whole.finish(kFp8 + way);
    parts.finish(kFp8 + way + Words{"max_steps=3"});
    expect_equal(parts, whole, 3, way[0]);
    parts.finish(kFp8 + way);
    expect_equal(parts, whole, 6, way[0]);
    EXPECT_THAT(parts.said, Not(HasSubstr("begin anew")));
  }
}

TEST(Fp8Run, OtherRecipesGoOnToo) {
  const Fp8Reference reference;
  const TempFolder folder;
  for (const char* recipe : {"current", "rowwise", "block"}) {
    const Words words = kFp8 + Words{std::string("fp8.recipe=") + recipe};
    TinyRun whole(folder.path(), std::string("whole-") + recipe), parts(folder.path(), recipe);
    whole.finish(words);
    parts.finish(words + Words{"max_steps=3"});
    parts.finish(words);
    EXPECT_TRUE(parts.bits(6) == whole.bits(6)) << recipe;
    EXPECT_THAT(parts.said, Not(HasSubstr("begin anew"))) << recipe;
  }
}

// A recomputed forward pass uses the scales of the first one, and adds nothing to the amax values.
TEST(Fp8Run, ActivationsThatAreComputedAgainHaveTheSameBits) {
  const Fp8Reference reference;
  const TempFolder folder;
  const Words words = kFp8 + Words{"compute_dtype=bfloat16", "gradient_accumulation_steps=2"};
  TinyRun kept(folder.path(), "kept"), again(folder.path(), "again");
  kept.finish(words);
  again.finish(words + Words{"gradient_checkpointing=true"});
  expect_equal(kept, again, 6, "");
}

TEST(Fp8Run, EvaluationsLeaveNoTrace) {
  const Fp8Reference reference;
  const TempFolder folder;
  TinyRun often(folder.path(), "often"), never(folder.path(), "never");
  often.finish(kFp8 + Words{"eval_steps=1"});
  never.finish(kFp8 + Words{"eval_steps=null"});
  expect_equal(often, never, 6, "");
}

// Returns the floats of a tensor in a checkpoint.
std::vector<float> floats_of(const TinyRun& run, std::int64_t step, const std::string& name) {
  const std::string bytes = scales(run, step);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const Json entry = run.header(step, "fp8.safetensors").at(name);
  const auto from = entry["data_offsets"][0].get<std::size_t>(),
             to = entry["data_offsets"][1].get<std::size_t>();
  std::vector<float> out((to - from) / sizeof(float));
  std::memcpy(out.data(), bytes.data() + sizeof header + header + from, to - from);
  return out;
}

TEST(Fp8Run, EveryStepMovesTheHistoryOn) {
  const Fp8Reference reference;
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish(kFp8 + Words{"gradient_accumulation_steps=2"});
  constexpr std::size_t kState = 2 + 4;  // scales, history
  EXPECT_EQ(run.header(3, "fp8.safetensors").at("encoder")["shape"], Json({3, kState}));
  const std::vector<float> early = floats_of(run, 3, "encoder"), late = floats_of(run, 6, "encoder");
  for (std::size_t operand = 0; operand < 3; ++operand) {
    const float* const state = early.data() + operand * kState;
    const float* const after = late.data() + operand * kState;
    EXPECT_EQ(state[2], 0.0F) << "of the step to come";
    for (std::size_t slot = 3; slot < kState; ++slot) {
      EXPECT_GT(state[slot], 0.0F) << operand;
      EXPECT_GT(after[slot], 0.0F) << operand;
    }
    EXPECT_NE(state[0], 1.0F) << "the scale has changed";
  }
  // Three steps later all amax values differ; those of w differ because the weights have changed.
  EXPECT_NE(early, late);
  const std::vector<float> unused = floats_of(run, 6, "embed.weight");
  EXPECT_EQ(unused[0], 1.0F) << "it is looked up, not multiplied";
}

TEST(Fp8Run, TellsItsSettingsAndItsMemory) {
  const Fp8Reference reference;
  const TempFolder folder;
  TinyRun run(folder.path(), "run"), plain(folder.path(), "plain");
  run.finish(kFp8 + Words{"fp8_format=e5m2"});
  plain.finish(kFp8 + Words{"use_fp8=false"});
  EXPECT_FALSE(run.bits(6) == plain.bits(6)) << "products were in FP8";
  EXPECT_THAT(run.said, AllOf(HasSubstr("fp8: format e5m2, recipe delayed (history of 4, max, margin 0)"),
                              HasSubstr("wgrad takes x in e4m3")));
  EXPECT_THAT(run.records("start").at(0)["fp8"].get<std::string>(), HasSubstr("format e5m2"));
  EXPECT_FALSE(plain.records("start").at(0).contains("fp8"));
  // encoder, encoder_v and decoder: 8 * 32 * 32 elements, in both orientations; lm_head: 32 * 256.
  const std::int64_t codes = 2 * (3 * 8 * 32 * 32 + 32 * 256);
  const std::int64_t owned = run.records("memory").at(0)["owners"]["fp8"];
  EXPECT_GE(owned, codes);
  EXPECT_LT(owned, codes + 16384) << "inverse scales, alignment and states are small";
  EXPECT_FALSE(plain.records("memory").at(0)["owners"].contains("fp8"));
  EXPECT_THAT(read_bytes(run.out + "/report.html"), HasSubstr("format e5m2"));
  EXPECT_FALSE(plain.state(6).contains("fp8"));
}

TEST(Fp8Run, ARehearsalTellsItToo) {
  const Fp8Reference reference;
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  const auto config = parse(run.yaml, "test", kFp8);
  ASSERT_TRUE(config.ok()) << config.status().message();
  Recorder console;
  const auto rehearsed = dry_run(*config, 3, console);
  ASSERT_TRUE(rehearsed.ok()) << rehearsed.status().message();
  EXPECT_THAT(console.said, HasSubstr("fp8: format hybrid, recipe delayed"));
  std::string lines;
  for (const std::string& line : rehearsed->lines) lines += line + '\n';
  EXPECT_THAT(lines, HasSubstr("FP8 codes"));
}

// 24 is not a multiple of 16, so these matmuls stay plain.
TEST(Fp8Run, ProductsThatStayPlainAreNamedAndHaveTheirBits) {
  const Fp8Reference reference;
  const TempFolder folder;
  const Words narrow = {"n_embd=24"};
  TinyRun run(folder.path(), "run"), plain(folder.path(), "plain");
  run.finish(kFp8 + narrow);
  plain.finish(kFp8 + narrow + Words{"use_fp8=false"});
  EXPECT_TRUE(run.bits(6) == plain.bits(6));
  EXPECT_THAT(run.said, HasSubstr("stays plain: "));
  EXPECT_FALSE(run.records("fp8").empty());
  EXPECT_EQ(run.records("fp8").at(0)["step"], 1);
}

TEST(Fp8Run, ADeviceWithoutItIsAnErrorOrAWarning) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run"), plain(folder.path(), "plain");
  run.fail(kFp8, "training.fp8: [fp8] device: got cpu, expected a GPU of compute capability 8.9 or later");
  EXPECT_THAT(run.said, HasSubstr("fp8.fallback: bf16"));
  run.finish(kFp8 + Words{"fp8.fallback=bf16"});
  EXPECT_THAT(run.said, HasSubstr("warning: training.fp8: [fp8] device: got cpu"));
  plain.finish(kFp8 + Words{"use_fp8=false"});
  EXPECT_TRUE(run.bits(6) == plain.bits(6));
}

TEST(Fp8Run, OtherSettingsBeginWithScalesOfTheirOwn) {
  const Fp8Reference reference;
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish(kFp8 + Words{"max_steps=3"});
  run.fail(kFp8 + Words{"fp8.recipe=current"}, "training.fp8.recipe: delayed -> current");
  for (const Words& words : {Words{"fp8_amax_history_len=8"}, Words{"fp8.recipe=current", "max_steps=9"}}) {
    run.finish(kFp8 + words + Words{"resume_from_checkpoint=changed"});
    EXPECT_THAT(run.said,
                HasSubstr("fp8: scales and choices begin anew: the checkpoint's FP8 state has other "
                          "settings (fp8: format hybrid, recipe delayed (history of "));
    run.said.clear();
  }
}

TEST(Fp8Run, CanBeTakenUpAndLeft) {
  const Fp8Reference reference;
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  const Words other = {"use_fp8=false"}, changed = {"resume_from_checkpoint=changed"};
  run.finish(kFp8 + other + Words{"max_steps=3"});
  run.fail(kFp8, "training.fp8.enabled: false -> true");
  run.finish(kFp8 + changed);
  EXPECT_THAT(run.said, HasSubstr("fp8: scales and choices begin anew: the checkpoint has no FP8 state"));
  EXPECT_TRUE(run.state(6).contains("fp8"));
  run.finish(kFp8 + other + changed + Words{"max_steps=9"});
  EXPECT_FALSE(run.state(9).contains("fp8"));
  EXPECT_THAT(run.said, HasSubstr("changed since the checkpoint: training.fp8.enabled: true -> false"));
}

}  // namespace
}  // namespace octavo_train
