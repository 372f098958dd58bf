// Decompresses gzip files into memory. The size that a file states is not trusted: memory grows as bytes
// arrive, up to a limit and a multiple of the file's size, so that a small file cannot exhaust the machine's
// memory.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>

namespace octavo_train {

// A growable byte buffer. Moving the object does not move the bytes in memory.
class HeapBytes {
 public:
  HeapBytes() = default;
  HeapBytes(HeapBytes&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  HeapBytes& operator=(HeapBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  [[nodiscard]] std::span<std::byte> room() { return {data_.get() + size_, capacity_ - size_}; }
  void take(std::size_t count) { size_ += count; }  // marks bytes of room() as written

  // Enlarges the buffer to at most `limit` bytes in total. Returns false if there is not enough memory.
  bool grow(std::size_t limit);

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// The largest accepted compression ratio. Weights compress to half their size at best, so a file beyond this
// ratio is an attack.
inline constexpr std::uint64_t kInflatedRatio = 32;
inline constexpr std::uint64_t kInflatedAllowance = std::uint64_t{64} << 20;  // bytes beyond the ratio

[[nodiscard]] bool is_gzip(std::span<const std::byte> file);

// Returns the decompressed content of all members. Errors begin with the byte offset in the compressed file.
Result<HeapBytes> inflate_gzip(std::span<const std::byte> file, std::uint64_t limit);

}  // namespace octavo_train
