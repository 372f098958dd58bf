// Tests how ranks start a run together: an error on one rank is an error on all, messages name the
// differences, and only rank 0 writes.
// SPDX-License-Identifier: MIT
#include "tests/ranks/ranks.h"
#include "tests/train/run_support.h"
#include "train/console/console.h"
#include "train/distributed/agreement.h"
#include "train/run/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>

namespace octavo_train::ranks {
namespace {

using octavo_train::TinyRun;
using octavo_train::Words;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& process_group) {
  return {&process_group, [](ProcessGroup*) {}};
}

// A run with the same folder on all ranks. The training text is rank 0's.
struct SharedRun : TinyRun {
  SharedRun(ProcessGroup& process_group, const std::string& name)
      : TinyRun(scratch(), name + std::to_string(process_group.ranks())),
        text(process_group.broadcast_text(octavo_train::text_file())) {}

  Result<octavo_train::Outcome> go(ProcessGroup& process_group, const Words& words) {
    return go(borrowed(process_group), words);
  }
  // Runs in this process alone.
  Result<octavo_train::Outcome> go_alone(const Words& words) { return go(ProcessGroup::alone(), words); }

  Result<octavo_train::Outcome> go(const std::shared_ptr<ProcessGroup>& process_group, Words words) {
    words.insert(words.begin(), "data.train=" + text);
    const auto config = octavo_train::parse(yaml, "run.yaml", words);
    EXPECT_TRUE(config.ok()) << config.status().message();
    octavo_train::Recorder recorder;
    auto outcome = octavo_train::train(*config, recorder, process_group);
    said = recorder.said;
    return outcome;
  }

  std::string text;
};

}  // namespace

RANKS_TEST(an_error_of_one_rank_is_an_error_of_all, 2, 3) {
  EXPECT_TRUE(octavo_train::run_on_all_ranks(process_group, [] { return Status(); }).ok());
  const auto fails_on_last = [&](const std::function<Status()>& how) {
    return octavo_train::run_on_all_ranks(
        process_group, [&] { return process_group.rank() + 1 == process_group.ranks() ? how() : Status(); });
  };
  const std::string last = "rank " + std::to_string(process_group.ranks() - 1) + ": ";
  const Status told = fails_on_last([] { return Status::invalid("no file"); });
  EXPECT_EQ(told.message(), last + "no file");
  EXPECT_EQ(told.code(), StatusCode::invalid_argument);
  EXPECT_EQ(fails_on_last([]() -> Status { throw std::runtime_error("thrown"); }).message(), last + "thrown");
  EXPECT_EQ(fails_on_last([]() -> Status { TORCH_CHECK(false, "of torch"); }).message(),
            last + "LibTorch: of torch");
  EXPECT_EQ(fails_on_last([]() -> Status { throw std::bad_alloc(); }).message(),
            last + "out of memory on the host");
}

RANKS_TEST(what_differs_on_a_rank_is_named, 2, 3) {
  const auto compare = [&](const std::string& first, const std::string& last) {
    const bool is_last = process_group.rank() + 1 == process_group.ranks();
    const std::vector<octavo_train::NamedText> facts = {{"version", "1"}, {"config", is_last ? last : first}};
    return octavo_train::check_equal_across_ranks(process_group, facts).message();
  };
  EXPECT_EQ(compare("a: 1\n", "a: 1\n"), "");
  const std::string rank = "rank " + std::to_string(process_group.ranks() - 1);
  EXPECT_EQ(compare("a: 1\n  b: 2\n", "a: 1\n  b: 3\n"),
            rank + "'s config differs from rank 0's: " + rank +
                " has b: 3, rank 0 has b: 2. Start all ranks with the same config.");
  EXPECT_THAT(compare("a: 1\n", "a: 1\nb: 3\n"), HasSubstr("has b: 3, rank 0 has nothing. "));
}

