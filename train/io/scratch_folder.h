// A folder that its destructor removes with all its contents, unless release() was called.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <string>
#include <utility>

namespace octavo_train {

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
