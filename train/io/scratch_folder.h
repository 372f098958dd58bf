// A folder that is removed, with what is in it, when its owner goes; unless it was released.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <string>
#include <utility>

namespace octavo::train {

class ScratchFolder {
 public:
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~ScratchFolder();

  // Makes the folder. REQUIRES: its parent is there, and it is not.
  static Result<ScratchFolder> make(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  void release() { path_.clear(); }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace octavo::train
