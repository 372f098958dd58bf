// SPDX-License-Identifier: MIT
#include "cuda/offload/events.h"

#include "cuda/runtime/runtime.h"
#include "offload/thread_queue.h"

#include <unistd.h>

#include <chrono>
#include <thread>

namespace octavo::cuda {
namespace {

// A wait queries some tens of microseconds without a pause, and then sleeps between two queries.
constexpr int kQuickQueries = 32;
constexpr std::chrono::microseconds kPause{20};

std::string of(int device) { return "[offload] cuda:" + std::to_string(device); }

}  // namespace

EventPool::EventPool(int device) : device_(device), owner_(getpid()) {}

EventPool::~EventPool() {
  if (!ours()) return;
  const DeviceScope scope(device_);
  for (const auto& events : free_) {
    for (const cudaEvent_t event : events) (void)cudaEventDestroy(event);
  }
}

bool EventPool::ours() const { return owner_ == getpid(); }

Result<cudaEvent_t> EventPool::acquire(Kind kind) {
  {
    const std::lock_guard lock(mutex_);
    auto& events = free_[static_cast<int>(kind)];
    if (!events.empty()) {
      const cudaEvent_t event = events.back();
      events.pop_back();
      return event;
    }
  }
  const DeviceScope scope(device_);
  cudaEvent_t event = nullptr;
  // cudaEventBlockingSync is not used: a device allows only some dozens of such events, and recording more
  // blocks until the first ones have passed.
  const unsigned flags = kind == Kind::time ? cudaEventDefault : cudaEventDisableTiming;
  if (const cudaError_t error = cudaEventCreateWithFlags(&event, flags); error != cudaSuccess) {
    (void)cudaGetLastError();
    return failed(of(device_) + " making an event", error);
  }
  return event;
}

void EventPool::release(Kind kind, cudaEvent_t event) {
  if (!ours()) return;
  const std::lock_guard lock(mutex_);
  free_[static_cast<int>(kind)].push_back(event);
}

Result<offload::Fence> EventPool::record_fence(const std::string& where, cudaStream_t stream,
                                               const void* queue) {
  const auto event = acquire(Kind::order);
  if (!event.ok()) return event.status();
  auto state = std::make_shared<EventFence>(shared_from_this(), *event, queue);
  const DeviceScope scope(device_);
  if (const cudaError_t error = cudaEventRecord(*event, stream); error != cudaSuccess) {
    (void)cudaGetLastError();
    return failed(of(device_) + " " + where + ": recording an event", error);
  }
  return offload::Fence(std::move(state));
}

bool EventFence::passed() const {
  if (passed_.load(std::memory_order_acquire) || !pool_->ours()) return true;
  const DeviceScope scope(pool_->device());
  const cudaError_t error = cudaEventQuery(event_);
  if (error != cudaSuccess) (void)cudaGetLastError();
  if (error == cudaSuccess) passed_.store(true, std::memory_order_release);
  return error != cudaErrorNotReady;
}

// cudaEventSynchronize would keep a CPU busy.
Status EventFence::wait() const {
  if (!pool_->ours()) return offload::forked("a fence of cuda:" + std::to_string(pool_->device()));
  if (passed_.load(std::memory_order_acquire)) return {};
  const DeviceScope scope(pool_->device());
  cudaError_t error = cudaEventQuery(event_);
  for (int queries = 1; error == cudaErrorNotReady; ++queries) {
    if (queries > kQuickQueries) std::this_thread::sleep_for(kPause);
    error = cudaEventQuery(event_);
  }
  if (error == cudaSuccess) {
    passed_.store(true, std::memory_order_release);
    return {};
  }
  (void)cudaGetLastError();
  return failed(of(pool_->device()) + " waiting for queued work", error);
}

}  // namespace octavo::cuda
