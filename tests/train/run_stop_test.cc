// Tests runs that are stopped, killed, or fail: what is saved and logged, and that the same command resumes
// to the same bits.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Words kEndless = {"max_steps=100000", "save_steps=null", "eval_steps=null", "lr_scheduler=constant"};

int checkpoints(const TinyRun& run) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(run.out))
    count += entry.path().filename().string().starts_with("checkpoint-") ? 1 : 0;
  return count;
}

TEST(RunStop, KilledAtRandomPointsItEndsWithTheSameBits) {
  const TempFolder folder;
  std::mt19937 chance(7);
  TinyRun run(folder.path(), "0");
  int kills = 0, resumed = 0;
  for (int attempt = 1; kills < 20 && attempt < 400; ++attempt) {
    // The process is killed at points of the run rather than at times, because the machine may be slow. The
    // complete run has 16 lines.
    const std::size_t lines = chance() % 16;
    const auto further = std::chrono::microseconds(chance() % 30'000);
    resumed += fs::exists(run.out + "/latest") ? 1 : 0;
    Child child([&] { return exit_code(run, {}); });
    if (child.wait_until([&] { return run.lines() >= lines; })) std::this_thread::sleep_for(further);
    child.send(SIGKILL);
    const int code = child.wait();
    kills += code == 128 + SIGKILL ? 1 : 0;
    if (code == 128 + SIGKILL) continue;
    ASSERT_EQ(code, 0) << read_bytes(run.out + ".error");
    EXPECT_EQ(run.bits(12), whole_run().bits(12));
    run = TinyRun(folder.path(), std::to_string(attempt));  // killed too late: start again
  }
  EXPECT_EQ(kills, 20);
  EXPECT_GT(resumed, 0);
  run.finish();
  EXPECT_EQ(run.bits(12), whole_run().bits(12));
  EXPECT_EQ(run.state(12)["sampler"], whole_run().state(12)["sampler"]);
  EXPECT_EQ(run.curves(), whole_run().curves());
}

TEST(RunStop, ASignalSavesAndTheSameCommandGoesOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    SCOPED_TRACE(signal);
    const TempFolder folder;
    TinyRun run(folder.path(), "run");
    Child child([&] { return exit_code(run, kEndless); });
    ASSERT_TRUE(child.wait_until([&] { return run.lines() >= 3; }));
    child.send(signal);
    ASSERT_EQ(child.wait(), 128 + signal) << read_bytes(run.out + ".error");
    const Json end = run.records("end").at(0);
    EXPECT_EQ(end["reason"], "interrupted");
    const auto step = end["step"].get<std::int64_t>();
    EXPECT_TRUE(run.has(step));
    EXPECT_EQ(checkpoints(run), 1);
    EXPECT_TRUE(fs::exists(run.out + "/report.html"));

    const std::int64_t target = step + 3;
    const Words more = {"save_steps=null", "eval_steps=null", "lr_scheduler=constant",
                        "max_steps=" + std::to_string(target)};
    run.finish(more);
    EXPECT_THAT(run.said, HasSubstr("changed since the checkpoint: training.max_steps: 100000"));
    if (signal != SIGINT) continue;  // one comparison is enough
    TinyRun straight(folder.path(), "straight");
    straight.finish(more);
    EXPECT_EQ(run.bits(target), straight.bits(target));
  }
}

// A signal arrives before the evaluation of step 6 is done; the next start makes up for it.
TEST(RunStop, AnEvaluationThatASignalCutShortIsMadeUpFor) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.each = [](const std::string& line) {
    if (line.find("6/12  evaluating") != std::string::npos) std::raise(SIGTERM);
  };
  const auto stopped = run.train();
  ASSERT_TRUE(stopped.ok()) << stopped.status().message();
  EXPECT_EQ(stopped->signal, SIGTERM);
  EXPECT_EQ(stopped->step, 6);
  EXPECT_THAT(run.steps("eval"), ElementsAre());
  run.each = {};
  run.finish();
  EXPECT_THAT(run.steps("eval"), ElementsAre(6, 12));
  EXPECT_EQ(run.bits(12), whole_run().bits(12));
  EXPECT_EQ(run.curves(), whole_run().curves());
}

TEST(RunStop, DivergenceStopsTheRunAndKeepsWhatIsGood) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"max_steps=4", "save_steps=2"});
  run.fail({"max_steps=40", "save_steps=3", "learning_rate=1e30", "max_grad_norm=0", "save_total_limit=2",
            "warmup_steps=0", "resume_from_checkpoint=changed"},
           "the last good checkpoint is " + run.checkpoint(4));
  EXPECT_THAT(
      run.said,
      AllOf(
          HasSubstr("diverged: 10 steps in a row"),
          HasSubstr("; try, the most likely first: learning_rate=0.001 (it is 1e+30), max_grad_norm=1.0 ")));
  EXPECT_EQ(run.records("end").back()["reason"], "diverged");
  EXPECT_EQ(run.records("warning").size(), 10U);
  TinyRun again(folder.path(), "again");
  again.finish({"resume_from_checkpoint=" + run.checkpoint(4), "max_steps=8"});
}

