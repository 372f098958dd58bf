// Queues of threads and their marks: order, errors that stay, forks, delays.
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
Mark mark_of(Queue& queue) {
  auto mark = queue.mark();
  ok(mark.status());
  return mark.ok() ? *mark : Mark();
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsAfterFork = false;  // ThreadSanitizer ends a forked process that starts one
#else
constexpr bool kThreadsAfterFork = true;
#endif

TEST(Queues, EmptyMarksHavePassed) {
  const Mark mark;
  EXPECT_TRUE(mark.passed());
  ok(mark.wait());
  const auto link = make_cpu_link();
  ok(link->up().after(mark));
  ok(mark_of(link->up()).wait());
  ok(link->order(nullptr, mark));
  EXPECT_TRUE(link->mark(nullptr)->passed());
}

TEST(Queues, WorkRunsInOrderBesideTheCaller) {
  const auto link = make_cpu_link();
  std::promise<void> gate;
  std::vector<int> seen;
  const auto caller = std::this_thread::get_id();
  ok(link->work().run(
      [&](void* stream) {
        EXPECT_EQ(stream, nullptr);
        EXPECT_NE(std::this_thread::get_id(), caller);
        gate.get_future().wait();
        return Status();
      },
      "gate"));
  const Mark before = mark_of(link->work());
  for (int i = 0; i < 100; ++i) {
    ok(link->work().run([&seen, i](void*) { return seen.push_back(i), Status(); }, "push"));
  }
  const Mark after = mark_of(link->work());
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
  const auto link = make_cpu_link();
  std::promise<void> gate;
  ok(link->up().run([&](void*) { return gate.get_future().wait(), Status(); }, "gate"));
  std::atomic<bool> early{false};
  std::atomic<bool> late{false};
  ok(link->work().run([&](void*) { return early = true, Status(); }, "early"));
  const Mark first = mark_of(link->work());
  ok(link->work().after(mark_of(link->up())));
  ok(link->work().run([&](void*) { return late = true, Status(); }, "late"));
  ok(first.wait());
  EXPECT_TRUE(early);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(late);
  gate.set_value();
  ok(mark_of(link->work()).wait());
  EXPECT_TRUE(late);
}

TEST(Queues, DestructionWaitsForAllWorkAndMarksOutliveIt) {
  std::atomic<int> runs{0};
  Mark mark;
  {
    const auto link = make_cpu_link();
    for (int i = 0; i < 20; ++i) {
      ok(link->host().run(
          [&](void*) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            return link->up().run([&](void*) { return ++runs, Status(); }, "up");
          },
          "host"));
    }
    mark = mark_of(link->host());
  }
  EXPECT_EQ(runs, 20);
  EXPECT_TRUE(mark.passed());
  ok(mark.wait());
}

// A slot of staging memory that every step goes through in both directions: any wrong order shows.
void pass_through_slots(int steps) {
  const auto link = make_cpu_link();
  constexpr int kSlots = 2;
  constexpr int kTensors = 5;
  constexpr std::int64_t kBytes = sizeof(std::int64_t) * 64;
  std::vector<std::vector<std::int64_t>> host(kTensors, std::vector<std::int64_t>(64, 1));
  std::vector<std::vector<std::int64_t>> slots(kSlots, std::vector<std::int64_t>(64, -1));
  std::vector<Mark> freed(kSlots);
  for (int step = 0; step < steps; ++step) {
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const auto slot = static_cast<std::size_t>(step * kTensors + tensor) % kSlots;
      auto& staged = slots[slot];
      auto& state = host[static_cast<std::size_t>(tensor)];
      ok(link->up().after(freed[slot]));
      ok(link->up().copy(staged.data(), state.data(), kBytes, "states up"));
      ok(link->work().after(mark_of(link->up())));
      ok(link->work().run(
          [&staged, tensor](void*) {
            for (std::int64_t& value : staged) value = 3 * value + tensor;
            return Status();
          },
          "step"));
      ok(link->down().after(mark_of(link->work())));
      ok(link->down().copy(state.data(), staged.data(), kBytes, "states down"));
      freed[slot] = mark_of(link->down());
      // The next step of the tensor reads what this one wrote.
      ok(link->up().after(tensor == kTensors - 1 ? freed[slot] : Mark()));
    }
  }
  ok(link->order(nullptr, mark_of(link->down())));
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
  const auto link = make_cpu_link();
  int sum = 0;  // only the queue's thread writes it
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        ok(link->host().run([&](void*) { return ++sum, Status(); }, "add"));
        ok(link->down().after(mark_of(link->host())));
        ok(mark_of(link->host()).wait());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ok(mark_of(link->down()).wait());
  EXPECT_EQ(sum, 200);
}

