// Reads and writes complete text files. A write is atomic: a reader sees the old text or the new text, even
// after a crash. A read has a size limit.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo_train {

// Writes the text to `.NAME.partial` in the same folder, fsyncs it and renames it. After an error the old
// file is unchanged.
Status write_text_file(const std::string& path, std::string_view text);

// Reads a text file. A file of more than `limit` bytes is an error.
Result<std::string> read_text_file(const std::string& path, std::uint64_t limit);

}  // namespace octavo_train
