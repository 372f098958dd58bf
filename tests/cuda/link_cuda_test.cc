// Tests a GPU's queues: order between streams, the host's thread and the caller's streams; errors, graphs,
// forks, pinned memory, traces. Without a GPU every test reports that and is skipped.
// SPDX-License-Identifier: MIT
#include "offload/queue.h"

#include <octavo/offload.h>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

namespace octavo::offload {
namespace {

using testing::HasSubstr;

void ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }
void ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }
Fence record(Queue& queue) {
  auto fence = queue.record_fence();
  EXPECT_TRUE(fence.ok()) << fence.status().message();
  return fence.ok() ? *fence : Fence();
}

Status copied(void* to, const void* from, std::size_t bytes, void* stream) {
  const cudaError_t error =
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
  return error == cudaSuccess ? Status() : Status::failed(cudaGetErrorString(error));
}

class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xEE, bytes), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  [[nodiscard]] char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

// Delays a stream, then lets it write.
void hold(cudaStream_t stream, int milliseconds) {
  ok(cudaLaunchHostFunc(
      stream,
      [](void* time) {
        std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<std::intptr_t>(time)));
      },
      reinterpret_cast<void*>(static_cast<std::intptr_t>(milliseconds))));
}

class LinkCuda : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    make();
  }
  void TearDown() override {
    unsetenv("OCTAVO_OFFLOAD_DELAYS");
    queues.reset();
  }
  void make() {
    auto made = make_cuda_queues("[test]", 0);
    ASSERT_TRUE(made.ok()) << made.status().message();
    queues = std::move(*made);
  }
  HostMemory pinned(std::int64_t bytes) {
    auto made = HostMemory::allocate(bytes);
    EXPECT_TRUE(made.ok()) << made.status().message();
    EXPECT_TRUE(made->pinned()) << made->why_not();
    return std::move(*made);
  }

  std::unique_ptr<DeviceQueues> queues;
};

// States are copied up into few slots, changed on the device, and copied back: any wrong order is detected.
TEST_F(LinkCuda, NoDelayChangesWhatGoesThroughSlots) {
  constexpr int kSlots = 2;
  constexpr int kTensors = 5;
  constexpr int kSteps = 11;
  constexpr std::int64_t kBytes = 1 << 20;
  for (const char* delays : {"", "1:300", "2:2000"}) {
    setenv("OCTAVO_OFFLOAD_DELAYS", delays, 1);
    make();
    const HostMemory host = pinned(kTensors * kBytes);
    for (std::int64_t i = 0; i < host.bytes(); ++i)
      host.data()[i] = static_cast<std::byte>(i % 251 + i / kBytes);
    const std::vector<std::byte> first(host.data(), host.data() + host.bytes());
    const DeviceBytes slots(2 * kSlots * kBytes);
    std::vector<Fence> freed(kSlots);
    for (int step = 0; step < kSteps; ++step) {
      for (int tensor = 0; tensor < kTensors; ++tensor) {
        const int slot = (step * kTensors + tensor) % kSlots;
        char* const in = slots.data() + 2 * slot * kBytes;
        char* const out = in + kBytes;
        std::byte* const state = host.data() + tensor * kBytes;
        ok(queues->up().order_after(freed[static_cast<std::size_t>(slot)]));
        ok(queues->up().copy(in, state, kBytes, "states up"));
        ok(queues->work().order_after(record(queues->up())));
        ok(queues->work().run(
            [=](void* stream) {
              if (Status bad = copied(out, in + 1, kBytes - 1, stream); !bad.ok()) return bad;
              return copied(out + kBytes - 1, in, 1, stream);
            },
            "turn"));
        ok(queues->down().order_after(record(queues->work())));
        ok(queues->down().copy(state, out, kBytes, "states down"));
        freed[static_cast<std::size_t>(slot)] = record(queues->down());
        // The next step of a tensor reads what this one wrote. Because kSlots < kTensors, the order of slots
        // implies that.
      }
    }
    ok(record(queues->down()).wait());
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      std::vector<std::byte> expected(first.begin() + tensor * kBytes, first.begin() + (tensor + 1) * kBytes);
      std::rotate(expected.begin(), expected.begin() + kSteps, expected.end());
      EXPECT_EQ(std::memcmp(expected.data(), host.data() + tensor * kBytes, kBytes), 0)
          << "tensor " << tensor << ", delays '" << delays << "'";
    }
  }
}

// A gradient is copied down; the host's thread changes it after its arrival and queues the copy up itself.
TEST_F(LinkCuda, TheHostsThreadWaitsForCopiesAndQueuesOthers) {
  for (const char* delays : {"", "5:3000"}) {
    setenv("OCTAVO_OFFLOAD_DELAYS", delays, 1);
    make();
    constexpr std::int64_t kBytes = 8 << 20;
    const HostMemory host = pinned(kBytes);
    const DeviceBytes device(kBytes);
    cudaStream_t caller = nullptr;
    ok(cudaStreamCreateWithFlags(&caller, cudaStreamNonBlocking));
    hold(caller, 20);
    ok(cudaMemsetAsync(device.data(), 5, kBytes, caller));
    const auto ready = queues->record_fence(caller);
    ok(ready.status());
    EXPECT_FALSE(ready->passed());
    ok(queues->down().order_after(*ready));
    ok(queues->down().copy(host.data(), device.data(), kBytes, "gradient down"));
    const Fence down = record(queues->down());
    ok(queues->host().order_after(down));
    auto up = std::make_shared<Fence>();
    ok(queues->host().run(
        [&host, &device, this, up](void* stream) {
          EXPECT_EQ(stream, nullptr);
          for (std::int64_t i = 0; i < kBytes; ++i) {
            if (host.data()[i] != std::byte{5}) return Status::failed("not there yet");
            host.data()[i] = std::byte{9};
          }
          if (Status bad = queues->up().copy(device.data(), host.data(), kBytes, "weight up"); !bad.ok())
            return bad;
          auto fence = queues->up().record_fence();
          if (fence.ok()) *up = *fence;
          return fence.status();
        },
        "step"));
    ok(record(queues->host()).wait());
    EXPECT_TRUE(down.passed());
    ok(queues->order_stream_after(caller, *up));
    std::vector<char> seen(kBytes);
    ok(cudaMemcpyAsync(seen.data(), device.data(), kBytes, cudaMemcpyDefault, caller));
    ok(cudaStreamSynchronize(caller));
    EXPECT_THAT(seen, testing::Each(9));
    ok(cudaStreamDestroy(caller));
  }
}

