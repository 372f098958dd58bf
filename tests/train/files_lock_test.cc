// Tests that one process uses a run folder at a time: by the system's locks, or without them by a file that
// is refreshed.
// SPDX-License-Identifier: MIT
#include "tests/train/files_support.h"
#include "train/checkpoint/folder/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

namespace octavo_train {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string error_of(FolderLock& lock, const std::string& folder) { return lock.take(folder).message(); }

TEST(FolderLock, OneAtATimeAndNothingIsLeft) {
  const TempFolder folder;
  const std::string run = folder.at("runs/a");
  {
    FolderLock first, second;
    ASSERT_TRUE(first.take(run).ok());
    EXPECT_THAT(error_of(second, run),
                AllOf(HasSubstr("another octavo train is using " + run),
                      HasSubstr("process " + std::to_string(getpid())), HasSubstr("choose another")));
    const FolderLock moved = std::move(first);
    EXPECT_FALSE(second.take(run).ok());
  }
  EXPECT_THAT(names_in(run), IsEmpty());
  FolderLock third;
  EXPECT_TRUE(third.take(run).ok());
}

TEST(FolderLock, OfAProcessThatDied) {
  const TempFolder folder;
  in_child([&] {
    FolderLock lock;
    if (!lock.take(folder.path()).ok()) return std::string("not taken");
    ::_exit(0);  // exits without releasing the lock
  });
  EXPECT_THAT(read_bytes(folder.at(".lock")), HasSubstr(" "));
  FolderLock next;
  EXPECT_EQ(error_of(next, folder.path()), "");
}

TEST(FolderLock, AFolderThatIsGoneOrReplacedIsNoticed) {
  const TempFolder folder;
  const std::string run = folder.at("run"), aside = folder.at("aside");
  const std::string gone = "output_dir: " + run + " was removed, moved or replaced while the run used it";
  FolderLock lock;
  EXPECT_TRUE(lock.check().ok()) << "nothing was taken";
  ASSERT_TRUE(lock.take(run).ok());
  EXPECT_TRUE(lock.check().ok());
  std::filesystem::remove(run + "/.lock");
  EXPECT_TRUE(lock.check().ok()) << "the folder is the same";
  std::filesystem::rename(run, aside);
  EXPECT_EQ(lock.check().message(), gone);
  std::filesystem::create_directory(run);
  EXPECT_EQ(lock.check().message(), gone) << "another folder has its name";
  std::filesystem::remove(run);
  std::filesystem::rename(aside, run);
  EXPECT_TRUE(lock.check().ok());
  std::filesystem::remove_all(run);
  EXPECT_EQ(lock.check().message(), gone);
  ASSERT_TRUE(lock.take(run).ok());
  EXPECT_TRUE(lock.check().ok());
  FolderLock other;
  EXPECT_THAT(error_of(other, run), HasSubstr("another octavo train"));
}

TEST(FolderLock, AFolderThatCannotBeLookedAtIsNotTakenForGone) {
  const TempFolder folder;
  const std::string up = folder.at("up"), run = up + "/run";
  FolderLock lock;
  ASSERT_TRUE(lock.take(run).ok());
  std::filesystem::rename(up, folder.at("aside"));
  std::filesystem::create_symlink("up", up);  // a loop: stat fails with ELOOP
  EXPECT_EQ(lock.check().message(), "");
  std::filesystem::remove(up);
  write_bytes(up, "");  // a file in the path: ENOTDIR
  EXPECT_THAT(lock.check().message(), HasSubstr("was removed, moved or replaced"));
}

TEST(FolderLock, ALinkInItsPlaceIsRefusedAndNotFollowed) {
  const TempFolder folder;
  std::filesystem::create_symlink(folder.at("target"), folder.at(".lock"));
  FolderLock lock;
  EXPECT_EQ(error_of(lock, folder.path()),
            "output_dir: " + folder.at(".lock") + " is a link, expected a file; remove it");
  EXPECT_FALSE(std::filesystem::exists(folder.at("target")));
}

TEST(FolderLock, AFolderOfAnotherUserIsNamed) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  const TempFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  const std::string said = in_child([&] {
    if (::setuid(65534) != 0) return std::string("no other user");
    FolderLock lock;
    return error_of(lock, folder.path());
  });
  EXPECT_EQ(said, "output_dir: " + folder.path() +
                      " cannot be written to (Permission denied); choose another output_dir");
}

TEST(FolderLock, AHolderThatLostItsFileRemovesNoOther) {
  const TempFolder folder;
  FolderLock other;
  {
    FolderLock first;
    ASSERT_TRUE(first.take(folder.path()).ok());
    std::filesystem::remove(folder.at(".lock"));  // removed by hand
    ASSERT_TRUE(other.take(folder.path()).ok());
  }
  FolderLock third;
  EXPECT_THAT(error_of(third, folder.path()), HasSubstr("another octavo train"));
}

TEST(FolderLock, WithoutTheSystemsLocksAFreshFileCounts) {
  const TempFolder folder;
  const FolderLockOptions here{.system_locks = false, .beat = 10ms, .stale = 400ms, .host = "node1"};
  FolderLockOptions there = here;
  there.host = "node2";
  {
    FolderLock first(here), second(there);
    ASSERT_TRUE(first.take(folder.path()).ok());
    std::this_thread::sleep_for(600ms);  // the file is refreshed
    EXPECT_THAT(error_of(second, folder.path()),
                AllOf(HasSubstr(" on node1"),
                      HasSubstr("if that process is gone, start again in a minute, or remove")));
  }
  // First the owner died on another node, then on this node; its process number is not in use.
  write_bytes(folder.at(".lock"), "node1 12\n");
  FolderLock second(there);
  EXPECT_FALSE(second.take(folder.path()).ok()) << "it may be alive";
  std::filesystem::last_write_time(folder.at(".lock"), std::filesystem::file_time_type::clock::now() - 1h);
  EXPECT_TRUE(second.take(folder.path()).ok());
  write_bytes(folder.at(".lock"), "node1 999999999\n");
  FolderLock third(here);
  EXPECT_EQ(error_of(third, folder.path()), "");
}

TEST(FolderLock, AFolderThatCannotBe) {
  const TempFolder folder;
  write_bytes(folder.at("file"), "");
  FolderLock lock;
  EXPECT_THAT(error_of(lock, folder.at("file/run")), HasSubstr("cannot be made"));
}

}  // namespace
}  // namespace octavo_train
