// An append-only file. A write that fails midway (a full disk) is undone, so that the file has only complete
// records. There is no user-space buffer: data that append() has accepted survives a crash of the process.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/io/file_descriptor.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo_train {

class AppendFile {
 public:
  enum class Mode { create_new, create_or_append, truncate };

  static Result<AppendFile> open(const std::string& path, Mode mode);

  Status append(std::string_view bytes);
  Status sync();  // syncs the file to the disk

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  AppendFile(FileDescriptor descriptor, std::string path);

  FileDescriptor descriptor_;
  std::string path_;
  std::int64_t size_ = 0;
};

}  // namespace octavo_train
