// The queues of a GPU: three streams, and a thread for the host's work.
//
// The work stream has priority over the caller's kernels, because its kernels are short and copies wait for
// them. Priorities do not matter to copies.
// SPDX-License-Identifier: MIT
#include "cuda/offload/copy_words.h"
#include "cuda/offload/queue.h"
#include "cuda/runtime/runtime.h"
#include "offload/thread_queue.h"

#include <atomic>

namespace octavo {
namespace cuda {
namespace {

using offload::Fence;
using offload::Queue;

// A graph is replayed without the host, and every offloaded step needs the host.
Status not_captured(const std::string& where, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  if (capture == cudaStreamCaptureStatusNone) return {};
  return Status::unsupported(
      "[offload] " + where +
      ": the stream is being captured, and a CUDA graph cannot hold an offloaded step; "
      "capture the model alone, or keep the states on the device");
}

// Returns the first address of the allocation, or of the registered range, of this host memory; 0 if the
// driver does not know it.
std::uintptr_t allocation_of(const void* data) {
  using GetAttribute = int(void* result, int attribute, unsigned long long address);
  constexpr int kRangeStart = 11;  // CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
  static auto* const get = reinterpret_cast<GetAttribute*>(driver_function("cuPointerGetAttribute"));
  std::uintptr_t begin = 0;
  if (get == nullptr || get(&begin, kRangeStart, reinterpret_cast<std::uintptr_t>(data)) != 0) return 0;
  return begin;
}

class CudaQueues final : public offload::DeviceQueues {
 public:
  static Result<std::unique_ptr<offload::DeviceQueues>> make(int device) {
    static std::atomic<std::uint64_t> made{0};
    const auto delays = offload::Delays::from_environment();
    if (!delays.ok()) return delays.status();
    auto queues = std::unique_ptr<CudaQueues>(new CudaQueues(device));  // NOLINT: the constructor is private
    const DeviceScope scope(device);
    int least = 0;
    int greatest = 0;
    if (cudaDeviceGetStreamPriorityRange(&least, &greatest) != cudaSuccess) (void)cudaGetLastError();
    const auto queue = [&](const char* name, int priority) {
      return StreamQueue::make(queues->name_ + name, queues->events_, priority, delays->of(made++));
    };
    auto up = queue(" up", least);
    if (!up.ok()) return up.status();
    auto work = queue(" work", greatest);
    if (!work.ok()) return work.status();
    auto down = queue(" down", least);
    if (!down.ok()) return down.status();
    queues->up_ = std::move(*up);
    queues->work_ = std::move(*work);
    queues->down_ = std::move(*down);
    queues->host_ = offload::make_thread_queue(queues->name_ + " host", delays->of(made++));
    // The thread uses only this device, so its functions need not set it and open no context elsewhere.
    Status bad = queues->host_->run(
        [device](void*) {
          cudaError_t error = cudaSetDevice(device);
          // This thread's calls must not disturb the graph captures of other threads.
          cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
          if (error == cudaSuccess) error = cudaThreadExchangeStreamCaptureMode(&mode);
          return error == cudaSuccess ? Status() : failed("[offload] a thread's device", error);
        },
        "begin");
    if (!bad.ok()) return bad;
    return std::unique_ptr<offload::DeviceQueues>(std::move(queues));
  }

  // The host queue is destroyed first, because its work enqueues copies.
  ~CudaQueues() override { host_.reset(); }

  Queue& up() override { return *up_; }
  Queue& work() override { return *work_; }
  Queue& down() override { return *down_; }
  Queue& host() override { return *host_; }

  Result<Fence> record_fence(void* stream) override {
    auto* const own = static_cast<cudaStream_t>(stream);
    if (Status bad = usable("fence", own); !bad.ok()) return bad;
    return events_->record_fence("the caller's stream", own);
  }
  Status order_stream_after(void* stream, const Fence& fence) override {
    if (fence.state() == nullptr) return {};
    auto* const own = static_cast<cudaStream_t>(stream);
    if (Status bad = usable("order", own); !bad.ok()) return bad;
    const auto* event = dynamic_cast<const EventFence*>(fence.state());
    if (event == nullptr) return fence.wait();
    const DeviceScope scope(events_->device());
    const cudaError_t error = cudaStreamWaitEvent(own, event->event(), 0);
    if (error == cudaSuccess) return {};
    (void)cudaGetLastError();
    return failed("[offload] " + name_ + ": ordering the caller's stream", error);
  }
  Status copy(void* stream, std::span<const offload::CopyRange> ranges) override {
    auto* const own = static_cast<cudaStream_t>(stream);
    if (Status bad = usable("copy", own); !bad.ok()) return bad;
    const DeviceScope scope(events_->device());
    static_assert(kMaxRanges <= WordCopies::kMost && kMaxRangeBytes <= 4 * 32);
    WordCopies copies{};
    for (const offload::CopyRange& one : ranges)
      copies.of[copies.count++] = {one.to, one.from, static_cast<std::int32_t>(one.bytes / 4)};
    const cudaError_t error = copy_words(copies, own);
    if (error == cudaSuccess) return {};
    return failed("[offload] " + name_ + ": copying scalars", error);
  }
  bool in_one_allocation(const void* from, const void* to) override {
    if (!events_->ours()) return false;
    const DeviceScope scope(events_->device());
    const std::uintptr_t begin = allocation_of(from);
    return begin != 0 && begin == allocation_of(to);
  }

 private:
  explicit CudaQueues(int device)
      : name_("cuda:" + std::to_string(device)), events_(std::make_shared<EventPool>(device)) {}

  Status usable(const char* where, cudaStream_t stream) const {
    if (!events_->ours()) return offload::forked(name_);
    const DeviceScope scope(events_->device());
    return not_captured(where, stream);
  }

  const std::string name_;
  const std::shared_ptr<EventPool> events_;
  std::unique_ptr<Queue> up_, work_, down_, host_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<offload::DeviceQueues>> offload::make_cuda_queues(const std::string& where,
                                                                         int device) {
  if (Status bad = cuda::check_device(where, device); !bad.ok()) return bad;
  return cuda::CudaQueues::make(device);
}

}  // namespace octavo
