// Tests the task `images` with complete runs. It is the larger example of docs/guides/add_a_task.md: a task
// of several files, with a list of tasks (list.h) that replaces the trainer's.
// SPDX-License-Identifier: MIT
#include "tests/images/image_run.h"
#include "tests/images/task.h"
#include "tests/train/shares.h"
#include "train/config/task_config.h"
#include "train/report/report.h"
#include "train/run/dry_run.h"

#include <torch/torch.h>

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Returns a run that was not interrupted.
const ImageRun& whole() {
  static const TempFolder folder;
  static const ImageRun run = [] {
    ImageRun made(folder, "whole");
    made.finish();
    return made;
  }();
  return run;
}

Settings settings(const Words& words = {}) {
  auto config = parse(kTask, "run.yaml", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config->settings;
}

TEST(Images, LearnsToTellThemApart) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  run.finish({"max_steps=60", "eval_steps=60", "save_steps=null", "noise=0.3"});
  const Json last = run.records("eval").at(0);
  EXPECT_GT(last["accuracy"].get<double>(), 0.6) << "chance is 0.25";
  EXPECT_LT(last["loss"].get<double>(), 1.1) << "ln 4 is 1.39";
}

TEST(Images, SharesOfAnEvaluationAddUp) {
  const Settings all = settings({"validation_images=29", "per_device_eval_batch_size=2"});
  ImageTask task;
  EXPECT_TRUE(task.open({all, {}, nullptr}).ok());
  const TaskModel model = task.build(all);
  expect_shares_add_up(task);
}

TEST(Images, LogsTwoMetricsItsUnitAndAPreview) {
  const ImageRun& run = whole();
  EXPECT_EQ(run.records("start").at(0)["task"], "images");
  EXPECT_EQ(run.records("start").at(0)["unit"], "images");
  EXPECT_EQ(run.records("start").at(0)["batch_images"], 8);
  EXPECT_THAT(run.steps("eval"), ElementsAre(6, 12));
  const Json eval = run.records("eval").at(1);
  EXPECT_EQ(eval["better"], Json::parse(R"({"loss": "lower", "accuracy": "higher"})"));
  EXPECT_TRUE(eval["accuracy"].is_number());
  EXPECT_EQ(eval["images"], 64);
  EXPECT_EQ(run.records("train").back()["images"], 96);
  EXPECT_TRUE(run.records("train").back()["images_per_second"].is_number());
  EXPECT_THAT(run.records("sample").at(0)["text"].get<std::string>(), HasSubstr("# "));
  EXPECT_THAT(run.said, AllOf(HasSubstr(" img/s"), HasSubstr(", accuracy 0."), HasSubstr("an image:\nclass"),
                              HasSubstr("256 images to train on, 64 to evaluate on, of 4 classes")));
}

TEST(Images, ItsReportHasBothMetrics) {
  const std::string folder = whole().out;
  const Json data = report_data({&folder, 1}).value();
  const Json& run = data.at("runs").at(0);
  EXPECT_FALSE(run.at("curves").at("eval").at("x").empty());
  ASSERT_EQ(run.at("metrics").size(), 1u);
  EXPECT_EQ(run.at("metrics")[0].at("name"), "accuracy");
  EXPECT_EQ(run.at("metrics")[0].at("higher_is_better"), true);
  EXPECT_EQ(run.at("unit"), "images");
  EXPECT_THAT(run.at("start").at("data").get<std::string>(), HasSubstr("256 images to train"));
  const std::string page = read_bytes(folder + "/report.html");
  for (const char* part : {"\"name\":\"accuracy\"", "\"unit\":\"images\"", "256 images to train", "# # "})
    EXPECT_THAT(page, HasSubstr(part));
}

TEST(Images, StatisticsAreSavedAndResumingIsTheSameRun) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  run.finish({"resume_from_checkpoint=" + whole().checkpoint(4)});
  EXPECT_EQ(run.bits(12), whole().bits(12));
  const Json header = whole().header(12, "model.safetensors");
  for (const char* each : {"block0.norm.running_mean", "block1.norm.running_var"})
    EXPECT_EQ(header.at(each)["dtype"], "F32") << each;
  EXPECT_EQ(whole().counter(4, "block0.norm"), 4);
  EXPECT_EQ(whole().counter(12, "block1.norm"), 12);
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());  // so resuming is bit-exact on a GPU too
}

