// Whole text files: written so that a reader sees the old text or the new one, even after a crash; read with
// a limit.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo::train {

// Written to `.NAME.partial` beside, fsynced, renamed. After an error the old file is as it was.
Status write_text_file(const std::string& path, std::string_view text);

// A file of more than `limit` bytes is an error.
Result<std::string> read_text_file(const std::string& path, std::uint64_t limit);

}  // namespace octavo::train
