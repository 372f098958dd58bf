// What the reader and the writer of safetensors files share.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"
#include "train/io/output_file.h"

#include <octavo/status.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

inline constexpr std::uint64_t kLengthBytes = 8;               // of the header's length
inline constexpr std::uint64_t kHeaderLimit = 100'000'000;     // as in the Python package
inline constexpr std::string_view kMetadata = "__metadata__";  // the one entry of a header that is no tensor

// The bytes of a tensor. None: an unknown dtype, a negative extent or more than 2^63 - 1 bytes.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(std::string_view dtype,
                                                        std::span<const std::int64_t> shape);

// Names come from foreign files: they are shown in JSON's quotes, in ASCII, and cut where they are long.
std::string quote_name(std::string_view name);
std::string shape_text(std::span<const std::int64_t> shape);  // [2, 3]
std::string known_dtypes();

// A file laid out before it is written.
struct SafetensorsPlan {
  std::string header;              // padded, without its length
  std::vector<std::size_t> order;  // of the sources in the file
  std::uint64_t size = 0;          // of the file
};

Result<SafetensorsPlan> plan_safetensors(std::span<const TensorSource> sources,
                                         const std::map<std::string, std::string>& metadata);
Status write_planned(OutputFile& file, const SafetensorsPlan& plan, std::span<const TensorSource> sources);

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // of its bytes, from the end of the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // in the order of the text
  std::map<std::string, std::string> metadata;
};

// Checks only the form: that the JSON is a header. Errors begin with the tensor or the byte, so that the
// caller can put a path before them.
Result<SafetensorsHeader> parse_header(std::string_view text);

}  // namespace octavo::train
