// Reads a line of a manifest, which is one JSON object. Extracts the fields that a ManifestEntry needs and
// checks the syntax of the others. The JSON is strict: a field occurs once, and strings are UTF-8.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/manifest/manifest.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace octavo_train {

// An error in a line: the byte of the line at which it is, and the reason.
struct LineProblem {
  std::size_t byte = 0;
  std::string reason;
};

struct ManifestLine {
  ManifestEntry entry;        // `audio` is the path as the line has it, unresolved
  std::string text_filepath;  // not empty if the text is in a file
  bool unwanted = false;
};

// Parses `line`, which has no line break, into `out`. Returns nullopt if the line is a valid entry. The
// strings of `out` keep their capacity from one call to the next.
std::optional<LineProblem> read_manifest_line(std::string_view line, const ManifestOptions& options,
                                              ManifestLine& out);

// Returns the column of a byte: the number of characters before it, plus 1.
std::size_t column_of(std::string_view line, std::size_t byte);

}  // namespace octavo_train
