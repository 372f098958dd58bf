// SPDX-License-Identifier: MIT
#include "cuda/offload/queue.h"

#include "cuda/runtime/runtime.h"
#include "offload/thread_queue.h"

#include <chrono>
#include <thread>

namespace octavo::cuda {
namespace {

using offload::Fence;

// Called by a thread of the driver, in the stream's order.
void CUDART_CB sleep_in_stream(void* microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::intptr_t>(microseconds)));
}

Status checked(const std::string& row, const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return failed("[offload] " + row + ": " + what, error);
}

}  // namespace

Result<std::unique_ptr<StreamQueue>> StreamQueue::make(std::string row, std::shared_ptr<EventPool> events,
                                                       int priority, offload::Delays delays) {
  const DeviceScope scope(events->device());
  cudaStream_t stream = nullptr;
  // Non-blocking: only fences order this stream, not the default stream.
  const cudaError_t error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority);
  if (Status bad = checked(row, "making a stream", error); !bad.ok()) return bad;
  return std::unique_ptr<StreamQueue>(new StreamQueue(std::move(row), std::move(events), stream,
                                                      delays));  // NOLINT: the constructor is private
}

StreamQueue::StreamQueue(std::string row, std::shared_ptr<EventPool> events, cudaStream_t stream,
                         offload::Delays delays)
    : row_(std::move(row)), events_(std::move(events)), stream_(stream), delays_(delays) {
  register_source();
}

StreamQueue::~StreamQueue() {
  if (!events_->ours()) return;  // in a forked process the lock of the trace may never be released
  unregister_source();
  const DeviceScope scope(events_->device());
  (void)cudaStreamSynchronize(stream_);
  collect();
  if (base_ != nullptr) events_->release(EventPool::Kind::time, base_);
  (void)cudaStreamDestroy(stream_);
  (void)cudaGetLastError();
}

void StreamQueue::synchronize() {
  if (!events_->ours()) return;
  const DeviceScope scope(events_->device());
  (void)cudaStreamSynchronize(stream_);
  (void)cudaGetLastError();
}

Status StreamQueue::usable() {
  if (!events_->ours()) return offload::forked("the queue '" + row_ + "'");
  const std::lock_guard lock(mutex_);
  return error_;
}

Status StreamQueue::record_error(Status status) {
  if (status.ok()) return status;
  const std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = status;
  return status;
}

template <class What>
Status StreamQueue::queue(const char* label, What&& what) {
  if (Status bad = usable(); !bad.ok()) return bad;
  const DeviceScope scope(events_->device());
  std::int64_t pause = 0;
  if (delays_.microseconds > 0) {
    const std::lock_guard lock(mutex_);
    pause = delays_.next();
  }
  if (pause > 0) {
    const cudaError_t error =
        cudaLaunchHostFunc(stream_, sleep_in_stream, reinterpret_cast<void*>(std::intptr_t{pause}));
    if (Status bad = checked(row_, "a delay", error); !bad.ok()) return record_error(bad);
  }
  if (!offload::tracing()) return record_error(what());
  const auto begin = begin_timed();
  if (!begin.ok()) return record_error(begin.status());
  if (Status bad = record_error(what()); !bad.ok()) return bad;
  const auto end = events_->acquire(EventPool::Kind::time);
  if (!end.ok()) return record_error(end.status());
  if (Status bad = checked(row_, "a trace's event", cudaEventRecord(*end, stream_)); !bad.ok())
    return record_error(bad);
  const std::lock_guard lock(mutex_);
  timed_.push_back({label, *begin, *end});
  return {};
}

// The clocks of the host and the device are compared once, after waiting for the stream.
Result<cudaEvent_t> StreamQueue::begin_timed() {
  const std::lock_guard lock(mutex_);
  if (base_ == nullptr) {
    const auto base = events_->acquire(EventPool::Kind::time);
    if (!base.ok()) return base.status();
    base_ = *base;
    Status bad = checked(row_, "a trace's event", cudaStreamSynchronize(stream_));
    if (bad.ok()) bad = checked(row_, "a trace's event", cudaEventRecord(base_, stream_));
    if (bad.ok()) bad = checked(row_, "a trace's event", cudaEventSynchronize(base_));
    if (!bad.ok()) return bad;
    base_clock_ = offload::trace_clock();
  }
  const auto begin = events_->acquire(EventPool::Kind::time);
  if (!begin.ok()) return begin.status();
  if (Status bad = checked(row_, "a trace's event", cudaEventRecord(*begin, stream_)); !bad.ok()) return bad;
  return *begin;
}

void StreamQueue::collect() {
  if (!events_->ours()) return;
  const DeviceScope scope(events_->device());
  const std::lock_guard lock(mutex_);
  for (const Timed& timed : timed_) {
    float begin = 0.0F;
    float length = 0.0F;
    if (cudaEventSynchronize(timed.end) == cudaSuccess &&
        cudaEventElapsedTime(&begin, base_, timed.begin) == cudaSuccess &&
        cudaEventElapsedTime(&length, timed.begin, timed.end) == cudaSuccess) {
      const double at = base_clock_ + 1e3 * static_cast<double>(begin);
      offload::record_trace(row_, timed.label, at, at + 1e3 * static_cast<double>(length));
    }
    events_->release(EventPool::Kind::time, timed.begin);
    events_->release(EventPool::Kind::time, timed.end);
  }
  timed_.clear();
}

Status StreamQueue::copy(void* to, const void* from, std::int64_t bytes, const char* label) {
  if (bytes <= 0) return usable();
  return queue(label, [&] {
    const cudaError_t error =
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_);
    return checked(row_, label, error);
  });
}

Status StreamQueue::run(std::function<Status(void* stream)> work, const char* label) {
  return queue(label, [&]() -> Status {
    try {
      return work(stream_);
    } catch (const std::exception& error) {
      return Status::failed("[offload] " + std::string(label) + ": " + error.what());
    }
  });
}

Result<Fence> StreamQueue::record_fence() {
  if (Status bad = usable(); !bad.ok()) return bad;
  auto fence = events_->record_fence(row_, stream_, this);
  if (!fence.ok()) return record_error(fence.status());
  return fence;
}

Status StreamQueue::order_after(const Fence& fence) {
  if (Status bad = usable(); !bad.ok() || fence.state() == nullptr) return bad;
  const auto* event = dynamic_cast<const EventFence*>(fence.state());
  if (event == nullptr) return record_error(fence.wait());
  if (event->queue() == this) return {};
  const DeviceScope scope(events_->device());
  return record_error(checked(row_, "waiting for a fence", cudaStreamWaitEvent(stream_, event->event(), 0)));
}

}  // namespace octavo::cuda
