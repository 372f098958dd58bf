// Reads zip archives as torch.save writes them: stored, not compressed, with zip64 for large sizes. An
// archive is untrusted until read_zip() has checked it: every entry is inside the archive, overlaps no other
// entry and has the same name as its own header. The CRCs are not compared, because torch can be configured
// to write wrong CRCs (torch.serialization.set_crc32_options) and does not compare them either.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
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

}  // namespace octavo_train
