// The files in a zip archive as torch.save writes it: stored, not compressed, with zip64 for what is large.
// An archive is hostile until read_zip() has checked it: every entry lies inside the archive, overlaps no
// other and has the name of its own header. The CRCs are not compared, because torch can be told to leave
// them wrong (torch.serialization.set_crc32_options) and does not compare them either.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace octavo::train {

// Signatures of the records, as little endian numbers, and the sizes of their fixed parts.
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
inline constexpr std::uint32_t kZipIn64 = 0xffffffff;  // instead of a number: it is in the zip64 field

struct ZipEntry {
  std::string_view name;  // both lie in the archive
  std::span<const std::byte> bytes;
  std::uint64_t header = 0;  // where its header begins
};

[[nodiscard]] bool is_zip(std::span<const std::byte> file);

// Sorted by name, no name twice. Errors begin with a byte of the archive.
Result<std::vector<ZipEntry>> read_zip(std::span<const std::byte> archive);

// In what read_zip() gave. nullptr: none.
[[nodiscard]] const ZipEntry* find_entry(std::span<const ZipEntry> entries, std::string_view name);

}  // namespace octavo::train
