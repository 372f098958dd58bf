// Tests checkpoints as a run makes them: written, found even if newer ones are torn, replaced and pruned.
// SPDX-License-Identifier: MIT
#include "tests/train/files_support.h"
#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/io/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::vector<std::int64_t> steps_of(const std::string& run_folder) {
  std::vector<std::int64_t> steps;
  for (const CheckpointRef& checkpoint : list_checkpoints(run_folder)) steps.push_back(checkpoint.step);
  return steps;
}

TEST(Checkpoint, HasItsFilesAndIsTheLatest) {
  const TempFolder folder;
  const std::string run = folder.at("runs/a");
  ASSERT_TRUE(save_checkpoint(run, 0).ok());
  ASSERT_TRUE(save_checkpoint(run, 500, 7).ok());
  EXPECT_THAT(names_in(run), ElementsAre("checkpoint-0", "checkpoint-500", "latest"));
  EXPECT_THAT(names_in(run + "/checkpoint-500"),
              ElementsAre("checksums.txt", "model.safetensors", "optimizer.safetensors", "state.json"));
  EXPECT_EQ(fs::read_symlink(run + "/latest"), "checkpoint-500");
  const auto model = Safetensors::open(run + "/latest/model.safetensors");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(text_of(model->find("weight")->bytes), tensor_data(600, 7));
  EXPECT_EQ(checkpoint_seed(run + "/checkpoint-500"), "7");
}

TEST(Checkpoint, AreListedByStep) {
  const TempFolder folder;
  for (const char* name :
       {"checkpoint-9", "checkpoint-10", "checkpoint-0", "checkpoint-9223372036854775807", "checkpoint-",
        "checkpoint-007", "checkpoint--1", "checkpoint-5x", "checkpoint-+4", "checkpoint",
        "checkpoint-9223372036854775808", ".checkpoint-77.partial", "xcheckpoint-3", "best"})
    fs::create_directory(folder.at(name));
  EXPECT_THAT(steps_of(folder.path()), ElementsAre(INT64_MAX, 10, 9, 0));
  EXPECT_EQ(list_checkpoints(folder.path())[1].path, folder.at("checkpoint-10"));
  EXPECT_THAT(list_checkpoints(folder.at("none")), IsEmpty());
}

TEST(Checkpoint, NothingThereIsNoError) {
  const TempFolder folder;
  for (const std::string& run : {folder.path(), folder.at("none")}) {
    const auto newest = newest_checkpoint(run);
    ASSERT_TRUE(newest.ok());
    EXPECT_FALSE(newest->found);
    EXPECT_THAT(newest->skipped, IsEmpty());
  }
  write_bytes(folder.at("file"), "");
  EXPECT_THAT(newest_checkpoint(folder.at("file")).status().message(), HasSubstr("cannot list the folder"));
}

