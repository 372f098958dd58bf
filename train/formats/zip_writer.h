// Writes zip archives as torch does. Stored bytes are aligned to 64 bytes, so that they can be mapped. Sizes
// and CRCs follow the bytes, because the bytes are passed only once. zip64 is used for numbers that do not
// fit 32 bits.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/io/output_file.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

// Writes an archive: call begin(), add() any number of times and end() for each entry, and finish() after the
// last entry.
class ZipWriter {
 public:
  // If `sink` is nullptr, the bytes are only counted, not written.
  explicit ZipWriter(const ByteSink* sink) : sink_(sink) {}

  // Begins an entry. REQUIRES: `size` bytes follow.
  Status begin(const std::string& name, std::uint64_t size);
  Status add(std::span<const std::byte> bytes);
  void skip(std::uint64_t size) { at_ += size; }  // counts bytes as if they had been added
  Status end();
  Status finish();

  [[nodiscard]] std::uint64_t size() const { return at_; }  // bytes so far
  [[nodiscard]] bool counts_only() const { return sink_ == nullptr; }

 private:
  struct Entry {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t header = 0;  // byte offset of its header
    std::uint32_t crc = 0;
  };

  static std::string central(const Entry& entry);  // returns its record in the directory
  Status put(std::span<const std::byte> bytes);
  Status put(const std::string& text);

  const ByteSink* sink_;
  std::uint64_t at_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace octavo_train
