// Queues of threads and their fences: order, errors that stay, forks, delays.
// SPDX-License-Identifier: MIT
#include "offload/queue.h"
#include "tests/support/delays.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

namespace octavo::offload {
namespace {

using testing::HasSubstr;

void ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }
Fence record(Queue& queue) {
  auto fence = queue.record_fence();
  ok(fence.status());
  return fence.ok() ? *fence : Fence();
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsAfterFork = false;  // ThreadSanitizer ends a forked process that starts one
#else
constexpr bool kThreadsAfterFork = true;
#endif

TEST(Queues, EmptyMarksHavePassed) {
  const Fence fence;
  EXPECT_TRUE(fence.passed());
  ok(fence.wait());
  const auto queues = make_cpu_queues();
  ok(queues->up().order_after(fence));
  ok(record(queues->up()).wait());
  ok(queues->order_stream_after(nullptr, fence));
  EXPECT_TRUE(queues->record_fence(nullptr)->passed());
}

TEST(Queues, WorkRunsInOrderBesideTheCaller) {
  const auto queues = make_cpu_queues();
  std::promise<void> gate;
  std::vector<int> seen;
  const auto caller = std::this_thread::get_id();
  ok(queues->work().run(
      [&](void* stream) {
        EXPECT_EQ(stream, nullptr);
        EXPECT_NE(std::this_thread::get_id(), caller);
        gate.get_future().wait();
        return Status();
      },
      "gate"));
  const Fence before = record(queues->work());
  for (int i = 0; i < 100; ++i) {
    ok(queues->work().run([&seen, i](void*) { return seen.push_back(i), Status(); }, "push"));
  }
  const Fence after = record(queues->work());
  EXPECT_FALSE(before.passed());
  EXPECT_FALSE(after.passed());
  gate.set_value();
  ok(after.wait());
  EXPECT_TRUE(before.passed());
  std::vector<int> all(100);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST(Queues, AMarkOrdersWhatIsQueuedBehindItAndNothingElse) {
  const auto queues = make_cpu_queues();
  std::promise<void> gate;
  ok(queues->up().run([&](void*) { return gate.get_future().wait(), Status(); }, "gate"));
  std::atomic<bool> early{false};
  std::atomic<bool> late{false};
  ok(queues->work().run([&](void*) { return early = true, Status(); }, "early"));
  const Fence first = record(queues->work());
  ok(queues->work().order_after(record(queues->up())));
  ok(queues->work().run([&](void*) { return late = true, Status(); }, "late"));
  ok(first.wait());
  EXPECT_TRUE(early);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(late);
  gate.set_value();
  ok(record(queues->work()).wait());
  EXPECT_TRUE(late);
}

TEST(Queues, DestructionWaitsForAllWorkAndMarksOutliveIt) {
  std::atomic<int> runs{0};
  Fence fence;
  {
    const auto queues = make_cpu_queues();
    for (int i = 0; i < 20; ++i) {
      ok(queues->host().run(
          [&](void*) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            return queues->up().run([&](void*) { return ++runs, Status(); }, "up");
          },
          "host"));
    }
    fence = record(queues->host());
  }
  EXPECT_EQ(runs, 20);
  EXPECT_TRUE(fence.passed());
  ok(fence.wait());
}

// A slot of staging memory that every step goes through in both directions: any wrong order shows.
void pass_through_slots(int steps) {
  const auto queues = make_cpu_queues();
  constexpr int kSlots = 2;
  constexpr int kTensors = 5;
  constexpr std::int64_t kBytes = sizeof(std::int64_t) * 64;
  std::vector<std::vector<std::int64_t>> host(kTensors, std::vector<std::int64_t>(64, 1));
  std::vector<std::vector<std::int64_t>> slots(kSlots, std::vector<std::int64_t>(64, -1));
  std::vector<Fence> freed(kSlots);
  for (int step = 0; step < steps; ++step) {
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const auto slot = static_cast<std::size_t>(step * kTensors + tensor) % kSlots;
      auto& staged = slots[slot];
      auto& state = host[static_cast<std::size_t>(tensor)];
      ok(queues->up().order_after(freed[slot]));
      ok(queues->up().copy(staged.data(), state.data(), kBytes, "states up"));
      ok(queues->work().order_after(record(queues->up())));
      ok(queues->work().run(
          [&staged, tensor](void*) {
            for (std::int64_t& value : staged) value = 3 * value + tensor;
            return Status();
          },
          "step"));
      ok(queues->down().order_after(record(queues->work())));
      ok(queues->down().copy(state.data(), staged.data(), kBytes, "states down"));
      freed[slot] = record(queues->down());
      // The next step of the tensor reads what this one wrote.
      ok(queues->up().order_after(tensor == kTensors - 1 ? freed[slot] : Fence()));
    }
  }
  ok(queues->order_stream_after(nullptr, record(queues->down())));
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    std::int64_t expected = 1;
    for (int step = 0; step < steps; ++step) expected = 3 * expected + tensor;
    EXPECT_THAT(host[static_cast<std::size_t>(tensor)], testing::Each(expected));
  }
}

