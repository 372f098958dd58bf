// Memory of the GPU for tests: streams, guarded buffers, a copy of a TensorSet on the device, and the fixture
// that skips without a GPU. A CUDA error is thrown, so that GoogleTest shows it and continues.
// SPDX-License-Identifier: MIT
#pragma once

#include "optimizers/group.h"
#include "optimizers/norm_group.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace test {

inline std::size_t usize(std::int64_t value) { return static_cast<std::size_t>(value); }

void cuda_check(cudaError_t error, const char* what);
#define OCTAVO_CUDA(call) ::test::cuda_check((call), #call)

// Uses the first GPU, cuda:0. Skips with a message if there is none, and fails immediately if an earlier test
// has left the device unusable.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override;
};
inline constexpr octavo::Device kGpu{octavo::DeviceKind::cuda, 0};

class Stream {
 public:
  Stream() { OCTAVO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)
  void wait() const { OCTAVO_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// together: one allocation for all buffers with guard bytes between them, which is fast. apart: one
// allocation each, of the exact size, so that compute-sanitizer detects a read beyond the end.
enum class Memory { together, apart };
// The alignment of buffers. as_host: that of the TensorSet's own. aligned: multiples of 256. mixed: the first
// for every third tensor and the second for the others. bucket: the second, but gradients begin 0 to 15
// elements further, by the tensor's number.
enum class Placement { as_host, aligned, mixed, bucket };

// Buffers on the device and their bytes on the host, copied completely.
class DeviceMemory {
 public:
  explicit DeviceMemory(Memory memory) : memory_(memory) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Reserves a buffer and returns its number. The first upload makes the first allocation.
  std::size_t add(std::int64_t bytes, std::int64_t phase);
  [[nodiscard]] std::byte* device(std::size_t slot) const;  // not null for a buffer without bytes
  [[nodiscard]] std::byte* host(std::size_t slot);
  [[nodiscard]] std::int64_t size(std::size_t slot) const { return slots_[slot].size; }

  // Copies the buffers from number `first` on in stream order and waits for it.
  void upload(cudaStream_t stream, std::size_t first = 0);
  void download(cudaStream_t stream);
  // Returns the number of a buffer (or the one before) whose guard bytes changed, in the last download.
  [[nodiscard]] std::optional<std::size_t> damaged() const;

 private:
  struct Region {
    std::byte* device = nullptr;
    std::vector<std::byte> host;
  };
  struct Slot {
    std::size_t region;
    std::int64_t offset, size;
  };
  void allocate();

  Memory memory_;
  std::vector<Region> regions_;
  std::vector<Slot> slots_;
};

// A workspace with guard bytes around it.
class DeviceWorkspace {
 public:
  DeviceWorkspace(std::int64_t bytes, Memory memory = Memory::together);
  ~DeviceWorkspace();
  DeviceWorkspace(const DeviceWorkspace&) = delete;
  DeviceWorkspace& operator=(const DeviceWorkspace&) = delete;
  [[nodiscard]] std::span<std::byte> span() const { return {data_, usize(size_)}; }
  [[nodiscard]] bool surroundings_intact(cudaStream_t stream) const;

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0, around_ = 0;
};

// A value in the device's memory.
template <class T>
class OnDevice {
 public:
  OnDevice() { OCTAVO_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), sizeof(T))); }
  explicit OnDevice(const T& value, cudaStream_t stream) : OnDevice() { set(value, stream); }
  ~OnDevice() { (void)cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] T* get() const { return data_; }
  void set(const T& value, cudaStream_t stream) {
    kept_ = value;
    OCTAVO_CUDA(cudaMemcpyAsync(data_, &kept_, sizeof(T), cudaMemcpyHostToDevice, stream));
    OCTAVO_CUDA(cudaStreamSynchronize(stream));
  }
  [[nodiscard]] T value(cudaStream_t stream) const {
    T result;
    OCTAVO_CUDA(cudaMemcpyAsync(&result, data_, sizeof(T), cudaMemcpyDeviceToHost, stream));
    OCTAVO_CUDA(cudaStreamSynchronize(stream));
    return result;
  }

 private:
  T* data_ = nullptr;
  T kept_{};
};

