// The device that a benchmark runs on, the CPU or a GPU: its memory, its clock, and its copy methods.
// Measuring and reporting code uses devices only through this interface.
//
// GPU work is enqueued on one separate stream: fill, write, copy and work launched on stream() run in order.
// read, time_ms and wait return when that work is done. Errors are Failures.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/data.h"

#include <octavo/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo::cli {

// A block of device memory.
struct Buffer {
  std::shared_ptr<std::byte> bytes;
  std::int64_t size = 0;

  [[nodiscard]] std::byte* data() const { return bytes.get(); }
};

enum class CopyWay : std::uint8_t {
  library,    // memcpy; cudaMemcpyAsync
  streaming,  // a loop of streaming stores; a kernel
};

class BenchDevice {
 public:
  BenchDevice() = default;
  virtual ~BenchDevice() = default;
  BenchDevice(const BenchDevice&) = delete;
  BenchDevice& operator=(const BenchDevice&) = delete;

  [[nodiscard]] virtual Device device() const = 0;
  [[nodiscard]] virtual void* stream() const = 0;
  // Bytes that can be allocated now.
  [[nodiscard]] virtual std::int64_t free_memory() const = 0;

  // Returns zeroed memory on a page boundary, or a null buffer for 0 bytes.
  virtual Buffer allocate(std::int64_t bytes) = 0;
  // Writes the first `numel` elements of a data.h stream, and zeros in rows that the mask (in the device's
  // memory) excludes.
  virtual void fill(void* data, DType dtype, std::uint64_t stream, int shift, std::int64_t numel,
                    const RowMask& mask) = 0;
  void fill(void* data, DType dtype, std::uint64_t stream, int shift, std::int64_t numel) {
    fill(data, dtype, stream, shift, numel, {});
  }
  virtual void write(void* to, std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::byte> read(const void* from, std::int64_t bytes) = 0;
  virtual void copy(CopyWay way, std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void wait() = 0;

  // Calls `work` `repeat` times, back to back, and returns the milliseconds of each call. On a GPU, events
  // measure the work that each call enqueues.
  virtual std::vector<double> time_ms(int repeat, const std::function<void()>& work) = 0;

  // mark() records the current point of the device's work. marks_us() waits until all marks since its last
  // call have been reached, and returns their times in microseconds of the steady clock.
  virtual void mark() = 0;
  virtual std::vector<double> marks_us() = 0;

  [[nodiscard]] bool on_gpu() const { return device().kind == DeviceKind::cuda; }
};

// Parses "cpu", "cuda" or "cuda:1"; anything else is a usage Failure.
Device parse_device(const std::string& text);
// Returns "cpu" or "cuda:1".
std::string device_name(Device device);

// Throws a Failure if the device does not exist or this build cannot use it. `threads` applies to the CPU.
std::unique_ptr<BenchDevice> make_device(Device device, int threads);
std::unique_ptr<BenchDevice> make_host_device(int threads);
// In cuda_device.cc; throws a Failure in a build without CUDA. REQUIRES: gpu_info() lists the device as
// usable.
std::unique_ptr<BenchDevice> make_cuda_device(int index);

}  // namespace octavo::cli