TEST(Queues, NoDelayChangesAResult) {
  pass_through_slots(20);
  for (const char* delays : {"1:100", "2:100", "3:400"}) {
    const test::Delays delayed(delays);
    pass_through_slots(8);
  }
}

TEST(Queues, ManyThreadsUseOneQueue) {
  const auto queues = make_cpu_queues();
  int sum = 0;  // only the queue's thread writes it
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        ok(queues->host().run([&](void*) { return ++sum, Status(); }, "add"));
        ok(queues->down().order_after(record(queues->host())));
        ok(record(queues->host()).wait());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ok(record(queues->down()).wait());
  EXPECT_EQ(sum, 200);
}

TEST(Queues, AnErrorStaysStopsWhatFollowsAndTravelsWithMarks) {
  const auto queues = make_cpu_queues();
  std::promise<void> gate;
  std::atomic<int> ran{0};
  ok(queues->up().run([&](void*) { return gate.get_future().wait(), Status(); }, "gate"));
  const Fence good = record(queues->up());
  ok(queues->up().run([](void*) { return Status::failed("the copy broke"); }, "bad"));
  const Fence bad = record(queues->up());
  ok(queues->up().run([&](void*) { return ++ran, Status(); }, "never"));
  ok(queues->work().order_after(bad));
  ok(queues->work().run([&](void*) { return ++ran, Status(); }, "never"));
  const Fence behind = record(queues->work());
  gate.set_value();
  ok(good.wait());
  EXPECT_EQ(bad.wait().message(), "the copy broke");
  EXPECT_TRUE(bad.passed());
  EXPECT_EQ(behind.wait().message(), "the copy broke");
  EXPECT_EQ(queues->order_stream_after(nullptr, behind).message(), "the copy broke");
  EXPECT_EQ(ran, 0);
  ok(good.wait());
  EXPECT_EQ(queues->up().record_fence().status().message(), "the copy broke");
  EXPECT_EQ(queues->work().copy(nullptr, nullptr, 0, "copy").message(), "the copy broke");
  EXPECT_EQ(queues->work().run([](void*) { return Status(); }, "run").message(), "the copy broke");
  EXPECT_EQ(queues->work().order_after(good).message(), "the copy broke");
  ok(queues->down().copy(nullptr, nullptr, 0, "another queue works"));
  ok(record(queues->down()).wait());
}

TEST(Queues, ExceptionsAreErrors) {
  const auto queues = make_cpu_queues();
  ok(queues->host().run([](void*) -> Status { throw std::runtime_error("thrown"); }, "update"));
  auto fence = queues->host().record_fence();
  const Status status = fence.ok() ? fence->wait() : fence.status();
  EXPECT_EQ(status.message(), "[offload] update: thrown");
}

TEST(Queues, WaitingForItselfIsAnErrorAndNoHang) {
  const auto queues = make_cpu_queues();
  Status inside;
  ok(queues->host().run(
      [&](void*) {
        inside = record(queues->host()).wait();
        return queues->host().order_after(record(queues->host()));
      },
      "self"));
  ok(record(queues->host()).wait());
  EXPECT_THAT(inside.message(), HasSubstr("wait for itself"));
}

TEST(Queues, BadDelaysAreAnErrorOfEveryCall) {
  for (const char* text : {"1", "x:2", "1:", "1:2:3", "1:-1", "1:2000000"}) {
    const test::Delays delayed(text);
    const auto queues = make_cpu_queues();
    EXPECT_THAT(queues->up().copy(nullptr, nullptr, 0, "copy").message(), HasSubstr("SEED:MICROSECONDS"))
        << text;
    EXPECT_FALSE(queues->host().record_fence().ok());
  }
}

// In a forked process calls are errors, and what it destroys on its way out does not hang.
TEST(Queues, AForkedProcessGetsErrorsAndCanExit) {
  auto queues = make_cpu_queues();
  std::promise<void> gate;
  ok(queues->host().run([&](void*) { return gate.get_future().wait(), Status(); }, "busy at the fork"));
  Fence fence = record(queues->host());
  const pid_t child = fork();
  if (child == 0) {
    const auto says = [](const Status& status) {
      return status.message().find("forked") != std::string::npos;
    };
    bool good = says(queues->host().run([](void*) { return Status(); }, "run")) && says(fence.wait()) &&
                says(queues->up().copy(nullptr, nullptr, 0, "copy")) &&
                says(queues->up().record_fence().status()) &&
                says(queues->order_stream_after(nullptr, fence)) && fence.passed();
    queues.reset();
    fence = Fence();
    if (kThreadsAfterFork) {  // a queues of its own works
      const auto fresh = make_cpu_queues();
      good = good && fresh->up().run([](void*) { return Status(); }, "run").ok() &&
             fresh->up().record_fence()->wait().ok();
    }
    _exit(good ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  gate.set_value();
  ok(fence.wait());
}

}  // namespace
}  // namespace octavo::offload
