// Defines a file descriptor that its destructor closes, and helpers for syncing, paths and error messages.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace octavo_train {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor();

  [[nodiscard]] int get() const { return number_; }

 private:
  int number_ = -1;
};

// Returns the error `PATH: cannot ACTION: REASON`, where REASON describes the errno value `error`.
Status system_error(const std::string& path, std::string_view action, int error);

// Calls fsync, and calls it again if a signal interrupts it. Returns 0 or an errno value.
int sync_descriptor(const FileDescriptor& descriptor);

// Syncs a folder, so that files renamed, created or removed in it stay so after a power failure.
Status sync_folder(const std::string& path);

// Returns the folder that a path is in: `.` for a bare name.
std::string parent_folder(const std::string& path);

// Returns true if `name` is a plain file name: not empty, not hidden, and printable ASCII without slashes and
// blanks.
[[nodiscard]] bool is_plain_name(std::string_view name);

// Returns `999 bytes` for 999 and `1.2 MB` for 1234567.
std::string size_text(std::uint64_t bytes);

}  // namespace octavo_train