TEST(Checkpoint, OnlyTheFilesThatAreNeededAreRead) {
  const TempFolder folder;
  for (const std::int64_t step : {1, 2}) ASSERT_TRUE(save_checkpoint(folder.path(), step).ok());
  const std::string newest = folder.at("checkpoint-2");
  std::string bytes = read_bytes(newest + "/optimizer.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(newest + "/optimizer.safetensors", bytes);
  const std::vector<std::string_view> weights = {"model.safetensors", "state.json"};
  EXPECT_TRUE(verify_checkpoint(newest, weights).ok());
  EXPECT_FALSE(verify_checkpoint(newest).ok());
  EXPECT_EQ(newest_checkpoint(folder.path(), weights)->found->step, 2);
  EXPECT_EQ(newest_checkpoint(folder.path())->found->step, 1);
  fs::resize_file(newest + "/model.safetensors", 5);
  EXPECT_EQ(newest_checkpoint(folder.path(), weights)->found->step, 1);
  const std::vector<std::string_view> other = {"weights.bin"};
  EXPECT_THAT(verify_checkpoint(newest, other).message(), HasSubstr("weights.bin is not listed"));
}

// A copy under another name has valid checksums and would be the newest.
TEST(Checkpoint, ACopyUnderAnotherNameIsPassedOver) {
  const TempFolder folder;
  const std::string run = folder.at("run");
  const auto save = [&](std::int64_t step, const std::string& state) {
    auto writer = CheckpointWriter::begin(run, step, 0);
    ASSERT_TRUE(writer.ok() && writer->add_text("state.json", state).ok() && writer->commit().ok());
  };
  save(9, R"({"format": 1, "step": 9})");
  fs::copy(run + "/checkpoint-9", run + "/checkpoint-99", fs::copy_options::recursive);
  save(100, R"({"format": 1, "step": 0})");
  const auto newest = newest_checkpoint(run);
  ASSERT_TRUE(newest.ok() && newest->found);
  EXPECT_EQ(newest->found->step, 9);
  const std::string copied = "; the folder was copied or renamed. Rename it to checkpoint-";
  EXPECT_THAT(newest->skipped,
              ElementsAre(run + "/checkpoint-100: its name is of step 100, but its state.json is of step 0" +
                              copied + "0, or remove it",
                          run + "/checkpoint-99: its name is of step 99, but its state.json is of step 9" +
                              copied + "9, or remove it"));
  EXPECT_FALSE(verify_checkpoint(run + "/checkpoint-99").ok());
  fs::rename(run + "/checkpoint-9", folder.at("my-model"));  // any other name implies no step
  EXPECT_TRUE(verify_checkpoint(folder.at("my-model")).ok());
}

// The newest of three checkpoints is torn in every possible way, and must be skipped with the message.
TEST(Checkpoint, TornOnesArePassedOver) {
  struct Tear {
    std::function<void(const std::string&)> make;
    std::string message;
  };
  const auto cut = [](const std::string& file, std::uintmax_t less) {
    fs::resize_file(file, fs::file_size(file) - less);
  };
  const auto flip = [](const std::string& file, std::size_t at) {
    std::string bytes = read_bytes(file);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
    write_bytes(file, bytes);
  };
  const std::string model = "/model.safetensors";
  const std::string sums = "/checksums.txt";
  const std::vector<Tear> tears = {
      {[&](const auto& path) { fs::remove(path + model); },
       "model.safetensors: missing; checksums.txt lists it with 672"},
      {[&](const auto& path) { fs::remove(path + "/state.json"); }, "state.json: missing"},
      {[&](const auto& path) { cut(path + model, 1); },
       "model.safetensors: has 671 bytes, expected 672; it is cut short"},
      {[&](const auto& path) { write_bytes(path + model, ""); }, "has 0 bytes, expected 672"},
      {[&](const auto& path) { write_bytes(path + "/state.json", "3000"); },
       "state.json: has 4 bytes, expected 3; it has grown"},
      {[&](const auto& path) { flip(path + model, 0); }, "model.safetensors: its 672 bytes have the hash "},
      {[&](const auto& path) { flip(path + model, 671); }, "it was changed or the disk is damaged"},
      {[&](const auto& path) { flip(path + "/state.json", 0); }, "state.json: its 3 bytes have the hash "},
      {[&](const auto& path) { fs::remove(path + model), fs::create_directory(path + model); },
       "model.safetensors: is a folder"},
      {[&](const auto& path) { fs::remove(path + sums); },
       "checksums.txt: missing; the checkpoint was not written to its end"},
      {[&](const auto& path) { write_bytes(path + sums, ""); }, "checksums.txt: its last line has no end"},
      {[&](const auto& path) { cut(path + sums, 1); }, "checksums.txt: its last line has no end"},
      {[&](const auto& path) { flip(path + sums, 3); },
       "checksums.txt: its last line does not fit the lines before"},
      {[&](const auto& path) { write_bytes(path + sums, std::string(100'000, 'a')); },
       "checksums.txt: 100.0 kB, expected at most"},
      {[&](const auto& path) { fs::remove_all(path), fs::create_directory(path); }, "checksums.txt: missing"},
      {[&](const auto& path) { fs::remove_all(path), write_bytes(path, "x"); }, "not a folder"},
      {[&](const auto& path) { fs::remove_all(path), fs::create_symlink("gone", path); }, "not a folder"},
  };
  const TempFolder folder;
  const std::string run = folder.at("run");
  ASSERT_TRUE(save_checkpoint(run, 1, 1).ok());
  ASSERT_TRUE(save_checkpoint(run, 20, 20).ok());
  for (const Tear& tear : tears) {
    ASSERT_TRUE(save_checkpoint(run, 300, 300).ok());
    ASSERT_EQ(newest_checkpoint(run)->found->step, 300);
    tear.make(run + "/checkpoint-300");
    const auto newest = newest_checkpoint(run);
    ASSERT_TRUE(newest.ok()) << newest.status().message();
    ASSERT_EQ(newest->skipped.size(), 1u) << tear.message;
    EXPECT_THAT(newest->skipped[0], StartsWith(run + "/checkpoint-300"));
    EXPECT_THAT(newest->skipped[0], HasSubstr(tear.message));
    ASSERT_TRUE(newest->found);
    EXPECT_EQ(*newest->found, (CheckpointRef{20, run + "/checkpoint-20"}));
  }
  fs::remove(run + "/checkpoint-20/checksums.txt");
  EXPECT_EQ(newest_checkpoint(run)->found->step, 1);
  EXPECT_EQ(newest_checkpoint(run)->skipped.size(), 2u);
  fs::remove(run + "/checkpoint-1/checksums.txt");
  EXPECT_FALSE(newest_checkpoint(run)->found);
  EXPECT_EQ(newest_checkpoint(run)->skipped.size(), 3u);
}

TEST(Checkpoint, FilesThatAreNotListedAreNobodysBusiness) {
  const TempFolder folder;
  ASSERT_TRUE(save_checkpoint(folder.path(), 1).ok());
  write_bytes(folder.at("checkpoint-1/notes.txt"), "good one");
  EXPECT_TRUE(verify_checkpoint(folder.at("checkpoint-1")).ok());
}

TEST(Checkpoint, TheSameStepIsReplaced) {
  const TempFolder folder;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    ASSERT_TRUE(save_checkpoint(folder.path(), 5, seed).ok());
    EXPECT_EQ(checkpoint_seed(folder.at("checkpoint-5")), std::to_string(seed));
    EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-5", "latest"));
  }
}

TEST(Checkpoint, AReplacedOneCountsWhereACrashLeftItAlone) {
  const TempFolder folder;
  ASSERT_TRUE(save_checkpoint(folder.path(), 4, 4).ok());
  ASSERT_TRUE(save_checkpoint(folder.path(), 5, 1).ok());
  fs::rename(folder.at("checkpoint-5"), folder.at(".checkpoint-5.replaced"));
  EXPECT_EQ(*newest_checkpoint(folder.path())->found,
            (CheckpointRef{5, folder.at(".checkpoint-5.replaced")}));
  ASSERT_TRUE(prune_checkpoints(folder.path(), KeepRule{.newest = 1}).ok());
  EXPECT_THAT(names_in(folder.path()), ElementsAre(".checkpoint-5.replaced", "latest"));
  ASSERT_TRUE(save_checkpoint(folder.path(), 6, 6).ok());  // a checkpoint of another step leaves it
  EXPECT_THAT(steps_of(folder.path()), ElementsAre(6, 5));
  ASSERT_TRUE(save_checkpoint(folder.path(), 5, 2).ok());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-5", "checkpoint-6", "latest"));
  EXPECT_EQ(checkpoint_seed(folder.at("checkpoint-5")), "2");
  // Next to the new checkpoint, the old one is a leftover.
  fs::copy(folder.at("checkpoint-6"), folder.at(".checkpoint-5.replaced"));
  EXPECT_EQ(list_checkpoints(folder.path())[1].path, folder.at("checkpoint-5"));
  ASSERT_TRUE(prune_checkpoints(folder.path(), KeepRule{.newest = 2}).ok());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-5", "checkpoint-6", "latest"));
}

TEST(Checkpoint, PruningKeepsTheNewestAndTheLatest) {
  const TempFolder folder;
  for (const std::int64_t step : {8, 9, 10, 11, 100}) ASSERT_TRUE(save_checkpoint(folder.path(), step).ok());
  fs::create_directories(folder.at(".checkpoint-3.partial/full"));
  write_bytes(folder.at("metrics.jsonl"), "kept");
  fs::create_directory(folder.at("checkpoint-best"));
  ASSERT_TRUE(prune_checkpoints(folder.path(), KeepRule{.newest = 3}).ok());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-10", "checkpoint-100", "checkpoint-11",
                                                   "checkpoint-best", "latest", "metrics.jsonl"));
  ASSERT_TRUE(save_checkpoint(folder.path(), 2).ok());  // a run that went back: `latest` is not the newest
  ASSERT_TRUE(prune_checkpoints(folder.path(), KeepRule{.newest = 1}).ok());
  EXPECT_THAT(steps_of(folder.path()), ElementsAre(100, 2));
  ASSERT_TRUE(prune_checkpoints(folder.path(), KeepRule{.newest = INT64_MAX}).ok());
  EXPECT_THAT(steps_of(folder.path()), ElementsAre(100, 2));
  fs::remove(folder.at("latest"));
  ASSERT_TRUE(prune_checkpoints(folder.path(), KeepRule{.newest = 1}).ok());
  EXPECT_THAT(steps_of(folder.path()), ElementsAre(100));

  EXPECT_THAT(prune_checkpoints(folder.path(), KeepRule{.newest = 0}).message(),
              HasSubstr("keep: got 0, expected 1 or more"));
  EXPECT_TRUE(prune_checkpoints(folder.at("none"), KeepRule{.newest = 1}).ok());
}

TEST(Checkpoint, PruningFollowsNoLinks) {
  const TempFolder folder;
  const TempFolder elsewhere;
  write_bytes(elsewhere.at("precious"), "x");
  ASSERT_TRUE(save_checkpoint(folder.path(), 9).ok());
  fs::create_directory_symlink(elsewhere.path(), folder.at("checkpoint-1"));
  fs::create_directory_symlink(elsewhere.path(), folder.at(".checkpoint-2.partial"));
  ASSERT_TRUE(prune_checkpoints(folder.path(), KeepRule{.newest = 1}).ok());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-9", "latest"));
  EXPECT_THAT(names_in(elsewhere.path()), ElementsAre("precious"));
}

TEST(CheckpointWriter, LeavesNothingWithoutCommit) {
  const TempFolder folder;
  {
    auto writer = CheckpointWriter::begin(folder.path(), 5, 0);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->add_text("state.json", "12345").ok());
    EXPECT_EQ(writer->bytes_written(), 5u);
    CheckpointWriter moved = std::move(*writer);
    EXPECT_THAT(names_in(folder.path()), ElementsAre(".checkpoint-5.partial"));
    EXPECT_THAT(steps_of(folder.path()), IsEmpty());
  }
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(CheckpointWriter, StaleOnesMakeWay) {
  const TempFolder folder;
  fs::create_directories(folder.at(".checkpoint-5.partial/sub"));
  write_bytes(folder.at(".checkpoint-5.partial/model.safetensors"), "torn");
  write_bytes(folder.at(".checkpoint-4.partial"), "a file");
  fs::create_symlink("nowhere", folder.at(".latest.partial"));
  ASSERT_TRUE(save_checkpoint(folder.path(), 5).ok());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-5", "latest"));
  EXPECT_TRUE(verify_checkpoint(folder.at("checkpoint-5")).ok());
}

TEST(CheckpointWriter, AFailureIsForGood) {
  const TempFolder folder;
  ASSERT_TRUE(save_checkpoint(folder.path(), 1).ok());
  {
    auto writer = CheckpointWriter::begin(folder.path(), 5, 0);
    const std::vector<TensorSource> sources = {
        {"w", "F32", {2}, []() -> Result<Bytes> { return Status::failed("no GPU"); }}};
    EXPECT_THAT(writer->add_tensors("model.safetensors", sources).message(),
                HasSubstr("tensor \"w\": no GPU"));
    EXPECT_THAT(writer->add_text("state.json", "").message(), HasSubstr("no GPU"));
    EXPECT_THAT(writer->commit().message(), HasSubstr("no GPU"));
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-1", "latest"));
  {
    auto writer = CheckpointWriter::begin(folder.path(), 5, 0);
    ASSERT_TRUE(writer->commit().ok());
    EXPECT_THAT(writer->commit().message(), HasSubstr("commit() was called before"));
    EXPECT_THAT(writer->add_text("a", "").message(), HasSubstr("commit() was called before"));
  }
  EXPECT_THAT(steps_of(folder.path()), ElementsAre(5, 1));
}

TEST(CheckpointWriter, BadNamesAndSteps) {
  const TempFolder folder;
  EXPECT_THAT(CheckpointWriter::begin(folder.path(), -1, 0).status().message(), HasSubstr("step: got -1"));
  for (const std::string name : {"", "a/b", "../a", ".a", "checksums.txt", "two words", "state.json"}) {
    auto writer = CheckpointWriter::begin(folder.path(), 5, 0);
    ASSERT_TRUE(writer->add_text("state.json", "").ok());
    EXPECT_THAT(writer->add_text(name, "x").message(),
                HasSubstr("file '" + name + "': expected a plain name"));
  }
  auto writer = CheckpointWriter::begin(folder.path(), 5, 0);
  const std::vector<TensorSource> twice(2, make_tensor("w", "U8", {1}));
  EXPECT_THAT(writer->add_tensors("model.safetensors", twice).message(),
              HasSubstr("model.safetensors: tensor \"w\": given twice"));
}

TEST(CheckpointWriter, SaysWhenLatestIsInTheWay) {
  const TempFolder folder;
  fs::create_directories(folder.at("latest/of/the/user"));
  auto writer = CheckpointWriter::begin(folder.path(), 5, 0);
  ASSERT_TRUE(writer->add_text("state.json", "{}").ok());
  ASSERT_TRUE(writer->commit().ok());
  EXPECT_THAT(writer->warning(), HasSubstr("(checkpoint-5 itself is saved)"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-5", "latest"));
  EXPECT_EQ(newest_checkpoint(folder.path())->found->step, 5);
}

}  // namespace
}  // namespace octavo_train