// Runs in a child process with a limit on a resource. Returns its exit code.
int limited(TinyRun& run, const Words& words, __rlimit_resource resource, rlim_t limit) {
  Child child([&] {
    const rlimit both{limit, limit};
    ::setrlimit(resource, &both);
    return exit_code(run, words);
  });
  return child.wait();
}

TEST(RunStop, ALogThatCannotGrowLosesNothing) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  ASSERT_EQ(limited(run, kEndless + Words{"logging_steps=1"}, RLIMIT_FSIZE, 300 << 10), 1);
  EXPECT_THAT(read_bytes(run.out + ".error"),
              AllOf(HasSubstr("metrics.jsonl: cannot append"), HasSubstr("is saved in " + run.out)));
  EXPECT_EQ(checkpoints(run), 1);
}

TEST(RunStop, TextThatIsShortenedEndsTheRunWithAnErrorAndACheckpoint) {
  for (const std::string workers : {"0", "2"}) {
    const TempFolder folder;
    const std::string text = folder.at("text.txt");
    write_bytes(text, read_bytes(text_file()));
    TinyRun run(folder.path(), "run");
    run.each = [&](const std::string& line) {
      if (line.starts_with("step 4/")) fs::resize_file(text, 0);
    };
    run.fail({"max_steps=300", "save_steps=null", "eval_steps=null", "data.train=" + text,
              "data.dataloader_num_workers=" + workers},
             text + ": has 0 bytes, expected at least ");
    EXPECT_THAT(run.said, HasSubstr(" is saved in " + run.out + "/checkpoint-"));
    EXPECT_EQ(checkpoints(run), 1);
    EXPECT_EQ(run.records("end").back()["reason"], "failed");
  }
}

TEST(RunStop, AFolderThatIsRemovedOrMovedEndsTheRunWithAnError) {
  for (const bool moved : {false, true}) {
    const TempFolder folder;
    TinyRun run(folder.path(), "run");
    run.each = [&](const std::string& line) {
      if (!line.starts_with("step 6/") || !fs::exists(run.out + "/checkpoint-4")) return;
      if (moved)
        fs::rename(run.out, run.out + "-moved");
      else
        fs::remove_all(run.out);
    };
    run.fail({"max_steps=300", "save_steps=4", "eval_steps=null"},
             "output_dir: " + run.out + " was removed, moved or replaced while the run used it; step ");
    ASSERT_EQ(checkpoints(run), 1);
    const CheckpointRef saved = list_checkpoints(run.out).front();
    EXPECT_LE(saved.step, 8) << "it is noticed at the next line of the log";
    EXPECT_THAT(run.said, HasSubstr("step " + std::to_string(saved.step) + " is saved in " + saved.path));
    EXPECT_FALSE(fs::exists(run.out + "/.lock"));
    EXPECT_EQ(fs::exists(run.out + "-moved/checkpoint-4"), moved);
    run.each = {};
    run.said.clear();
    run.finish({"max_steps=12", "save_steps=4", "eval_steps=null"});
    EXPECT_THAT(run.said, HasSubstr("resuming from " + saved.path));
  }
}

TEST(RunStop, NothingIsWrittenIntoAFolderThatReplacedTheRuns) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.each = [&](const std::string& line) {
    if (!line.starts_with("step 6/") || fs::exists(run.out + "-moved")) return;
    fs::rename(run.out, run.out + "-moved");
    fs::create_directory(run.out);
    write_bytes(run.out + "/notes.txt", "of another process");
  };
  run.fail({"max_steps=300", "save_steps=4", "eval_steps=null"},
           "output_dir: " + run.out + " was removed, moved or replaced while the run used it; ");
  std::vector<std::string> names;
  for (const auto& each : fs::directory_iterator(run.out)) names.push_back(each.path().filename());
  EXPECT_THAT(names, testing::ElementsAre("notes.txt"));
  EXPECT_TRUE(fs::exists(run.out + "-moved/checkpoint-4"));
}

// The codes need 8.6 GB: 262,144 tokens of 8,192 neurons.
TEST(RunStop, OutOfMemorySaysWhatWouldHelp) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  const Words words = {"batch_size=4096", "block_size=64", "mlp_internal_dim_multiplier=256"};
  ASSERT_EQ(limited(run, words, RLIMIT_AS, rlim_t{4} << 30), 1);
  EXPECT_THAT(read_bytes(run.out + ".error"),
              AllOf(HasSubstr("out of memory"), HasSubstr("what would help"),
                    HasSubstr("what would help:\n    per_device_train_batch_size=2048 "
                              "gradient_accumulation_steps=2 ("),
                    HasSubstr(" GB: the same step in micro-batches of 1/2)\n"),
                    HasSubstr("gradient_checkpointing=true (")));
}

