// Folders by the operating system's own calls. Not by std::filesystem: LibTorch's wheels carry and export a
// copy of it from another compiler, whose iterators and remove_all() do not fit ours and crash the process
// that has both.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <string>
#include <vector>

namespace octavo::train {

// Names of what is in a folder, without `.` and `..`, in no order. No folder: none.
Result<std::vector<std::string>> list_folder(const std::string& path);

// Removes a file or a folder with all that is in it; links are removed, not followed. Nothing there: done.
Status remove_tree(const std::string& path);

}  // namespace octavo::train
