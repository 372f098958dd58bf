// What a recording's first and last bytes show before a decoder sees them: that it is of a known format, and
// whether it is whole. libsndfile shortens a file that was cut without a word, and mpg123 writes to the
// terminal.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/io/mapped_file.h"

#include <octavo/status.h>

#include <string>

namespace octavo::train {

// Leaves the file's position anywhere.
Status check_header(const InputFile& input, const std::string& path);

}  // namespace octavo::train
