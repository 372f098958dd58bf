// Tests FP8 matmuls on ranks. The amax values of a step are the maxima over all ranks, so two ranks have the
// same scales, and the same bits, as one process that computes their micro-batches. All ranks use rank 0's
// algorithm choices.
// SPDX-License-Identifier: MIT
#include "train/optim/fp8.h"
#include "tests/ranks/whole_run.h"
#include "tests/train/fp8_reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo_train::ranks {
namespace {

using octavo_train::Fp8;
using octavo_train::Fp8Choice;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

RANKS_TEST(two_ranks_train_in_fp8_to_the_bits_of_one_process, 2) {
  const octavo_train::Fp8Reference reference;
  int number = 0;
  for (const char* parallel : {"ddp", "zero2"}) {
    const Words words = {"data.train=" + process_group.broadcast_text(octavo_train::text_file()),
                         "use_fp8=true",
                         "fp8_amax_history_len=4",
                         "max_steps=10",
                         "eval_steps=null",
                         "save_steps=null",
                         "max_grad_norm=0"};
    WholeRun run("fp8-" + std::to_string(number));
    run.yaml = run.text_yaml;
    EXPECT_EQ(run.go(&process_group, nullptr, words + Words{std::string("parallel=") + parallel}), "");
    EXPECT_TRUE(same_on_ranks(process_group, bytes_of(run.parameters))) << parallel;
    if (!process_group.leads()) continue;
    WholeRun one("fp8-alone-" + std::to_string(number++));
    one.yaml = one.text_yaml;
    EXPECT_EQ(one.go(nullptr, nullptr, words + Words{"gradient_accumulation_steps=2"}), "");
    EXPECT_TRUE(run.bits(10) == one.bits(10)) << parallel;
    EXPECT_TRUE(octavo_train::read_bytes(run.checkpoint(10) + "/fp8.safetensors") ==
                octavo_train::read_bytes(one.checkpoint(10) + "/fp8.safetensors"))
        << parallel;
  }
}

// Rank 1 has larger amax values of x, rank 0 of dy.
RANKS_TEST(maxima_are_those_of_all_ranks, 2, 3) {
  const octavo_train::Fp8Reference reference;
  octavo_train::Fp8Settings settings;
  settings.enabled = true;
  settings.recipe.amax_history_len = 2;
  Fp8 fp8(settings, {{"weight", torch::ones({16, 32})}, {"other", torch::ones({32, 16})}});
  const float rank = static_cast<float>(process_group.rank());
  fp8.set_amaxes(torch::tensor({1.0F + rank, 2.0F, 3.0F - rank, 0.0F, 0.0F, 0.0F}));
  octavo_train::reduce_maxima(process_group, fp8);
  const float most = static_cast<float>(process_group.ranks());
  EXPECT_TRUE(torch::equal(fp8.amaxes(), torch::tensor({most, 2.0F, 3.0F, 0.0F, 0.0F, 0.0F})));
}

RANKS_TEST(all_ranks_have_the_choices_of_the_first, 2, 3) {
  const octavo_train::Fp8Reference reference;
  octavo_train::Fp8Settings settings;
  settings.enabled = true;
  Fp8 fp8(settings, {{"weight", torch::ones({16, 32})}});
  const std::string shape = "1 64 16 32 0 0 1 0 0 0 ", times = " 9 9 9 5 5 5 1 1 1 2 2 2 1";
  // Rank 1 has another shape, and another choice for rank 0's shape.
  if (process_group.leads())
    fp8.adopt({shape + "7" + times});
  else
    fp8.adopt({shape + "1" + times, "1 128 16 32 0 0 1 0 0 0 2" + times});
  octavo_train::share_choices(process_group, fp8);
  const std::vector<std::string> mine = fp8.decisions();
  EXPECT_EQ(mine.size(), process_group.leads() ? 1U : 2U);
  EXPECT_EQ(mine.at(0), shape + "7" + times);
}

RANKS_TEST(one_device_without_fp8_means_none_for_all, 2, 3) {
  Fp8Choice plan{true, {}};
  octavo_train::agree_on_fp8(process_group, plan);
  EXPECT_TRUE(plan.enabled);
  if (process_group.rank() == 1) plan = {false, "no units"};
  octavo_train::agree_on_fp8(process_group, plan);
  EXPECT_FALSE(plan.enabled);
  EXPECT_THAT(plan.warning,
              testing::HasSubstr(process_group.rank() == 1 ? "no units"
                                                           : "at least one rank's GPU does not support it"));
}

}  // namespace
}  // namespace octavo_train::ranks