TEST(Images, NeitherWorkersNorRecomputedBlocksChangeABit) {
  const TempFolder folder;
  ImageRun workers(folder, "workers");
  workers.finish({"dataloader_num_workers=2"});
  EXPECT_EQ(workers.bits(12), whole().bits(12));
  ImageRun thrifty(folder, "thrifty");
  thrifty.finish({"gradient_checkpointing=true"});
  EXPECT_EQ(thrifty.bits(12), whole().bits(12));
  EXPECT_EQ(thrifty.counter(12, "block1.norm"), 12) << "statistics are updated once a step";
  const auto activations = [](const ImageRun& run) {
    return run.records("memory").at(0)["owners"]["activations"].get<std::int64_t>();
  };
  EXPECT_NE(activations(thrifty), activations(whole())) << "the blocks ran again";
}

TEST(Images, InBfloat16VectorsAndStatisticsStayInFp32) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  run.finish({"compute_dtype=bfloat16"});
  const Json header = run.header(12, "model.safetensors");
  for (const char* each : {"block0.conv.weight", "head"}) EXPECT_EQ(header.at(each)["dtype"], "BF16") << each;
  for (const char* each : {"bias", "block0.norm.weight", "block1.norm.bias", "block1.norm.running_mean",
                           "block1.norm.running_var"})
    EXPECT_EQ(header.at(each)["dtype"], "F32") << each;
  EXPECT_EQ(header.at("block0.norm.num_batches_tracked")["dtype"], "I64");
  ImageRun again(folder, "again");
  again.finish({"compute_dtype=bfloat16", "resume_from_checkpoint=" + run.checkpoint(8)});
  EXPECT_EQ(again.bits(12), run.bits(12));
}

// Vectors are fp32 in both precisions. Running statistics are buffers, so their type does not change either.
TEST(Images, GoesOnInAnotherPrecisionWhereItIsAskedTo) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  const Words bf16 = {"compute_dtype=bfloat16", "optimizer=adamw",
                      "resume_from_checkpoint=" + whole().checkpoint(8)};
  run.fail(bf16, "to convert them: --resume convert_states=true");
  Words converted = bf16;
  converted.emplace_back("convert_states=true");
  run.finish(converted);
  EXPECT_THAT(run.said, HasSubstr("weights: float32 -> bfloat16 with a 24-bit master (3 parameters)"));
  const Json header = run.header(12, "model.safetensors");
  EXPECT_EQ(header.at("block0.conv.weight")["dtype"], "BF16");
  EXPECT_EQ(header.at("block0.norm.running_var")["dtype"], "F32");
  EXPECT_EQ(run.counter(12, "block1.norm"), 12);
}

TEST(Images, TheBestByAccuracyIsTheHighest) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  run.finish({"save_best=accuracy", "max_steps=10", "eval_steps=1", "save_steps=null", "learning_rate=0.3",
              "lr_scheduler=constant"});
  double best = 0, worst = 1;
  std::int64_t first = 0;
  for (const Json& record : run.records("eval")) {
    const auto accuracy = record["accuracy"].get<double>();
    if (accuracy > best) first = record["step"];
    best = std::max(best, accuracy);
    worst = std::min(worst, accuracy);
  }
  ASSERT_LT(worst, best);
  EXPECT_EQ(std::filesystem::read_symlink(run.out + "/best"), "checkpoint-" + std::to_string(first));
  EXPECT_THAT(run.said, HasSubstr(", the best accuracy so far"));
  run.fail({"save_best=wer"}, "loss or accuracy");
}

TEST(Images, AWarmStartTakesStatisticsToo) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  run.finish({"init_from=" + whole().checkpoint(12), "max_steps=1", "eval_steps=null"});
  EXPECT_EQ(run.counter(1, "block0.norm"), 13);
  const auto tensors = run.header(1, "model.safetensors").size() - 1;  // without the metadata entry
  EXPECT_EQ(run.records("init").at(0)["used"], tensors);
}

TEST(Images, ARehearsalCountsImages) {
  const TempFolder folder;
  const ImageRun run(folder, "run");
  Recorder recorder;
  const auto done = dry_run(*parse(run.yaml, "run.yaml"), 3, recorder);
  ASSERT_TRUE(done.ok()) << done.status().message();
  const std::string said = testing::PrintToString(done->lines);
  EXPECT_THAT(said,
              AllOf(HasSubstr("with 8 images of 16 x 16 pixels in a micro-batch"), HasSubstr(" img/s, ")));
}

TEST(Images, OtherImagesAreNotTheSameRun) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  run.finish({"max_steps=4"});
  run.fail({"max_steps=8", "generator_seed=2"},
           "data.generator_seed: the images were those of 1, and are those of 2");
}