RANKS_TEST(buffers_that_passes_change_become_the_mean, 2, 3) {
  const auto rank = static_cast<float>(process_group.rank());
  const torch::Tensor mean = torch::zeros({2, 2}), same = torch::full({3}, 0.1F),
                      now_and_then = torch::ones({2});
  const torch::Tensor count = torch::zeros({}, torch::kInt64);
  octavo_train::BufferSnapshot buffers(
      {{"mean", mean}, {"same", same}, {"some", now_and_then}, {"count", count}});
  buffers.save();
  mean.fill_(rank);
  count.fill_(process_group.rank());
  if (process_group.leads()) now_and_then.fill_(1 + rank + static_cast<float>(process_group.ranks()));
  process_group.take_traffic();
  buffers.average_across_ranks(process_group);
  EXPECT_TRUE(torch::equal(mean, torch::full({2, 2}, static_cast<float>(process_group.ranks() - 1) / 2)));
  EXPECT_TRUE(torch::equal(same, torch::full({3}, 0.1F)));
  EXPECT_TRUE(torch::allclose(now_and_then, torch::full({2}, 2.0F))) << "changed on one rank alone";
  EXPECT_EQ(count.item<std::int64_t>(), process_group.ranks() - 1);
  buffers.save();
  buffers.average_across_ranks(process_group);
  EXPECT_TRUE(torch::equal(mean, torch::full({2, 2}, static_cast<float>(process_group.ranks() - 1) / 2)));
}

