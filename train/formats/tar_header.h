// The blocks of a tar archive: what the reader and the writer share.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace octavo::train {

inline constexpr std::size_t kTarBlock = 512;
inline constexpr std::size_t kTarRecord = 20 * kTarBlock;  // archives are padded to whole ones

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
inline constexpr char kSparseFile = 'S';  // GNU's type of a file with holes; pax has a record for it
inline constexpr TarField kTarMagic{257, 6};
inline constexpr TarField kTarPrefix{345, 155};

// The error of a file with holes, whose bytes in the archive are not the file's.
[[nodiscard]] Status sparse_file();

// The sum of the block's bytes with the sum's own field as blanks.
[[nodiscard]] std::uint64_t tar_sum(std::span<const std::byte> block);

struct TarHeader {
  std::string name;
  std::uint64_t size = 0;
  char type = '0';
};

// The header of a plain file.
// REQUIRES: a name that fits its field.
std::array<std::byte, kTarBlock> make_tar_header(std::string_view name, std::uint64_t size);

// REQUIRES: one block, and not of zeros alone.
Result<TarHeader> parse_tar_header(std::span<const std::byte> block);

// What a pax header changes in the entry after it.
struct PaxFields {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
};
Result<PaxFields> parse_pax(std::string_view text);

// The name without `./` at its front, or an error if it leads out of a folder or cannot be shown.
Result<std::string> safe_tar_name(std::string_view name);

}  // namespace octavo::train
