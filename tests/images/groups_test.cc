// Tests parameter groups with a model that has norms and biases.
// SPDX-License-Identifier: MIT
#include "tests/images/image_run.h"

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Images, BiasesAndNormsDoNotDecay) {
  const TempFolder folder;
  const auto trained = [&](const std::string& name, const Words& more) {
    ImageRun run(folder, name);
    Words words = {"max_steps=1", "eval_steps=null"};
    words.insert(words.end(), more.begin(), more.end());
    run.finish(words);
    return run;
  };
  const ImageRun without = trained("without", {"weight_decay=0"}),
                 with = trained("with", {"weight_decay=0.5"}),
                 all = trained("all", {"weight_decay=0.5", "no_decay=none"}),
                 chosen = trained("chosen", {"weight_decay=0.5", "no_decay=[head, \"*.norm.*\"]"});
  const auto decays = [&](const ImageRun& run, const std::string& name) {
    return run.tensor(1, name) != without.tensor(1, name);
  };
  for (const char* matrix : {"block0.conv.weight", "head"}) EXPECT_TRUE(decays(with, matrix)) << matrix;
  EXPECT_FALSE(decays(with, "block1.norm.weight"));
  EXPECT_TRUE(decays(all, "block1.norm.weight"));
  EXPECT_FALSE(decays(chosen, "head"));
  EXPECT_FALSE(decays(chosen, "block1.norm.weight"));
  EXPECT_TRUE(decays(chosen, "block1.conv.weight"));
}

TEST(Images, GroupsDiffer) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  const Words groups = {"width=32",  // block1.conv has 9,216 weights; below 4,096 its states would be fp32
                        "groups=[{params: \"block0*\", freeze: true}, {params: \"block1*\", state: 4bit}, "
                        "{params: head, learning_rate: 1.0e-1}]"};
  run.finish(groups);
  ImageRun plain(folder, "plain");
  plain.finish({"width=32"});
  for (const char* frozen : {"block0.conv.weight", "block0.norm.weight"}) {
    EXPECT_EQ(run.tensor(4, frozen), run.tensor(12, frozen)) << frozen;
    EXPECT_NE(plain.tensor(4, frozen), plain.tensor(12, frozen)) << frozen;
  }
  EXPECT_EQ(run.counter(12, "block0.norm"), 12) << "statistics are no parameters";
  EXPECT_NE(run.tensor(4, "head"), plain.tensor(4, "head"));
  const std::string states = run.header(12, "optimizer.safetensors").dump();
  EXPECT_THAT(states, AllOf(HasSubstr("block1.conv.weight"), Not(HasSubstr("block0."))));
  const auto state_bytes = [](const ImageRun& of) {
    return of.records("memory").at(0)["owners"]["states"].get<std::int64_t>();
  };
  EXPECT_LT(state_bytes(run), state_bytes(plain) * 2 / 3) << "4 bits instead of 8 for most";
  EXPECT_THAT(run.said, HasSubstr("frozen"));
  ImageRun again(folder, "again");
  Words resumed = groups;
  resumed.push_back("resume_from_checkpoint=" + run.checkpoint(8));
  again.finish(resumed);
  EXPECT_EQ(again.bits(12), run.bits(12));
  run.fail({"groups=[{params: \"blok0*\", freeze: true}]", "output_dir=" + folder.at("other")}, "block0");
}

}  // namespace
}  // namespace octavo_train