// With 65,536 neurons, weights need 25 MB, and the codes for an evaluation's 5,760 tokens 1.5 GB.
TEST(RunStop, OutOfMemoryInAnEvaluationSavesTheStep) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  const Words words = {"mlp_internal_dim_multiplier=2048", "batch_size=1", "eval_steps=2",
                       "max_eval_samples=180", "per_device_eval_batch_size=180"};
  ASSERT_EQ(limited(run, words, RLIMIT_AS, rlim_t{4} << 30), 1);
  EXPECT_THAT(read_bytes(run.out + ".error"),
              AllOf(HasSubstr("out of memory"), HasSubstr("per_device_eval_batch_size=90"),
                    HasSubstr("step 2 is saved in " + run.checkpoint(2))));
  EXPECT_EQ(run.records("end").back()["reason"], "failed");
}

TEST(RunStop, OneProcessPerFolder) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  Child first([&] { return exit_code(run, kEndless); });
  ASSERT_TRUE(first.wait_until([&] { return run.lines() >= 2; }));
  TinyRun second(folder.path(), "run");
  second.fail(kEndless, "another octavo train is using");
  first.send(SIGTERM);
  EXPECT_EQ(first.wait(), 128 + SIGTERM) << read_bytes(run.out + ".error");
}

TEST(RunStop, AUsersConfigIsKept) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  fs::create_directories(run.out);
  const std::string mine = run.out + "/config.yaml";
  write_bytes(mine, "# mine\n" + run.yaml);
  run.finish({"max_steps=2"});
  EXPECT_THAT(run.said, HasSubstr("is now"));
  EXPECT_THAT(read_bytes(run.out + "/config.1.yaml"), StartsWith("# mine\n"));
  const std::string written = read_bytes(mine);
  run.finish({"max_steps=2", "learning_rate=5", "resume_from_checkpoint=changed"});  // nothing to do
  EXPECT_EQ(read_bytes(mine), written);
}

TEST(RunStop, LatestThatIsAFolderStopsNothing) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  fs::create_directories(run.out + "/latest");
  run.finish();
  const std::size_t first = run.said.find("itself is saved");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(run.said.find("itself is saved", first + 1), std::string::npos) << "said once";
  EXPECT_TRUE(run.has(12));
}

TEST(RunStop, ARunThatCannotStartLeavesNothing) {
  const TempFolder folder;
  write_bytes(folder.at("empty.txt"), "");
  write_bytes(folder.at("short.txt"), "short");
  struct Wrong {
    Words words;
    std::vector<std::string> parts;
  };
  const std::vector<Wrong> all = {
      {{"data.train=missing.txt"}, {"missing.txt"}},
      {{"data.train=" + folder.at("empty.txt")}, {"empty.txt", "empty"}},
      {{"data.train=" + folder.at("short.txt")}, {"short.txt", "block_size"}},
      {{"data.train=null"}, {"data.train"}},
      {{"learning_rat=1"}, {"learning_rat", "did you mean", "learning_rate"}},
      {{"num_gpus=2"}, {"num_gpus", "this process is alone"}},
      {{"use_fp8=true"}, {"training.fp8", "got cpu", "fp8.fallback: bf16"}},
      {{"mlp_internal_dim_multiplier=1", "n_embd=33"}, {"mlp_internal_dim_multiplier"}},
  };
  for (const Wrong& wrong : all) {
    TinyRun run(folder.path(), "run");
    for (const std::string& part : wrong.parts) run.fail(wrong.words, part);
    EXPECT_FALSE(fs::exists(run.out)) << wrong.words[0];
  }
}

TEST(RunStop, AGpuAskedForAndAbsent) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "there is a GPU";
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.fail({"device=cuda"}, "training.device: cuda was asked for");
  EXPECT_THAT(run.said, HasSubstr("device: auto or cpu"));
}

TEST(RunStop, AnOutputFolderThatCannotBeWritten) {
  const TempFolder folder;
  write_bytes(folder.at("file"), "");
  TinyRun run(folder.path(), "run");
  run.fail({"output_dir=" + folder.at("file/run")}, folder.at("file"));
}

TEST(RunStop, ACheckpointOfAnotherModelIsRefused) {
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.finish({"max_steps=2"});
  const auto before = run.bits(2);
  run.fail({"n_embd=64"}, "encoder is F32 [2, 32, 128], expected F32 [2, 64, 256]");
  EXPECT_THAT(run.said, HasSubstr("its weights are of another model or precision"));
  run.fail({"compute_dtype=bfloat16"}, "encoder is F32 [2, 32, 128], expected BF16 [2, 32, 128]");
  run.fail({"optimizer=adamw_4bit"}, "its optimizer states are of another kind");
  EXPECT_THAT(run.said, HasSubstr("encoder: 8bit states"));
  run.fail({"resume_from_checkpoint=false"}, "has checkpoints already");
  EXPECT_EQ(run.bits(2), before);
}

}  // namespace
}  // namespace octavo_train
