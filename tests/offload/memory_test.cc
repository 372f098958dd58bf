// Host memory: its size, its pages, what it says where there is none, and forks.
// SPDX-License-Identifier: MIT
#include <octavo/octavo.h>
#include <octavo/offload.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace octavo {
namespace {

using testing::HasSubstr;

bool mapped(const std::byte* page) { return msync(const_cast<std::byte*>(page), 1, MS_ASYNC) == 0; }

TEST(HostMemory, IsZeroedAlignedAndExactlyAsLarge) {
  for (const bool pin : {false, true}) {
    for (const std::int64_t bytes : {1, 4096, 4097, 12345678}) {
      auto made = HostMemory::allocate(bytes, pin);
      ASSERT_TRUE(made.ok()) << made.status().message();
      HostMemory memory = std::move(*made);
      EXPECT_EQ(memory.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 4096, 0U);
      EXPECT_TRUE(
          std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
      std::memset(memory.data(), 1, static_cast<std::size_t>(bytes));
      // Where it is not pinned it says why; where nobody asked there is nothing to say.
      EXPECT_EQ(memory.why_not().empty(), !pin || memory.pinned()) << memory.why_not();
    }
  }
  auto none = HostMemory::allocate(0);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->data(), nullptr);
}

TEST(HostMemory, IsGivenBack) {
  const std::byte* at = nullptr;
  {
    auto memory = HostMemory::allocate(3 << 20, false);
    ASSERT_TRUE(memory.ok());
    at = memory->data();
    HostMemory moved = std::move(*memory);
    EXPECT_EQ(memory->data(), nullptr);
    EXPECT_TRUE(mapped(at));
  }
  EXPECT_FALSE(mapped(at));
}

TEST(HostMemory, TooMuchSaysHowMuchThereIs) {
  const auto memory = HostMemory::allocate(std::int64_t{1} << 55, false);
  ASSERT_FALSE(memory.ok());
  EXPECT_THAT(memory.status().message(), HasSubstr("36028797018963968 bytes (36028797.01 GB) are needed"));
  EXPECT_THAT(memory.status().message(), HasSubstr("are free"));
}

// What a forked process lets go stays with the one that made it, and whatever it has at that address its own.
TEST(HostMemory, AForkedProcessGivesNothingBack) {
  auto memory = HostMemory::allocate(8192, false);
  ASSERT_TRUE(memory.ok());
  const std::byte* const at = memory->data();
  const pid_t child = fork();
  if (child == 0) {
    { const HostMemory gone = std::move(*memory); }
    _exit(mapped(at) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Other threads of the first process use the list of memory at the moment of the fork; in the second one they
// are gone.
TEST(HostMemory, AForkedProcessIsNotHeldUp) {
  void* memory = nullptr;
  ASSERT_EQ(octavo_host_alloc(4096, 0, &memory, nullptr), 0U) << octavo_last_error();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) octavo_host_free(nullptr);
  });
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      octavo_host_free(memory);
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << "fork " << i << " hung: signal " << WTERMSIG(status);
  }
  stop = true;
  other.join();
  octavo_host_free(memory);
}

}  // namespace
}  // namespace octavo
