// Writing a zip archive as torch does it: stored bytes aligned to 64, so that they can be mapped; sizes and
// CRCs behind the bytes, because those come only once; zip64 where 32 bits end.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/io/output_file.h"

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

// begin(), add() as often as wanted and end() for each entry, finish() after the last one.
class ZipWriter {
 public:
  // nullptr: nothing is written, only counted.
  explicit ZipWriter(const ByteSink* sink) : sink_(sink) {}

  // `size` bytes must follow.
  Status begin(const std::string& name, std::uint64_t size);
  Status add(std::span<const std::byte> bytes);
  void skip(std::uint64_t size) { at_ += size; }  // counts bytes as if they had been added
  Status end();
  Status finish();

  [[nodiscard]] std::uint64_t size() const { return at_; }  // so far
  [[nodiscard]] bool counts_only() const { return sink_ == nullptr; }

 private:
  struct Entry {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t header = 0;  // where it begins
    std::uint32_t crc = 0;
  };

  static std::string central(const Entry& entry);  // its record in the directory
  Status put(std::span<const std::byte> bytes);
  Status put(const std::string& text);

  const ByteSink* sink_;
  std::uint64_t at_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace octavo::train
