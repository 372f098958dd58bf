// Lists and removes folders with system calls, and defines a folder that its destructor removes. It does not
// use std::filesystem, because LibTorch's wheels contain and export a copy of it from another compiler. The
// iterators and remove_all() of that copy are incompatible with ours and crash a process that has both.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <string>
#include <utility>
#include <vector>

namespace octavo_train {

// Returns the names of a folder's entries, without `.` and `..`, in no particular order. Returns no names if
// the folder does not exist.
Result<std::vector<std::string>> list_folder(const std::string& path);

// Returns true if the path is a folder, or a link to one.
bool is_folder(const std::string& path);

// Removes a file, or a folder with all its contents. Symbolic links are removed, not followed. Succeeds if
// the path does not exist.
Status remove_tree(const std::string& path);

class ScratchFolder {
 public:
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~ScratchFolder();

  // Creates the folder. REQUIRES: the parent folder exists, and the folder does not.
  static Result<ScratchFolder> make(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  void release() { path_.clear(); }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace octavo_train
