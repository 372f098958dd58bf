// Tests the thread pool: every index runs once, an exception leaves only when every thread has left, workers
// are not bound to their caller's CPU, and memory runs out before the work and never during it.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"

#include "cpu/affinity.h"
#include "cpu/kernels.h"

#include <octavo/codec.h>
#include <octavo/octavo.h>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

// Allocations of this many bytes or more fail on threads that set it; 0: none fail.
thread_local std::size_t refused_from = 0;
}  // namespace

// Both forms of new and delete are replaced, so that sanitizers see matching pairs. They are not inline,
// because GCC would warn about free next to new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* memory = refused_from != 0 && size >= refused_from ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  void* memory = refused_from != 0 && size >= refused_from
                     ? nullptr
                     : std::aligned_alloc(align, (size + align - 1) / align * align);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/,
                                       std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

namespace octavo::cpu {
namespace {

// Waits until `count` threads have arrived, so that each index of a job runs on a different thread.
class Meeting {
 public:
  explicit Meeting(int count) : missing_(count) {}
  void arrive() {
    --missing_;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (missing_ > 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }
  [[nodiscard]] bool complete() const { return missing_ <= 0; }

 private:
  std::atomic<int> missing_;
};

TEST(Pool, RunsEveryIndexOnce) {
  for (const int threads : {1, 2, 5, 0}) {
    std::vector<std::atomic<int>> seen(1000);
    auto body = [&](std::int64_t i, Scratch&) { ++seen[static_cast<std::size_t>(i)]; };
    parallel_for(1000, threads, body);
    for (const auto& count : seen) ASSERT_EQ(count, 1) << threads;
  }
}

// Whichever thread throws, no thread is inside a body when the exception arrives, and the pool still works.
TEST(Pool, AnExceptionLeavesWhenEveryThreadHas) {
  for (const bool on_caller : {true, false}) {
    Meeting meeting(3);
    std::atomic<int> inside{0};
    const auto caller = std::this_thread::get_id();
    auto body = [&](std::int64_t, Scratch&) {
      ++inside;
      meeting.arrive();
      const bool throws = (std::this_thread::get_id() == caller) == on_caller;
      if (!throws) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      --inside;
      if (throws) throw std::runtime_error("from a body");
    };
    try {
      parallel_for(3, 3, body);
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(inside, 0) << on_caller;
      EXPECT_STREQ(error.what(), "from a body");
    }
    EXPECT_TRUE(meeting.complete());
  }
}

TEST(Pool, NoBodyBeginsAfterAnException) {
  constexpr int kCount = 30000;
  std::atomic<int> begun{0};
  auto body = [&](std::int64_t i, Scratch&) {
    ++begun;
    if (i == 0) throw std::runtime_error("at once");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_THROW(parallel_for(kCount, 3, body), std::runtime_error);
  EXPECT_LT(begun, kCount);
}

// Returns the CPU masks of the workers whose caller is bound to one CPU.
std::vector<cpu_set_t> masks_of_workers(int threads) {
  std::mutex mutex;
  std::vector<cpu_set_t> masks;
  Meeting meeting(threads);
  const auto caller = std::this_thread::get_id();
  auto body = [&](std::int64_t, Scratch&) {
    meeting.arrive();
    if (std::this_thread::get_id() == caller) return;
    cpu_set_t own;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof own, &own);
    const std::lock_guard lock(mutex);
    masks.push_back(own);
  };
  parallel_for(threads, threads, body);
  return masks;
}

cpu_set_t mask_of(pid_t thread) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(thread, sizeof mask, &mask);
  return mask;
}

cpu_set_t first_of(const cpu_set_t& mask) {
  cpu_set_t one;
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) CPU_SET(cpu, &one);
  }
  return one;
}

