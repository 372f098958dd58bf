// A GPU as a benchmark device: memory, a separate stream, events for timing, and two copy methods
// (cudaMemcpyAsync and a kernel). Every CUDA error becomes a Failure with the runtime's message.
//
// The command and the library each link the static CUDA runtime. Both work in the device's primary context,
// so they can use the same memory and streams.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/device.h"

#include "benchmarks/engine/cuda_kernels.h"
#include "cli/cli.h"
#include "cli/table.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>

namespace octavo::cli {
namespace {

void check_cuda(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // so that a later call does not report it again
  throw Failure(kExitFailure, what + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

class Stream {
 public:
  Stream() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a CUDA stream");
  }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "creating a CUDA event"); }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event& operator=(Event&&) = delete;

  void record(cudaStream_t stream) { check_cuda(cudaEventRecord(event_, stream), "recording a CUDA event"); }
  // REQUIRES: both events have completed.
  [[nodiscard]] double ms_since(const Event& start) const {
    float elapsed = 0.0F;
    check_cuda(cudaEventElapsedTime(&elapsed, start.event_, event_), "reading CUDA events");
    return static_cast<double>(elapsed);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Makes the device the current one of this thread, before the stream is created.
struct Current {
  explicit Current(int index) { check_cuda(cudaSetDevice(index), "choosing cuda:" + std::to_string(index)); }
};

class CudaDevice final : public BenchDevice {
 public:
  explicit CudaDevice(int index) : index_(index), current_(index) {}

  [[nodiscard]] Device device() const override { return {DeviceKind::cuda, index_}; }
  [[nodiscard]] void* stream() const override { return stream_.get(); }

  [[nodiscard]] std::int64_t free_memory() const override {
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for the free memory of " + device_name(device()));
    return static_cast<std::int64_t>(free);
  }

  Buffer allocate(std::int64_t bytes) override {
    if (bytes == 0) return {};
    void* memory = nullptr;
    const auto size = static_cast<std::size_t>(bytes);
    if (const cudaError_t error = cudaMalloc(&memory, size); error != cudaSuccess)
      check_cuda(error, "allocating " + human_bytes(bytes) + " on " + device_name(device()) + ", where " +
                            human_bytes(free_memory()) + " are free");
    Buffer out{{static_cast<std::byte*>(memory), [](std::byte* at) { (void)cudaFree(at); }}, bytes};
    check_cuda(cudaMemsetAsync(memory, 0, size, stream_.get()), "clearing memory");
    return out;
  }

  using BenchDevice::fill;
  void fill(void* data, DType dtype, std::uint64_t stream, int shift, std::int64_t numel,
            const RowMask& mask) override {
    check_cuda(launch_fill(data, dtype, stream, shift, numel, mask, stream_.get()), "filling a tensor");
  }

  void write(void* to, std::span<const std::byte> bytes) override {
    if (bytes.empty()) return;
    check_cuda(cudaMemcpyAsync(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_.get()),
               "copying to the device");
    wait();  // the caller may free `bytes` after the return
  }

  std::vector<std::byte> read(const void* from, std::int64_t bytes) override {
    std::vector<std::byte> out(static_cast<std::size_t>(bytes));
    if (bytes > 0)
      check_cuda(cudaMemcpyAsync(out.data(), from, out.size(), cudaMemcpyDeviceToHost, stream_.get()),
                 "copying to the host");
    wait();
    return out;
  }

  void copy(CopyWay way, std::byte* to, const std::byte* from, std::int64_t bytes) override {
    check_cuda(way == CopyWay::streaming ? launch_copy(to, from, bytes, stream_.get())
                                         : cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes),
                                                           cudaMemcpyDeviceToDevice, stream_.get()),
               "copying on the device");
  }

  void wait() override {
    check_cuda(cudaStreamSynchronize(stream_.get()), "waiting for " + device_name(device()));
  }

  // Does not wait between calls, so that the device is busy from the second call on. The host's time to
  // enqueue a call is not counted, unless it exceeds the call's time on the device.
  std::vector<double> time_ms(int repeat, const std::function<void()>& work) override {
    std::vector<Event> starts(static_cast<std::size_t>(repeat)), ends(static_cast<std::size_t>(repeat));
    for (std::size_t i = 0; i < starts.size(); ++i) {
      starts[i].record(stream_.get());
      work();
      ends[i].record(stream_.get());
    }
    wait();
    std::vector<double> out;
    for (std::size_t i = 0; i < starts.size(); ++i) out.push_back(ends[i].ms_since(starts[i]));
    return out;
  }

  void mark() override { marks_.emplace_back().record(stream_.get()); }

  // Converts to host time: records and waits for one more event, and subtracts each mark's elapsed time from
  // the host clock.
  std::vector<double> marks_us() override {
    Event now;
    now.record(stream_.get());
    wait();
    const double here =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    std::vector<double> out;
    for (const Event& mark : std::exchange(marks_, {})) out.push_back(here - 1e3 * now.ms_since(mark));
    return out;
  }

 private:
  int index_;
  Current current_;
  Stream stream_;
  std::vector<Event> marks_;
};

}  // namespace

std::unique_ptr<BenchDevice> make_cuda_device(int index) { return std::make_unique<CudaDevice>(index); }

}  // namespace octavo::cli
