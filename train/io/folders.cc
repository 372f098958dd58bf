// See folders.h.
// SPDX-License-Identifier: MIT
#include "train/io/folders.h"

#include "train/io/file_descriptor.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

namespace octavo_train {

Result<std::vector<std::string>> list_folder(const std::string& path) {
  struct Close {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  std::vector<std::string> names;
  const std::unique_ptr<DIR, Close> folder(opendir(path.c_str()));
  if (folder == nullptr) {
    if (errno == ENOENT) return names;
    return system_error(path, "list the folder", errno);
  }
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return system_error(path, "list the folder", errno);
  return names;
}

bool is_folder(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

Status remove_tree(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0)
    return errno == ENOENT ? Status() : system_error(path, "remove", errno);
  const bool folder = S_ISDIR(found.st_mode);
  if (folder) {
    ASSIGN_OR_RETURN(const auto names, list_folder(path));
    for (const std::string& name : names) RETURN_IF_ERROR(remove_tree(path + "/" + name));
  }
  const int failed = folder ? rmdir(path.c_str()) : unlink(path.c_str());
  return failed != 0 && errno != ENOENT ? system_error(path, "remove", errno) : Status();
}

Result<ScratchFolder> ScratchFolder::make(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) return system_error(path, "make the folder", errno);
  return ScratchFolder(path);
}

ScratchFolder::~ScratchFolder() {
  if (!path_.empty()) (void)remove_tree(path_);  // the next writer removes what remains
}

}  // namespace octavo_train