TEST(Queues, AnErrorStaysStopsWhatFollowsAndTravelsWithMarks) {
  const auto link = make_cpu_link();
  std::promise<void> gate;
  std::atomic<int> ran{0};
  ok(link->up().run([&](void*) { return gate.get_future().wait(), Status(); }, "gate"));
  const Mark good = mark_of(link->up());
  ok(link->up().run([](void*) { return Status::failed("the copy broke"); }, "bad"));
  const Mark bad = mark_of(link->up());
  ok(link->up().run([&](void*) { return ++ran, Status(); }, "never"));
  ok(link->work().after(bad));
  ok(link->work().run([&](void*) { return ++ran, Status(); }, "never"));
  const Mark behind = mark_of(link->work());
  gate.set_value();
  ok(good.wait());
  EXPECT_EQ(bad.wait().message(), "the copy broke");
  EXPECT_TRUE(bad.passed());
  EXPECT_EQ(behind.wait().message(), "the copy broke");
  EXPECT_EQ(link->order(nullptr, behind).message(), "the copy broke");
  EXPECT_EQ(ran, 0);
  ok(good.wait());
  EXPECT_EQ(link->up().mark().status().message(), "the copy broke");
  EXPECT_EQ(link->work().copy(nullptr, nullptr, 0, "copy").message(), "the copy broke");
  EXPECT_EQ(link->work().run([](void*) { return Status(); }, "run").message(), "the copy broke");
  EXPECT_EQ(link->work().after(good).message(), "the copy broke");
  ok(link->down().copy(nullptr, nullptr, 0, "another queue works"));
  ok(mark_of(link->down()).wait());
}

TEST(Queues, ExceptionsAreErrors) {
  const auto link = make_cpu_link();
  ok(link->host().run([](void*) -> Status { throw std::runtime_error("thrown"); }, "update"));
  auto mark = link->host().mark();
  const Status status = mark.ok() ? mark->wait() : mark.status();
  EXPECT_EQ(status.message(), "[offload] update: thrown");
}

TEST(Queues, WaitingForItselfIsAnErrorAndNoHang) {
  const auto link = make_cpu_link();
  Status inside;
  ok(link->host().run(
      [&](void*) {
        inside = mark_of(link->host()).wait();
        return link->host().after(mark_of(link->host()));
      },
      "self"));
  ok(mark_of(link->host()).wait());
  EXPECT_THAT(inside.message(), HasSubstr("wait for itself"));
}

TEST(Queues, BadDelaysAreAnErrorOfEveryCall) {
  for (const char* text : {"1", "x:2", "1:", "1:2:3", "1:-1", "1:2000000"}) {
    const test::Delays delayed(text);
    const auto link = make_cpu_link();
    EXPECT_THAT(link->up().copy(nullptr, nullptr, 0, "copy").message(), HasSubstr("SEED:MICROSECONDS"))
        << text;
    EXPECT_FALSE(link->host().mark().ok());
  }
}

// In a forked process calls are errors, and what it destroys on its way out does not hang.
TEST(Queues, AForkedProcessGetsErrorsAndCanExit) {
  auto link = make_cpu_link();
  std::promise<void> gate;
  ok(link->host().run([&](void*) { return gate.get_future().wait(), Status(); }, "busy at the fork"));
  Mark mark = mark_of(link->host());
  const pid_t child = fork();
  if (child == 0) {
    const auto says = [](const Status& status) {
      return status.message().find("forked") != std::string::npos;
    };
    bool good = says(link->host().run([](void*) { return Status(); }, "run")) && says(mark.wait()) &&
                says(link->up().copy(nullptr, nullptr, 0, "copy")) && says(link->up().mark().status()) &&
                says(link->order(nullptr, mark)) && mark.passed();
    link.reset();
    mark = Mark();
    if (kThreadsAfterFork) {  // a link of its own works
      const auto fresh = make_cpu_link();
      good = good && fresh->up().run([](void*) { return Status(); }, "run").ok() &&
             fresh->up().mark()->wait().ok();
    }
    _exit(good ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  gate.set_value();
  ok(mark.wait());
}

}  // namespace
}  // namespace octavo::offload
