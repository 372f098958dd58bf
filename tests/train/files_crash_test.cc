// Tests checkpoints that cannot be finished: the process is killed at any moment, the disk is full, the
// folder cannot be written. Earlier checkpoints must survive.
// SPDX-License-Identifier: MIT
#include "tests/train/files_support.h"
#include "train/checkpoint/folder/checkpoint_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#ifdef __linux__
#include <sched.h>
#include <sys/mount.h>
#endif

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Kills a writer before each of its system calls in turn. `prepare` fills the run folder. Afterwards the
// newest checkpoint must be `before` (step and seed; none: -1) or the new one, none may be torn, and the next
// run must work.
void crash_everywhere(const std::function<void(const std::string&)>& prepare, std::int64_t step,
                      const std::pair<std::int64_t, std::string>& before, bool latest_holds) {
  const TempFolder folder;
  const std::string prepared = folder.at("prepared");
  fs::create_directory(prepared);
  prepare(prepared);
  bool saw_before = false;
  bool saw_after = false;
  int call = 1;
  for (std::optional<bool> died = true; *died; ++call) {
    const std::string run = folder.at(std::to_string(call));
    fs::copy(prepared, run, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    died = killed_at_call(call, [&] {
      if (!save_checkpoint(run, step, 99).ok() || !prune_checkpoints(run, KeepRule{.newest = 1}).ok())
        ::_exit(1);
    });
    if (!died) GTEST_SKIP() << "processes cannot be traced here";

    const auto newest = newest_checkpoint(run);
    ASSERT_TRUE(newest.ok()) << newest.status().message();
    EXPECT_THAT(newest->skipped, ElementsAre()) << "call " << call;
    const auto found = newest->found ? std::pair(newest->found->step, checkpoint_seed(newest->found->path))
                                     : std::pair(std::int64_t{-1}, std::string());
    saw_before |= found == before;
    saw_after |= found == std::pair(step, std::string("99"));
    EXPECT_TRUE(found == before || found == std::pair(step, std::string("99"))) << "call " << call;
    for (const CheckpointRef& checkpoint : list_checkpoints(run))
      EXPECT_TRUE(verify_checkpoint(checkpoint.path).ok()) << checkpoint.path << ", call " << call;
    EXPECT_TRUE(!latest_holds || verify_checkpoint(run + "/latest").ok()) << "call " << call;

    ASSERT_TRUE(save_checkpoint(run, step, 100).ok()) << "call " << call;
    ASSERT_TRUE(prune_checkpoints(run, KeepRule{.newest = 1}).ok()) << "call " << call;
    EXPECT_THAT(names_in(run), ElementsAre("checkpoint-" + std::to_string(step), "latest"))
        << "call " << call;
    EXPECT_EQ(checkpoint_seed(run + "/latest"), "100");
    fs::remove_all(run);
  }
  EXPECT_TRUE(saw_before && saw_after);
  EXPECT_GT(call, 40);  // system calls were counted
}

TEST(Crash, TheFirstCheckpoint) {
  crash_everywhere([](const std::string&) {}, 3, {-1, ""}, false);
}

TEST(Crash, ANewCheckpointAndPruning) {
  const auto prepare = [](const std::string& run) {
    ASSERT_TRUE(save_checkpoint(run, 1, 1).ok());
    ASSERT_TRUE(save_checkpoint(run, 2, 2).ok());
  };
  crash_everywhere(prepare, 3, {2, "2"}, true);
}

TEST(Crash, ReplacingACheckpoint) {
  const auto prepare = [](const std::string& run) { ASSERT_TRUE(save_checkpoint(run, 3, 3).ok()); };
  crash_everywhere(prepare, 3, {3, "3"}, false);
}

TEST(Crash, ReplacingAfterACrashWhileReplacing) {
  const auto prepare = [](const std::string& run) {
    ASSERT_TRUE(save_checkpoint(run, 3, 3).ok());
    fs::rename(run + "/checkpoint-3", run + "/.checkpoint-3.replaced");
  };
  crash_everywhere(prepare, 3, {3, "3"}, false);
}

// A limit on the file size simulates a disk that fills up while a file grows.
TEST(FullDisk, ThePreviousCheckpointSurvives) {
  const TempFolder folder;
  ASSERT_TRUE(save_checkpoint(folder.path(), 1, 1).ok());
  const std::string message = in_child([&] {
    const rlimit limit{100'000, 100'000};
    std::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return std::string("no limit");
    return save_checkpoint(folder.path(), 2, 2, 400'000).message();  // the writer expects 800 kB
  });
  EXPECT_THAT(message,
              StartsWith(folder.at(".checkpoint-2.partial/model.safetensors: cannot write: File too large")));
  EXPECT_THAT(message, HasSubstr("100.0 kB of 800.0 kB were written, 700.0 kB are missing"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("checkpoint-1", "latest"));
  EXPECT_EQ(checkpoint_seed(folder.at("latest")), "1");
}

TEST(FullDisk, SingleFilesToo) {
  const TempFolder folder;
  const std::string path = folder.at("a.safetensors");
  write_bytes(path, "old");
  const std::string message = in_child([&] {
    const rlimit limit{100'000, 100'000};
    std::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return std::string("no limit");
    const TensorSource source = make_tensor("a", "U8", {1'000'000});
    return write_safetensors(path, {&source, 1}).message();
  });
  EXPECT_THAT(message, HasSubstr("100.0 kB of 1.0 MB were written, 900.1 kB are missing"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.safetensors"));
  EXPECT_EQ(read_bytes(path), "old");
}

#ifdef __linux__
// Uses a real file system of 1 MiB, if this process may mount it.
TEST(FullDisk, OnASmallFileSystem) {
  const TempFolder folder;
  const std::string report = in_child([&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0)
      return "skip";
    std::string text = save_checkpoint(folder.path(), 1, 1, 200'000).message();
    text += "|" + save_checkpoint(folder.path(), 2, 2, 900'000).message();  // reported before the first byte
    {
      const TensorSource source = make_tensor("a", "U8", {2'000'000});
      auto writer = CheckpointWriter::begin(folder.path(), 3, 0);  // size not given: fails while writing
      text += "|" + writer->add_tensors("model.safetensors", {&source, 1}).message();
      text += "|" + writer->commit().message();
    }
    text += "|" + checkpoint_seed(folder.at("latest"));
    for (const std::string& name : names_in(folder.path())) text += " " + name;
    return text + "|" + save_checkpoint(folder.path(), 4, 4, 200'000).message();
  });
  if (report == "skip")
    GTEST_SKIP() << "no file system can be mounted here; the tests above limit files instead";
  std::vector<std::string> parts(1);
  for (const char c : report) c == '|' ? parts.emplace_back() : parts.back() += c;
  ASSERT_EQ(parts.size(), 6u) << report;
  EXPECT_EQ(parts[0], "");
  const std::string room = "8[0-9][0-9]\\.[0-9] kB";  // the file system's own use varies
  EXPECT_THAT(parts[1], ContainsRegex("too little space for a checkpoint: it needs 1\\.9 MB, " + room +
                                      " are free, 1\\.[01] MB are missing"));
  EXPECT_THAT(parts[2], ContainsRegex("model.safetensors: cannot write: No space left on device; " + room +
                                      " of 2\\.0 MB were written, 1\\.[12] MB are missing"));
  EXPECT_EQ(parts[3], parts[2]);
  EXPECT_EQ(parts[4], "1 checkpoint-1 latest");
  EXPECT_EQ(parts[5], "");
}
#endif

TEST(Unwritable, FoldersAreNamed) {
  const TempFolder folder;
  write_bytes(folder.at("file"), "");
  EXPECT_THAT(save_checkpoint(folder.at("file/run"), 1).message(),
              AllOf(StartsWith(folder.at("file/run")), HasSubstr("Not a directory")));
  EXPECT_THAT(save_checkpoint(folder.at("file"), 1).message(), StartsWith(folder.at("file")));

  const std::string run = folder.at("run");
  ASSERT_TRUE(save_checkpoint(run, 1, 1).ok());
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(run.c_str(), 0555), 0);
  const std::string message = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return std::string("cannot become another user");
    return save_checkpoint(run, 2, 2).message() + "|" +
           prune_checkpoints(run, KeepRule{.newest = 1}).message();
  });
  EXPECT_EQ(message, run + "/.checkpoint-2.partial: cannot make the folder: Permission denied|");
  ASSERT_EQ(::chmod(run.c_str(), 0755), 0);
  EXPECT_THAT(names_in(run), ElementsAre("checkpoint-1", "latest"));
}

// The folders belong to another user: they can be renamed, but their files cannot be removed.
TEST(Unwritable, LeftoversThatStayEndNothing) {
  const TempFolder folder;
  const std::string run = folder.at("run");
  for (const std::int64_t step : {1, 2, 3}) ASSERT_TRUE(save_checkpoint(run, step, 1).ok());
  for (const char* name : {"/.checkpoint-4.partial", "/.checkpoint-9.partial"}) {
    fs::create_directory(run + name);
    write_bytes(run + name + "/.nfs0001", "");
    ASSERT_EQ(::chmod((run + name).c_str(), 0555), 0);
  }
  for (const char* name : {"/checkpoint-1", "/checkpoint-3"})
    ASSERT_EQ(::chmod((run + name).c_str(), 0555), 0);
  for (const std::string& path : {folder.path(), run, run + "/checkpoint-2"})
    ASSERT_EQ(::chmod(path.c_str(), 0777), 0);
  const auto save = [&](std::int64_t step) -> std::string {
    auto writer = CheckpointWriter::begin(run, step, 0);
    if (!writer.ok()) return "error " + writer.status().message();
    if (Status bad = writer->add_text("state.json", "new"); !bad.ok()) return "error " + bad.message();
    if (Status bad = writer->commit(); !bad.ok()) return "error " + bad.message();
    return writer->warning();
  };
  const std::string report = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return std::string("cannot become another user");
    std::string text = save(4) + "|" + save(3) + "|" + save(3) + "|";
    return text + prune_checkpoints(run, KeepRule{.newest = 2}).message();
  });
  const std::string first = run + "/.checkpoint-9.partial/.nfs0001: cannot remove: Permission denied";
  EXPECT_EQ(report, first + "|" + first + "|" + first + "|" + first) << "each warns, and none fails";
  // The new checkpoints exist, older ones that can be removed are gone, and the rest is renamed.
  EXPECT_THAT(names_in(run),
              ElementsAre(".checkpoint-1.partial", ".checkpoint-3.replaced", ".checkpoint-4.partial",
                          ".checkpoint-9.partial", "checkpoint-3", "checkpoint-4", "latest"));
  for (const std::int64_t step : {3, 4}) {
    const std::string path = run + "/checkpoint-" + std::to_string(step);
    EXPECT_TRUE(verify_checkpoint(path).ok());
    EXPECT_EQ(read_bytes(path + "/state.json"), "new");
  }
  EXPECT_EQ(newest_checkpoint(run)->found->step, 4);
  for (const std::string& name : names_in(run)) ::chmod((run + "/" + name).c_str(), 0755);
}

TEST(Unwritable, ReadersOnlyRead) {
  const TempFolder folder;
  ASSERT_TRUE(save_checkpoint(folder.path(), 1, 1).ok());
  ASSERT_TRUE(save_checkpoint(folder.path(), 2, 2).ok());
  fs::create_directory(folder.at(".checkpoint-3.partial"));  // folder of an active writer
  ASSERT_EQ(newest_checkpoint(folder.path())->found->step, 2);
  EXPECT_THAT(names_in(folder.path()), Contains(".checkpoint-3.partial"));
  EXPECT_THAT(list_checkpoints(folder.path()),
              Not(Contains(CheckpointRef{3, folder.at(".checkpoint-3.partial")})));
}

}  // namespace
}  // namespace octavo_train
