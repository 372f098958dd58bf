// Checks a recording's first and last bytes before a decoder reads it: that the format is supported and that
// the file is complete. The check is needed because libsndfile silently shortens a truncated file, and mpg123
// writes to the terminal.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/io/mapped_file.h"

#include <string>

namespace octavo_train {

// Leaves the file position unspecified.
Status check_header(const InputFile& input, const std::string& path);

}  // namespace octavo_train
