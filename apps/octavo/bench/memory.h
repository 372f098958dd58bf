// Memory and threads for benchmarks: page-aligned buffers, work in contiguous slices, and how much memory is
// free.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace octavo::cli {

// Uninitialised bytes on a page boundary, as allocators give large tensors. Throws std::bad_alloc.
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

// Zeroes `buffer` from the threads that will use it, so that every page exists and lies near them.
void touch(const PageBuffer& buffer, int threads);

// Bytes that can be allocated without swapping; the largest int64 where the system does not say.
std::int64_t available_memory();

}  // namespace octavo::cli
