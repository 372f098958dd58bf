// Reads and writes zip archives as torch.save does: stored, not compressed, with zip64 for large sizes.
//
// An archive that is read is untrusted until read_zip() has checked it: every entry is inside the archive,
// overlaps no other entry and has the same name as its own header. The CRCs are not compared, because torch
// can be configured to write wrong CRCs (torch.serialization.set_crc32_options) and does not compare them
// either. In an archive that is written, stored bytes are aligned to 64 bytes, so that they can be mapped.
// Sizes and CRCs follow the bytes, because the bytes are passed only once.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/io/output_file.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// Signatures of the records, as little-endian numbers, and the sizes of their fixed parts in bytes.
inline constexpr std::uint32_t kZipLocal = 0x04034b50;
inline constexpr std::uint32_t kZipDescriptor = 0x08074b50;
inline constexpr std::uint32_t kZipCentral = 0x02014b50;
inline constexpr std::uint32_t kZipEnd = 0x06054b50;
inline constexpr std::uint32_t kZip64End = 0x06064b50;
inline constexpr std::uint32_t kZip64Locator = 0x07064b50;
inline constexpr std::size_t kZipLocalSize = 30;
inline constexpr std::size_t kZipCentralSize = 46;
inline constexpr std::size_t kZipEndSize = 22;
inline constexpr std::size_t kZip64EndSize = 56;
inline constexpr std::size_t kZip64LocatorSize = 20;
inline constexpr std::uint16_t kZip64Extra = 1;
inline constexpr std::uint32_t kZipIn64 = 0xffffffff;  // replaces a number that is in the zip64 field

struct ZipEntry {
  std::string_view name;  // `name` and `bytes` are views of the archive
  std::span<const std::byte> bytes;
  std::uint64_t header = 0;  // byte offset of its header
};

[[nodiscard]] bool is_zip(std::span<const std::byte> file);

// Returns the entries sorted by name. A duplicate name is an error. Errors begin with a byte offset in the
// archive.
Result<std::vector<ZipEntry>> read_zip(std::span<const std::byte> archive);

// Finds an entry in the result of read_zip(); nullptr if there is none.
[[nodiscard]] const ZipEntry* find_entry(std::span<const ZipEntry> entries, std::string_view name);

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