// A TensorSet's gradients on the device, as rebind_grads and NormGroup use them.
class DeviceGrads {
 public:
  DeviceGrads(const TensorSet& set, Placement placement, cudaStream_t stream);
  [[nodiscard]] std::vector<const void*> pointers() const;
  [[nodiscard]] std::vector<octavo::GradView> views() const;

 private:
  DeviceMemory memory_;
  std::vector<octavo::GradView> views_;
};

// A copy of a TensorSet on the device, with the group that steps it. Gradients are after all other buffers,
// so that new ones are one copy.
class DeviceSet {
 public:
  DeviceSet(const TensorSet& set, Placement placement, cudaStream_t stream, Memory memory = Memory::together);

  [[nodiscard]] octavo::GroupConfig config() const;
  [[nodiscard]] const std::vector<octavo::TensorArgs>& args() const { return args_; }
  [[nodiscard]] std::vector<octavo::GradView> grads() const;
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

  octavo::Group& group();  // created at the first call, with its workspace
  [[nodiscard]] DeviceWorkspace& workspace() { return *workspace_; }

  void upload_grads(const TensorSet& set);
  // Queues the step on the stream without waiting.
  octavo::Result<octavo::StepReport> step(octavo::StepArgs args);

  // Returns "" if every byte equals that of `expected`, gradients included, and no guard byte changed;
  // otherwise what differs.
  [[nodiscard]] std::string difference(const TensorSet& expected);

 private:
  struct Field {
    std::size_t tensor, slot;
    const char* name;
    std::int64_t element;
    std::function<const Buffer&(const TensorBuffers&)> in;
  };
  void add(std::size_t tensor, const char* name, std::int64_t element,
           std::function<const Buffer&(const TensorBuffers&)> in, const TensorBuffers& t);

  octavo::GroupConfig config_;
  Placement placement_;
  cudaStream_t stream_;
  Memory kind_;
  DeviceMemory memory_;
  std::vector<Field> fields_;
  std::size_t first_grad_ = 0;
  std::vector<octavo::TensorArgs> args_;
  std::unique_ptr<octavo::Group> group_;
  std::unique_ptr<DeviceWorkspace> workspace_;
};

// Counts combinations, stores the first failures, and reports everything once.
class Tally {
 public:
  void add(const std::string& combination, const std::string& difference);
  ~Tally();

 private:
  int count_ = 0, bad_ = 0;
  std::string text_;
};

// Kinds of gradients, from a pool of values that is made once.
enum class Grads {
  mixed,    // several magnitudes, some exact zeros
  dense,    // several magnitudes, none zero: if all are in range, a kernel uses its fast path
  tiny,     // 1e-30; squares are denormal or zero
  patchy,   // dense, with one zero in 1500: some tiles of 512 can use the fast path, their neighbours cannot
  zero,     // exactly
  huge,     // 1e17; squares are finite
  wide,     // any finite float
  special,  // like mixed, with NaN, infinities, denormals and huge values, each rare
};
void fill(TensorSet& set, Grads kind, std::uint64_t seed);
// Like TensorSet's constructor, for millions of elements: parameters and gradients are copied from the pool.
TensorSet pooled_set(const octavo::GroupConfig& config, std::span<const octavo::TensorSpec> specs,
                     std::uint64_t seed);
// Writes zeros of both signs into every tensor, and infinities and NaN into one of 1024 elements and into
// those above 60,000.
void add_special_params(TensorSet& set);

// One TensorSet on the CPU and its copies on the GPU, step by step.
class Race {
 public:
  Race(const TensorSet& start, cudaStream_t stream, Memory memory = Memory::together,
       std::vector<Placement> placements = {Placement::aligned, Placement::as_host});
  [[nodiscard]] TensorSet& cpu() { return cpu_; }

  // Runs one step with these gradients and returns "" or what differs.
  std::string step(octavo::StepArgs args, Grads kind, std::uint64_t seed);
  // Runs steps from args.step on, one per kind, until one differs.
  std::string steps(octavo::StepArgs args, std::span<const Grads> kinds);

 private:
  TensorSet cpu_;
  std::vector<Placement> placements_;
  std::vector<std::unique_ptr<DeviceSet>> gpus_;
};

std::string text_of(const octavo::TensorSpec& spec);

}  // namespace test
