// See scratch_folder.h.
// SPDX-License-Identifier: MIT
#include "train/io/scratch_folder.h"

#include "train/io/file_descriptor.h"
#include "train/io/folders.h"

#include <sys/stat.h>

#include <cerrno>

namespace octavo_train {

Result<ScratchFolder> ScratchFolder::make(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) return system_error(path, "make the folder", errno);
  return ScratchFolder(path);
}

ScratchFolder::~ScratchFolder() {
  if (!path_.empty()) (void)remove_tree(path_);  // the next writer removes what remains
}

}  // namespace octavo_train
