// Reads and writes the header blocks of tar archives, for the reader and the writer.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace octavo_train {

inline constexpr std::size_t kTarBlock = 512;
inline constexpr std::size_t kTarRecord = 20 * kTarBlock;  // archives are padded to complete records

// Fields of a header block.
struct TarField {
  std::size_t at;
  std::size_t size;
};
inline constexpr TarField kTarName{0, 100};
inline constexpr TarField kTarMode{100, 8};
inline constexpr TarField kTarOwner{108, 8};
inline constexpr TarField kTarGroup{116, 8};
inline constexpr TarField kTarSize{124, 12};
inline constexpr TarField kTarTime{136, 12};
inline constexpr TarField kTarSum{148, 8};
inline constexpr TarField kTarType{156, 1};
inline constexpr char kSparseFile = 'S';  // GNU tar's type of a sparse file; pax has a record for it
inline constexpr TarField kTarMagic{257, 6};
inline constexpr TarField kTarPrefix{345, 155};

// Returns the error for a sparse file, whose bytes in the archive are not the file's bytes.
[[nodiscard]] Status sparse_file();

// Returns the checksum of a header block: the sum of its bytes, with the checksum field counted as blanks.
[[nodiscard]] std::uint64_t tar_sum(std::span<const std::byte> block);

struct TarHeader {
  std::string name;
  std::uint64_t size = 0;
  char type = '0';
};

// Returns the header of a plain file. REQUIRES: the name fits its field.
std::array<std::byte, kTarBlock> make_tar_header(std::string_view name, std::uint64_t size);

// REQUIRES: `block` is one block, and not all of its bytes are zero.
Result<TarHeader> parse_tar_header(std::span<const std::byte> block);

// The fields that a pax header changes in the entry after it.
struct PaxFields {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
};
Result<PaxFields> parse_pax(std::string_view text);

// Returns the name without a leading `./`, or an error if the name leads out of a folder or cannot be shown.
Result<std::string> safe_tar_name(std::string_view name);

}  // namespace octavo_train
