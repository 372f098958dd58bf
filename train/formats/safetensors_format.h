// Defines what the reader and the writer of safetensors files share: sizes, texts, the layout and the header.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/safetensors.h"
#include "train/io/output_file.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

inline constexpr std::uint64_t kLengthBytes = 8;               // bytes of the header's length field
inline constexpr std::uint64_t kHeaderLimit = 100'000'000;     // bytes; as in the Python package
inline constexpr std::string_view kMetadata = "__metadata__";  // the only header entry that is not a tensor

// Returns the number of bytes of a tensor; nullopt for an unknown dtype, a negative extent or a size of at
// least 2^63 bytes.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(std::string_view dtype,
                                                        std::span<const std::int64_t> shape);

// Returns a name for messages: in JSON's quotes, in ASCII, and truncated if it is long, because names come
// from untrusted files.
std::string quote_name(std::string_view name);
std::string shape_text(std::span<const std::int64_t> shape);  // [2, 3]
std::string known_dtypes();

// The layout of a file that will be written.
struct SafetensorsLayout {
  std::string header;              // padded, without the length field
  std::vector<std::size_t> order;  // indices of the sources, in the order of the file
  std::uint64_t size = 0;          // bytes of the file
};

Result<SafetensorsLayout> plan_safetensors(std::span<const TensorSource> sources,
                                           const std::map<std::string, std::string>& metadata);
Status write_planned(OutputFile& file, const SafetensorsLayout& plan, std::span<const TensorSource> sources);

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // offset of its first byte from the end of the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // in the order of the header
  std::map<std::string, std::string> metadata;
};

// Parses a header. Checks only that the JSON has the form of a header. Errors begin with the tensor or the
// byte offset, so that the caller can put a path before them.
Result<SafetensorsHeader> parse_header(std::string_view text);

}  // namespace octavo_train
