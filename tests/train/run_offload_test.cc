// Tests complete runs with optimizer states in host memory: every file of a checkpoint has the same bytes as
// without offloading, and a run resumes independently of where its states were.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"
#include "train/run/dry_run.h"

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Words kBf16 = {"compute_dtype=bfloat16", "gradient_accumulation_steps=2", "max_steps=6", "save_steps=3",
                     "eval_steps=3"};

Words with(const Words& words, const Words& more) {
  Words out = words;
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST(OffloadRun, HasTheBytesOfARunWithout) {
  const TempFolder folder;
  TinyRun plain(folder.path(), "plain");
  plain.finish(kBf16);
  const Words ways[] = {{"offload=host"},
                        {"offload=host", "offload_gradients=true"},
                        {"offload=stream", "offload_ratio=0.5"},
                        {"offload=stream", "offload_gradients=true"}};
  for (const Words& way : ways) {
    TinyRun run(folder.path(), "run" + std::to_string(&way - ways));
    run.finish(with(kBf16, way));
    EXPECT_EQ(run.bits(3), plain.bits(3)) << way[0];
    EXPECT_EQ(run.bits(6), plain.bits(6)) << way[0];
    EXPECT_EQ(run.state(6), plain.state(6)) << way[0];
    EXPECT_EQ(run.curves(), plain.curves()) << way[0];
    const Json start = run.records("start").at(0), memory = run.records("memory").at(0);
    EXPECT_EQ(start["offload"], way[0].substr(way[0].find('=') + 1));
    EXPECT_EQ(start["state_bytes"], plain.records("start").at(0)["state_bytes"]);
    EXPECT_GT(start["host_state_bytes"], 0);
    EXPECT_EQ(memory["host"]["states"].get<int>() + memory["host"]["master"].get<int>(),
              start["host_state_bytes"]);
    EXPECT_THAT(run.said, AllOf(HasSubstr("of states and master bits are in host memory"),
                                HasSubstr("in host memory: ")));
    EXPECT_THAT(read_bytes(run.out + "/report.html"), HasSubstr("in host memory"));
  }
  EXPECT_FALSE(plain.records("memory").at(0).contains("host"));
}

// With recomputed activations, gradients come in parts.
TEST(OffloadRun, WithActivationsThatAreComputedAgain) {
  const TempFolder folder;
  for (const char* type : {"compute_dtype=float32", "compute_dtype=bfloat16"}) {
    const Words words = with(kBf16, {"gradient_checkpointing=true", "max_steps=3", type});
    TinyRun plain(folder.path(), std::string("plain") + type), run(folder.path(), std::string("run") + type);
    plain.finish(words);
    run.finish(with(words, {"offload=host", "offload_gradients=true"}));
    EXPECT_EQ(run.bits(3), plain.bits(3)) << type;
  }
}

TEST(OffloadRun, GoesOnWhereverStatesLie) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish(with(kBf16, {"offload=host", "offload_gradients=true", "max_steps=3", "lr_scheduler=constant"}));
  TinyRun whole(folder.path(), "whole");
  whole.finish(with(kBf16, {"lr_scheduler=constant"}));
  EXPECT_EQ(run.bits(3), whole.bits(3));
  run.finish(with(kBf16, {"offload=stream", "lr_scheduler=constant"}));
  EXPECT_EQ(run.bits(6), whole.bits(6)) << "a change of residence needs no --resume";
}

TEST(OffloadRun, ARehearsalTellsWhatIsWhere) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  const auto config = parse(run.yaml, "test", with(kBf16, {"offload=stream", "offload_gradients=true"}));
  ASSERT_TRUE(config.ok()) << config.status().message();
  Recorder console;
  const auto rehearsed = dry_run(*config, 3, console);
  ASSERT_TRUE(rehearsed.ok()) << rehearsed.status().message();
  std::string said;
  for (const std::string& line : rehearsed->lines) said += line + '\n';
  EXPECT_THAT(said, HasSubstr("in host memory: "));
}

}  // namespace
}  // namespace octavo_train
