// Four threads that emulate a device and its host.
// SPDX-License-Identifier: MIT
#include "offload/thread_queue.h"

#include <array>
#include <atomic>
#include <cstring>

namespace octavo::offload {
namespace {

class CpuQueues final : public DeviceQueues {
 public:
  explicit CpuQueues(const Result<Delays>& delays) {
    constexpr std::array kRows = {"cpu up", "cpu work", "cpu down", "cpu host"};
    static std::atomic<std::uint64_t> made{0};  // all queues of a process have different delays
    for (std::size_t i = 0; i < kRows.size(); ++i) {
      queues_[i] = make_thread_queue(
          kRows[i], delays.ok() ? Result<Delays>(delays->of(made++)) : Result<Delays>(delays.status()));
    }
  }
  // The host queue is destroyed first, because its work enqueues copies.
  ~CpuQueues() override {
    for (const std::size_t i : {3, 2, 1, 0}) queues_[i].reset();
  }

  Queue& up() override { return *queues_[0]; }
  Queue& work() override { return *queues_[1]; }
  Queue& down() override { return *queues_[2]; }
  Queue& host() override { return *queues_[3]; }
  Result<Fence> record_fence(void* /*stream*/) override { return Fence(); }
  Status order_stream_after(void* /*stream*/, const Fence& fence) override { return fence.wait(); }
  Status copy(void* /*stream*/, std::span<const CopyRange> ranges) override {
    for (const CopyRange& one : ranges) std::memcpy(one.to, one.from, static_cast<std::size_t>(one.bytes));
    return {};
  }
  bool in_one_allocation(const void* /*from*/, const void* /*to*/) override { return true; }

 private:
  std::array<std::unique_ptr<Queue>, 4> queues_;
};

}  // namespace

std::unique_ptr<DeviceQueues> make_cpu_queues() {
  return std::make_unique<CpuQueues>(Delays::from_environment());
}

}  // namespace octavo::offload