std::string error_of(const std::string& yaml, const Words& words = {}) {
  const auto config = parse(yaml, "run.yaml", words);
  return config.ok() ? "" : config.status().message();
}

TEST(Images, ErrorsOfItsKeysHavePlaces) {
  const std::string begin = "model:\n  name: convnet\n";
  EXPECT_THAT(error_of(begin + "  width: wide\n"), HasSubstr("run.yaml:3:"));
  EXPECT_THAT(error_of(begin + "  width: wide\n"), HasSubstr("model.width: got wide, expected an integer"));
  EXPECT_THAT(error_of(begin + "  widht: 4\n"), AllOf(HasSubstr("run.yaml:3:3: "), HasSubstr("width")));
  EXPECT_THAT(error_of(begin + "  n_head: 4\n"), HasSubstr("run.yaml:3:3: ")) << "a key of another task";
  EXPECT_THAT(error_of(begin + "data:\n  classes: 5\n"), HasSubstr("run.yaml:4:"));
  EXPECT_THAT(error_of(begin + "  n_block: 3\n", {"image_size=4"}),
              AllOf(HasSubstr("run.yaml:3:"), HasSubstr("data.image_size is 4 (command line)"),
                    HasSubstr("at least 2^n_block")));
  EXPECT_THAT(error_of("model: {name: resnet}\n"), AllOf(HasSubstr("bdh"), HasSubstr("convnet")));
  EXPECT_THAT(error_of("task: pictures\n"), AllOf(HasSubstr("text"), HasSubstr("images")));
}

TEST(Images, TheModelTellsTheTask) {
  EXPECT_EQ(settings().task, "images");
  EXPECT_EQ(parse("task: images\n", "run.yaml")->settings.model.name, "convnet");
  EXPECT_EQ(parse("", "run.yaml")->settings.task, "text") << "the first of the list";
  EXPECT_EQ(declared_tasks().size(), 2U);
  EXPECT_THAT(reference_page(), AllOf(HasSubstr("directions of stripes"), HasSubstr("name: convnet")));
  const Settings one = settings({"width=5", "noise=0.25", "gradient_checkpointing=true"});
  EXPECT_EQ(to_yaml(parse(to_yaml(one), "saved.yaml")->settings), to_yaml(one));
}

TEST(Images, NoBatchNeedsMoreThanTheLargest) {
  const Settings all = settings();
  ImageTask task;
  const std::string none;
  const auto data = task.open({all, none, nullptr});
  ASSERT_TRUE(data.ok());
  const Order order(data->samples, 1, 40);
  const auto bytes = [](const Batch& batch) {
    std::size_t out = 0;
    for (const auto& [name, tensor] : batch.tensors) out += tensor.nbytes();
    return out;
  };
  const Batch largest = task.largest_batch(order, 6, Task::BatchUse::training);
  EXPECT_EQ(bytes(largest), 6U * (16 * 16 + 8));
  EXPECT_EQ(bytes(task.read(order, 58, 6)), bytes(largest));
  EXPECT_THAT(task.read(order, 58, 2).draws, ElementsAre(58, 59));
}

// The activations need 17 GB: 4,096 images with 1,024 channels of 32 x 32 pixels.
TEST(Images, OutOfMemoryNamesItsAdvice) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  Child child([&] {
    const rlimit both{rlim_t{4} << 30, rlim_t{4} << 30};
    ::setrlimit(RLIMIT_AS, &both);
    return exit_code(run, {"batch_size=4096", "train_images=4096", "image_size=64", "width=1024"});
  });
  ASSERT_EQ(child.wait(), 1);
  EXPECT_THAT(
      read_bytes(run.out + ".error"),
      AllOf(HasSubstr("out of memory"), HasSubstr("the micro-batch had 4096 images of 64 x 64 pixels"),
            HasSubstr("what would help:\n    per_device_train_batch_size=2048 "
                      "gradient_accumulation_steps=2 ("),
            HasSubstr("\n    model.width=512 (a smaller model)")));
}

TEST(Images, ALongRunSaysWhatWouldMakeItShorter) {
  const TempFolder folder;
  ImageRun run(folder, "run");
  run.each = [](const std::string& line) {
    if (line.find("this run will take about") != std::string::npos) std::raise(SIGINT);
  };
  const auto outcome = run.train({"max_steps=100000000", "save_steps=null", "eval_steps=null"});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->signal, SIGINT);
  EXPECT_THAT(run.said, AllOf(HasSubstr("a smaller model (width is 8)"), HasSubstr("image_size is 16")));
}

}  // namespace
}  // namespace octavo_train
