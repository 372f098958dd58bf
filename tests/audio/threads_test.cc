// Tests that work completes on fewer threads, or on the caller alone, if the system refuses to start threads:
// no hang and no abort. Also tests errors and exceptions in shared work.
// SPDX-License-Identifier: MIT
#include "train/base/parallel_for.h"

#include "apps/octavo/recordings/parallel.h"
#include "tests/train/files_support.h"
#include "train/data/prefetch.h"
#include "train/tasks/speech/recognition/batch_recognition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OCTAVO_SANITIZED 1  // a sanitizer's threads need more memory than the limited process has
#endif

namespace octavo_train {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int kMany = 1000;  // threads whose stacks do not fit into a limited process

// Runs `work` in a child process whose address space can grow by `megabytes` MiB. Kills a child that hangs.
std::string with_few_addresses(std::uint64_t megabytes, const std::function<std::string()>& work) {
  return in_child([&] {
    ::alarm(60);
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto limit =
        static_cast<rlim_t>(pages * static_cast<std::uint64_t>(::getpagesize()) + (megabytes << 20));
    const rlimit both{limit, limit};
    ::setrlimit(RLIMIT_AS, &both);
    return work();
  });
}

class RefusedThreads : public testing::Test {
 protected:
  void SetUp() override {
#ifdef OCTAVO_SANITIZED
    GTEST_SKIP() << "a sanitizer's threads need more memory";
#endif
  }
};

TEST_F(RefusedThreads, TheStartedOnesAreReturnedWithTheReason) {
  const std::string said = with_few_addresses(64, [] {
    std::atomic<int> ran = 0;
    StartedThreads started = start_threads(kMany, [&] { ++ran; });
    for (std::thread& each : started.threads) each.join();
    if (started.threads.size() >= kMany) return std::string("no thread was refused");
    return static_cast<int>(started.threads.size()) == ran ? started.problem : std::string("lost");
  });
  EXPECT_THAT(said, testing::AnyOf("Resource temporarily unavailable", "out of memory"));
}

TEST_F(RefusedThreads, ClipsAreReadByFewerOrByTheCaller) {
  for (const std::uint64_t megabytes : {1, 64}) {
    EXPECT_EQ(with_few_addresses(
                  megabytes,
                  [] {
                    std::vector<ClipInput> clips(
                        kMany, {1.0, []() -> Result<std::vector<float>> { return std::vector<float>(1); }});
                    int done = 0;
                    transcribe_all(
                        [](auto batch) { return std::vector<Transcription>(batch.size()); }, clips,
                        {.batch_seconds = 2, .threads = kMany},
                        [&](std::size_t, const Result<Transcription>& clip) { done += clip.ok(); });
                    return std::to_string(done);
                  }),
              std::to_string(kMany))
        << megabytes;
  }
}

TEST_F(RefusedThreads, RecordingsAreOpenedByFewerOrByTheCaller) {
  for (const std::uint64_t megabytes : {1, 64}) {
    EXPECT_EQ(with_few_addresses(
                  megabytes,
                  [] {
                    const std::vector<std::string> paths(kMany, "/nowhere/a.wav");
                    int failed = 0;
                    transcribe_files(
                        {}, paths, {.batches = {.threads = kMany}},
                        {.done = [&](std::size_t,
                                     const Result<FileTranscription>& file) { failed += file.ok() ? 0 : 1; },
                         .progress = {}});
                    return std::to_string(failed);
                  }),
              std::to_string(kMany))
        << megabytes;
  }
}

TEST_F(RefusedThreads, NumberedWorkIsDoneByFewerOrByTheCaller) {
  for (const std::uint64_t megabytes : {1, 64}) {
    EXPECT_EQ(with_few_addresses(megabytes,
                                 [] {
                                   std::atomic<std::int64_t> sum = 0;
                                   const Status status = octavo::recordings::for_each_number(
                                       2 * kMany, kMany, nullptr, [&](std::int64_t i) {
                                         sum += i;
                                         return Status();
                                       });
                                   return status.ok() ? std::to_string(sum) : status.message();
                                 }),
              std::to_string(kMany * (2 * kMany - 1)))
        << megabytes;
  }
}

TEST_F(RefusedThreads, LoadersAreAnError) {
  const std::string said = with_few_addresses(64, [] {
    return Prefetch<int>::start(
               {[](std::uint64_t) { return 1; }, [](std::uint64_t, std::int64_t) { return 0; }}, 0, kMany)
        .status()
        .message();
  });
  EXPECT_THAT(said, StartsWith("data.dataloader_num_workers: got 1000, but only "));
  EXPECT_THAT(said, HasSubstr(" threads could be started ("));
}

TEST(NumberedWork, AnExceptionOfAnyThreadReachesTheCaller) {
  for (const int threads : {1, 4}) {
    const auto work = [](std::int64_t i) -> Status {
      if (i == 700) throw std::bad_alloc();
      return {};
    };
    EXPECT_THROW(std::ignore = octavo::recordings::for_each_number(1000, threads, nullptr, work),
                 std::bad_alloc);
  }
}

TEST(NumberedWork, TheErrorOfTheLowestNumberIsGiven) {
  for (const int threads : {1, 4}) {
    std::int64_t most = 0;
    const Status status = octavo::recordings::for_each_number(
        1000, threads, [&](std::int64_t done) { most = done; },
        [](std::int64_t i) { return i >= 40 ? Status::failed(std::to_string(i)) : Status(); });
    EXPECT_EQ(status.message(), "40");
    EXPECT_EQ(most, 40);
  }
}

}  // namespace
}  // namespace octavo_train