RANKS_TEST(a_config_or_data_of_its_own_ends_the_run_before_it_begins, 2) {
  SharedRun run(process_group, "differing");
  const auto other =
      run.go(process_group, {process_group.leads() ? "learning_rate=1e-3" : "learning_rate=2e-3"});
  EXPECT_THAT(other.status().message(),
              AllOf(StartsWith("rank 1's config differs from rank 0's: rank 1 has learning_rate: "),
                    HasSubstr("0.002")));
  SharedRun mine(process_group, "data-of-its-own");
  if (!process_group.leads())
    mine.text = octavo_train::text_file() + ".txt",
    octavo_train::write_bytes(mine.text, std::string(50'000, 'a'));
  EXPECT_THAT(mine.go(process_group, {}).status().message(),
              StartsWith("rank 1's data differs from rank 0's: rank 1 has "));
  SharedRun missing(process_group, "missing");
  if (!process_group.leads()) missing.text = "missing.txt";
  EXPECT_THAT(missing.go(process_group, {}).status().message(),
              AllOf(StartsWith("rank 1: "), HasSubstr("missing.txt")));
}

RANKS_TEST(rank_0_alone_writes_and_speaks, 2) {
  SharedRun run(process_group, "speaks");
  const auto outcome = run.go(process_group, {"gradient_accumulation_steps=2"});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->step, 12);
  if (!process_group.leads()) {
    EXPECT_EQ(run.said, "");
    return;
  }
  EXPECT_THAT(run.said, AllOf(HasSubstr("2 ranks (ddp), with 2 micro-batches of 2 samples each in a step"),
                              HasSubstr(" on 2 ranks")));
  const octavo_train::Json start = run.records("start").at(0);
  EXPECT_EQ(start["ranks"], 2);
  EXPECT_EQ(start["parallel"], "ddp");
  EXPECT_EQ(start["batch_tokens"], 2 * 2 * 2 * 32);
  EXPECT_EQ(run.records("start").size(), 1U);
  for (const octavo_train::Json& record : run.records("train")) {
    EXPECT_GT(record["comm_bytes"], 0);
    EXPECT_GE(record["comm_seconds"], record["comm_waited"]);
  }
  EXPECT_GT(run.records("end").at(0)["comm_bytes"], 0);
  EXPECT_EQ(run.state(12)["ranks"], 2);
  EXPECT_EQ(run.state(12)["batches_per_step"], 4);
  EXPECT_TRUE(run.records("memory").at(0)["owners"].contains("communication"));
  EXPECT_THAT(octavo_train::read_bytes(run.out + "/report.html"),
              AllOf(HasSubstr("Ranks"), HasSubstr("Communication")));
}

// The prediction uses the code that makes buckets, chunks and slots.
RANKS_TEST(memory_is_planned, 2) {
  for (const char* parallel : {"parallel=ddp", "parallel=zero1", "parallel=zero2"}) {
    SharedRun run(process_group, std::string("planned-") + parallel);
    const auto outcome = run.go(process_group, {parallel, "max_steps=3", "gradient_accumulation_steps=2"});
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    if (!process_group.leads()) continue;
    const octavo_train::Json pair = run.records("end").at(0)["plan"];
    const double ratio = pair["peak"].get<double>() / pair["measured_peak"].get<double>();
    // On the CPU, ranks copy a bucket before they scatter its sums (ProcessGroup::reduce_scatter); on a GPU
    // they do not.
    const bool copied = std::string(parallel) == "parallel=zero2";
    EXPECT_GT(ratio, copied ? 0.85 : 0.97) << parallel;
    EXPECT_LT(ratio, 1.03) << parallel;
  }
}

// Each rank's states are in host memory. The saved bytes are the same.
RANKS_TEST(offloaded_states_of_ranks, 2) {
  const Words words = {"compute_dtype=bfloat16", "gradient_accumulation_steps=2", "max_steps=4",
                       "save_steps=4", "eval_steps=4"};
  const auto go = [&](const std::string& name, const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    SharedRun run(process_group, name);
    const auto outcome = run.go(process_group, all);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return run;
  };
  for (const char* parallel : {"parallel=ddp", "parallel=zero1", "parallel=zero2"}) {
    const SharedRun plain = go(std::string("plain") + parallel, {parallel});
    const bool ddp = std::string(parallel) == "parallel=ddp";
    const SharedRun run = go(std::string("offloaded") + parallel,
                             {parallel, ddp ? "offload=host" : "offload=stream", "offload_gradients=true"});
    if (!process_group.leads()) continue;
    EXPECT_EQ(run.bits(4), plain.bits(4)) << parallel;
    EXPECT_GT(run.records("start").at(0)["host_state_bytes"], 0) << parallel;
    EXPECT_THAT(run.said,
                HasSubstr("offload_gradients is without effect: ranks sum gradients on their devices"));
  }
  SharedRun lamb(process_group, "lamb");
  EXPECT_THAT(
      lamb.go(process_group, {"optimizer=lamb_8bit", "parallel=zero1", "offload=host"}).status().message(),
      HasSubstr("training.offload: LAMB 8-bit measures whole parameters, of which ranks have parts here"));
}

// The bytes that a checkpoint sends to rank 0 are not counted as a step's.
RANKS_TEST(traffic_is_that_of_steps, 2) {
  SharedRun run(process_group, "traffic");
  const auto outcome = run.go(process_group, {"parallel=zero1", "save_steps=5", "logging_steps=2"});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  if (!process_group.leads()) return;
  const std::vector<octavo_train::Json> records = run.records("train");
  ASSERT_GT(records.size(), 4U);
  for (const octavo_train::Json& record : records)
    EXPECT_EQ(record["comm_bytes"], records.front()["comm_bytes"]) << record["step"];
}

// A step has four batches: first two ranks with two micro-batches each, then one process with four, then two
// ranks again.
RANKS_TEST(a_run_goes_on_with_another_number_of_ranks, 2) {
  SharedRun whole(process_group, "stays"), run(process_group, "changes");
  const Words passes = {"gradient_accumulation_steps=2"};
  const auto with = [&](const std::string& steps) {
    return Words{passes[0], "max_steps=" + steps, "warmup_steps=0", "lr_scheduler=constant"};
  };
  ASSERT_TRUE(whole.go(process_group, with("12")).ok());
  ASSERT_TRUE(run.go(process_group, with("4")).ok());
  if (process_group.leads()) {
    const auto outcome = run.go_alone(with("8"));
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    EXPECT_THAT(run.said, HasSubstr("gradient_accumulation_steps"));
    EXPECT_EQ(run.state(8)["batches_per_step"], 4);
    EXPECT_EQ(run.state(8)["ranks"], 1);
  }
  EXPECT_TRUE(process_group.first_error(Status()).ok());
  const auto back = run.go(process_group, with("12"));
  ASSERT_TRUE(back.ok()) << back.status().message();
  if (!process_group.leads()) return;
  EXPECT_EQ(run.state(12)["sampler"], whole.state(12)["sampler"]);
  const double one = run.records("eval").back()["loss"], other = whole.records("eval").back()["loss"];
  EXPECT_NEAR(one, other, 1e-3 * other);
}

RANKS_TEST(ranks_that_cannot_divide_a_step_are_told_what_can, 3) {
  SharedRun run(process_group, "indivisible");
  if (process_group.leads()) {
    const auto outcome = run.go_alone({"gradient_accumulation_steps=4", "max_steps=2"});
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  }
  EXPECT_TRUE(process_group.first_error(Status()).ok());
  const auto outcome = run.go(process_group, {"gradient_accumulation_steps=4"});
  EXPECT_THAT(outcome.status().message(), AllOf(HasSubstr("its steps have 4 batches of 2 samples"),
                                                HasSubstr("3 ranks"), HasSubstr("1, 2, 4 or 8")));
}

TEST(RankConsole, OthersOnlyWarn) {
  octavo_train::Recorder recorder;
  octavo_train::RankConsole zero(recorder, 0), two(recorder, 2);
  two.note("hello"), two.progress("step 1"), two.note("warning: hot");
  zero.note("hello"), zero.progress("step 1");
  EXPECT_EQ(recorder.said, "rank 2: warning: hot\nhello\nstep 1\n");
}

}  // namespace octavo_train::ranks
