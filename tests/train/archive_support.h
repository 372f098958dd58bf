// Builds archives byte by byte, so that each field can be made wrong.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/train/little.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// One header block with a valid checksum, followed by the padded data.
struct TarPart {
  std::string name;
  std::string data;
  char type = '0';
  std::string size = {};  // the raw field; empty: the size of `data`
  std::string prefix = {};
  std::string magic = std::string("ustar\00000", 8);
};
std::string tar_part(const TarPart& part);
std::string tar_end();

// A zip archive as Python's zipfile writes it: sizes in the headers, no zip64.
struct ZipPart {
  std::string name;
  std::string data;
};
std::string zip_of(const std::vector<ZipPart>& parts);

// Builds parts of pickles.
namespace pickled {
std::string text(std::string_view value);
std::string number(std::uint32_t value);
std::string tuple(std::string_view items);
std::string storage(std::string_view key, std::uint32_t elements, std::string_view kind = "FloatStorage");
// `shape` and `strides` are items of tuples; `storage` is a pickle.
std::string tensor(std::string_view storage, std::uint32_t offset, std::string_view shape,
                   std::string_view strides);
std::string dict(std::string_view items);  // a complete pickle
inline constexpr std::string_view kOrderedDict = "ccollections\nOrderedDict\n)R";
}  // namespace pickled

// Returns a torch file of this pickle with the storages 0, 1, ...
std::string torch_of(std::string_view pickle, const std::vector<std::string>& storages);

}  // namespace octavo_train
