// Making and removing a folder; see scratch_folder.h.
// SPDX-License-Identifier: MIT
#include "train/files/scratch_folder.h"

#include "train/files/file_descriptor.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace octavo::train {

Result<ScratchFolder> ScratchFolder::make(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) return system_error(path, "make the folder", errno);
  return ScratchFolder(path);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace octavo::train