// The workers are new, because each test uses more of them than all tests before. The last two tests of this
// suite must run in this order, because the second loads an OpenMP runtime.
TEST(PoolAffinity, WorkersHaveTheProcessMask) {
  const cpu_set_t all = mask_of(0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one CPU: there is nothing to compare";
  std::vector<cpu_set_t> masks;
  int count = 0;
  std::thread bound([&] {
    const cpu_set_t one = first_of(all);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    count = available_cpus();
    masks = masks_of_workers(8);
  });
  bound.join();
  EXPECT_EQ(count, CPU_COUNT(&all));
  ASSERT_EQ(masks.size(), 7U);
  for (const cpu_set_t& mask : masks) EXPECT_TRUE(CPU_EQUAL(&mask, &all)) << CPU_COUNT(&mask);
}

// GCC's OpenMP runtime binds the thread that loads it as soon as it is loaded.
TEST(PoolAffinity, AnOpenMpRuntimeThatBindsTheMainThread) {
  const cpu_set_t all = mask_of(0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one CPU: there is nothing to compare";
  ASSERT_EQ(setenv("OMP_PROC_BIND", "true", 1), 0);
  if (dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) GTEST_SKIP() << "no libgomp.so.1 here";
  const cpu_set_t bound = mask_of(0);
  ASSERT_LT(CPU_COUNT(&bound), CPU_COUNT(&all));
  EXPECT_EQ(available_cpus(), CPU_COUNT(&all));
  const auto masks = masks_of_workers(12);
  ASSERT_EQ(masks.size(), 11U);
  for (const cpu_set_t& mask : masks) EXPECT_TRUE(CPU_EQUAL(&mask, &all)) << CPU_COUNT(&mask);
  EXPECT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

// One fp32 parameter with SGD, large enough for several threads, with its step count in the caller's memory.
struct Plain {
  std::vector<float> param = std::vector<float>(1U << 17, 1.0F), grad = std::vector<float>(1U << 17, 0.5F);
  std::int64_t taken = 6;
  octavo_engine* engine = nullptr;
  octavo_engine_device device{};
  octavo_engine_args args{};

  Plain() {
    EXPECT_EQ(octavo_engine_create(static_cast<std::uint32_t>(Algorithm::sgd), &engine), 0);
    octavo_step_args options{};
    options.struct_size = sizeof options;
    EXPECT_EQ(octavo_step_args_init(&options), 0);
    options.lr = 1.0;
    EXPECT_EQ(octavo_engine_set_group(engine, 0, 0, &options, 0, 0), 0);
    octavo_engine_tensor t{};
    t.struct_size = sizeof t;
    t.numel = static_cast<std::int64_t>(param.size());
    t.param = param.data();
    t.step = &taken;
    const std::uint32_t handle = 0;
    EXPECT_EQ(octavo_engine_set(engine, &handle, &t, 1), 0) << octavo_last_error();
    const void* const gradient = grad.data();
    const std::uint8_t dtype = 0;
    EXPECT_EQ(octavo_engine_begin(engine, &handle, &gradient, &dtype, 1, 0, nullptr), 0);
    device.struct_size = sizeof device;
    args.struct_size = sizeof args;
    args.threads = 2;
    args.devices = &device;
    args.device_count = 1;
  }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;
  ~Plain() { octavo_engine_destroy(engine); }
};

// The calling thread is new and has no memory for its scratch: nothing is changed, and the error message
// allocates nothing.
TEST(PoolMemory, ACallerWithoutMemoryChangesNothing) {
  Plain plain;
  octavo_status status = 0;
  std::string text;
  std::thread poor([&] {
    octavo_step_report report{};
    report.struct_size = sizeof report;
    refused_from = sizeof(Scratch);
    status = octavo_engine_step(plain.engine, &plain.args, &report);
    refused_from = 0;
    text = octavo_last_error();
  });
  poor.join();
  EXPECT_EQ(status, 3U);
  EXPECT_EQ(text, "[octavo] out of host memory");
  EXPECT_EQ(plain.taken, 6);
  for (const float p : plain.param) ASSERT_EQ(p, 1.0F);
}

// Rank-1 scales are written before the pool is used.
TEST(PoolMemory, AnEncoderWithoutMemoryChangesNothing) {
  const MomentSpec spec{Moment::second, StateFormat::int4_rank1, 0, 64 * 64, {64, 64}, 2};
  const std::vector<float> values(64 * 64, 0.25F);
  std::vector<std::byte> codes(64 * 64 / 2, std::byte{7});
  std::vector<float> scales(128, 3.0F);
  bool thrown = false;
  std::thread poor([&] {
    refused_from = sizeof(Scratch);
    try {
      (void)encode(spec, values, codes, scales);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    refused_from = 0;
  });
  poor.join();
  EXPECT_TRUE(thrown);
  for (const float scale : scales) ASSERT_EQ(scale, 3.0F);
  for (const std::byte code : codes) ASSERT_EQ(code, std::byte{7});
}

// A worker without memory for its scratch is not used; the others do the work.
TEST(PoolMemory, FewerWorkersWithoutMemory) {
  const auto sum = [](int threads) {
    std::atomic<std::int64_t> total{0};
    auto body = [&](std::int64_t i, Scratch&) { total += i; };
    parallel_for(10000, threads, body);
    return total.load();
  };
  const std::int64_t expected = sum(2);
  for (const std::size_t limit : {sizeof(Scratch), std::size_t{1}}) {
    refused_from = limit;
    const std::int64_t got = sum(64);
    refused_from = 0;
    EXPECT_EQ(got, expected) << limit;
  }
  EXPECT_EQ(sum(64), expected);
}

}  // namespace
}  // namespace octavo::cpu
