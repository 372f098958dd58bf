// An open file of the operating system, closed when its owner goes; and how its errors read.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace octavo::train {

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

// `PATH: cannot ACTION: REASON`, with the reason that errno value stands for.
Status system_error(const std::string& path, std::string_view action, int error);

// fsync of a file, which is retried when a signal interrupts it. 0, or an errno value.
int sync_descriptor(const FileDescriptor& descriptor);

// Makes what was renamed, made or removed in a folder survive a loss of power.
Status sync_folder(const std::string& path);

// The folder that a path is in: `.` for a bare name.
std::string parent_folder(const std::string& path);

// Whether a name is of one file inside its folder: not empty or hidden, no slash, no blank, printable ASCII.
[[nodiscard]] bool is_plain_name(std::string_view name);

// 999 -> `999 bytes`, 1234567 -> `1.2 MB`.
std::string size_text(std::uint64_t bytes);

}  // namespace octavo::train
