// A line of a manifest: one JSON object, of which the wanted fields are read and the others are checked.
// Strict JSON: names come once, strings are UTF-8.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/manifest.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace octavo::train {

// What is wrong, and with which byte of the line.
struct LineProblem {
  std::size_t byte = 0;
  std::string reason;
};

struct ManifestLine {
  ManifestEntry entry;        // `audio` as it is written
  std::string text_filepath;  // if the text is in a file
  bool unwanted = false;
};

// `line` is without its end. Nothing: it is an entry, in `out`, whose strings keep their memory from one line
// to the next.
std::optional<LineProblem> read_manifest_line(std::string_view line, const ManifestOptions& options,
                                              ManifestLine& out);

// The column of a byte: characters before it, counted from 1.
std::size_t column_of(std::string_view line, std::size_t byte);

}  // namespace octavo::train