TEST_F(LinkCuda, AStreamBehindAThreadsMarkWaitsForIt) {
  const HostMemory host = pinned(4096);
  const DeviceBytes device(4096);
  ok(queues->host().run(
      [&](void*) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::memset(host.data(), 3, 4096);
        return Status();
      },
      "slow"));
  ok(queues->up().order_after(record(queues->host())));
  ok(queues->up().copy(device.data(), host.data(), 4096, "up"));
  ok(record(queues->up()).wait());
  std::vector<char> seen(4096);
  ok(cudaMemcpy(seen.data(), device.data(), 4096, cudaMemcpyDefault));
  EXPECT_THAT(seen, testing::Each(3));
}

TEST_F(LinkCuda, AnErrorStays) {
  ok(record(queues->work()).wait());
  EXPECT_EQ(queues->work().run([](void*) { return Status::failed("no kernel"); }, "bad").message(),
            "no kernel");
  bool ran = false;
  EXPECT_FALSE(queues->work().run([&](void*) { return ran = true, Status(); }, "never").ok());
  EXPECT_FALSE(ran);
  EXPECT_EQ(queues->work().record_fence().status().message(), "no kernel");
  EXPECT_EQ(queues->work().order_after(record(queues->up())).message(), "no kernel");
  ok(record(queues->down()).wait());
}

TEST_F(LinkCuda, AStreamThatIsCapturedIsAnError) {
  cudaStream_t caller = nullptr;
  ok(cudaStreamCreateWithFlags(&caller, cudaStreamNonBlocking));
  ok(cudaStreamBeginCapture(caller, cudaStreamCaptureModeThreadLocal));
  EXPECT_THAT(queues->record_fence(caller).status().message(), HasSubstr("graph"));
  EXPECT_THAT(queues->order_stream_after(caller, record(queues->up())).message(), HasSubstr("graph"));
  cudaGraph_t graph = nullptr;
  ok(cudaStreamEndCapture(caller, &graph));
  ok(cudaGraphDestroy(graph));
  ok(queues->record_fence(caller).status());
  ok(cudaStreamDestroy(caller));
}

TEST_F(LinkCuda, PinnedMemoryIsPinnedForEveryDeviceAndNotThereInAForkedProcess) {
  const HostMemory host = pinned((64 << 20) + 5);
  for (const std::byte* at : {host.data(), host.data() + host.bytes() - 1}) {
    cudaPointerAttributes attributes{};
    ok(cudaPointerGetAttributes(&attributes, at));
    EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  }
  auto fence = std::make_unique<Fence>(record(queues->up()));
  const pid_t child = fork();
  if (child == 0) {
    const auto says = [](const Status& status) {
      return status.message().find("forked") != std::string::npos;
    };
    bool good = says(queues->up().copy(nullptr, nullptr, 1, "up")) &&
                says(queues->up().record_fence().status()) && says(queues->record_fence(nullptr).status()) &&
                says(fence->wait()) && says(queues->order_stream_after(nullptr, *fence)) &&
                says(queues->host().run([](void*) { return Status(); }, "run"));
    fence.reset();
    queues.reset();
    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ok(queues->up().copy(host.data(), host.data() + 4096, 1, "still works"));
  ok(record(queues->up()).wait());
}

TEST_F(LinkCuda, ATraceShowsStreamsAndTheThread) {
  const HostMemory host = pinned(32 << 20);
  const DeviceBytes device(32 << 20);
  trace_offload(true);
  ok(queues->up().copy(device.data(), host.data(), 16 << 20, "states up"));
  ok(queues->down().copy(host.data() + (16 << 20), device.data() + (16 << 20), 16 << 20, "states down"));
  ok(queues->work().run([&](void* stream) { return copied(device.data(), device.data() + 64, 64, stream); },
                        "step"));
  ok(queues->host().run([](void*) { return Status(); }, "cpu step"));
  ok(record(queues->host()).wait());
  const auto path = std::filesystem::temp_directory_path() / ("octavo_link_" + std::to_string(getpid()));
  ok(write_offload_trace(path.string()));
  trace_offload(false);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  for (const char* part : {"cuda:0 up", "cuda:0 down", "cuda:0 work", "cuda:0 host", "states up",
                           "states down", "\"step\"", "cpu step"})
    EXPECT_THAT(text.str(), HasSubstr(part));
  // 16 MiB take more than 50 microseconds on any link, and less than a second.
  const auto at = text.str().find("\"states up\"");
  const double duration = std::stod(text.str().substr(text.str().find("\"dur\": ", at) + 7));
  EXPECT_GT(duration, 50.0);
  EXPECT_LT(duration, 1e6);
}

}  // namespace
}  // namespace octavo::offload
