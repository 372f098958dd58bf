// A file being written, front to back: hashed on the way, fsynced at the end, removed if it does not get
// there.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/io/checksums.h"
#include "train/io/file_descriptor.h"

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace octavo::train {

// The progress of a write of several files, for the message when the disk is full.
struct WriteProgress {
  std::uint64_t before = 0;  // bytes in the files before this one
  std::uint64_t total = 0;   // bytes in all of them
};

// Takes bytes in the order of a file.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

class OutputFile {
 public:
  // Replaces what is there.
  static Result<OutputFile> create(const std::string& path, WriteProgress progress);

  OutputFile(OutputFile&& other) noexcept = default;
  OutputFile& operator=(OutputFile&& other) = delete;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);

  // To the disk. The file stays.
  Status finish();
  // The same, then it becomes `path`, in the same folder.
  Status finish_as(const std::string& path);
  // It becomes `path` without waiting for the disk: for data that can be made again. After a power failure
  // the file may be incomplete.
  Status rename_to(const std::string& path);

  [[nodiscard]] FileChecksum checksum(const std::string& name) const { return {hasher_.hex(), size_, name}; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  OutputFile(FileDescriptor descriptor, const std::string& path, WriteProgress progress)
      : descriptor_(std::move(descriptor)), path_(path), progress_(progress) {}
  Status sync();
  [[nodiscard]] Status write_error(int error) const;

  FileDescriptor descriptor_;  // open while there is something to remove
  std::string path_;
  WriteProgress progress_;
  std::uint64_t size_ = 0;
  Hasher hasher_;
};

// Where a file grows before finish_as() gives it its name: `.NAME.partial` beside it. An error where `path`
// is something other than a file: a rename would replace a device.
Result<std::string> partial_path(const std::string& path);

}  // namespace octavo::train
