// Where a benchmark runs, the CPU or a GPU: its memory, its clock, and its ways to copy. What is measured,
// and how it is reported, knows no more of a device than this.
//
// Work on a GPU is queued on one stream of its own: fill, write, copy and whatever is given stream() are in
// order; read, time_ms and wait return when it is done. Errors are Failures.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/data.h"

#include <octavo/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo::cli {

// Memory of a device.
struct Buffer {
  std::shared_ptr<std::byte> bytes;
  std::int64_t size = 0;

  [[nodiscard]] std::byte* data() const { return bytes.get(); }
};

enum class CopyWay : std::uint8_t {
  library,    // memcpy; cudaMemcpyAsync
  streaming,  // our own: a loop of streaming stores; a kernel
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

  // Zeroed, on a page boundary; a null buffer for 0 bytes.
  virtual Buffer allocate(std::int64_t bytes) = 0;
  // The first `numel` elements of a stream of data.h, zeros where the mask (in the device's memory) has none.
  virtual void fill(void* data, DType dtype, std::uint64_t stream, int shift, std::int64_t numel,
                    const RowMask& mask) = 0;
  void fill(void* data, DType dtype, std::uint64_t stream, int shift, std::int64_t numel) {
    fill(data, dtype, stream, shift, numel, {});
  }
  virtual void write(void* to, std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::byte> read(const void* from, std::int64_t bytes) = 0;
  virtual void copy(CopyWay way, std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void wait() = 0;

  // Milliseconds of each of `repeat` calls of work, one right behind the other. On a GPU: of what a call
  // queues, by events around it.
  virtual std::vector<double> time_ms(int repeat, const std::function<void()>& work) = 0;

  // Notes the point that the device's work has reached; marks_us says when that was, in microseconds of the
  // steady clock, for all that were noted since the last time. It returns when they have passed.
  virtual void mark() = 0;
  virtual std::vector<double> marks_us() = 0;

  [[nodiscard]] bool on_gpu() const { return device().kind == DeviceKind::cuda; }
};

// "cpu", "cuda", "cuda:1"; anything else is a usage Failure.
Device parse_device(const std::string& text);
// "cpu", "cuda:1".
std::string device_name(Device device);

// A Failure where there is no such device, or this build cannot use it. `threads`: of the CPU.
std::unique_ptr<BenchDevice> make_device(Device device, int threads);
std::unique_ptr<BenchDevice> make_host_device(int threads);

}  // namespace octavo::cli
