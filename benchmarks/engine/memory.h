// Memory and threads for benchmarks: page-aligned buffers, loops split into contiguous slices over threads,
// and the amount of free memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace octavo::cli {

// Uninitialized bytes on a page boundary, like large tensors from an allocator. Throws std::bad_alloc.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(std::int64_t bytes);

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::int64_t size_ = 0;
};

// Runs work(begin, end) on `threads` threads over [0, count), cut at multiples of `grain`. `work` must not
// throw: an exception would end the process.
void for_slices(int threads, std::int64_t count, std::int64_t grain,
                const std::function<void(std::int64_t begin, std::int64_t end)>& work);

// Zeroes `buffer` with the threads that will use it, so that every page exists and is on those threads' NUMA
// node.
void touch(const PageBuffer& buffer, int threads);

// Returns the bytes that can be allocated without swapping, or the largest int64 if the system does not
// report them.
std::int64_t available_memory();

}  // namespace octavo::cli
