// Writes a file sequentially. The bytes are hashed on the way, the file is fsynced at the end, and a file
// that is not finished is removed.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/io/checksums.h"
#include "train/io/files.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace octavo_train {

// The progress of a write of several files, for the message when the disk is full.
struct WriteProgress {
  std::uint64_t before = 0;  // bytes in the files before this one
  std::uint64_t total = 0;   // bytes in all of them
};

// Accepts the bytes of a file in order.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

class OutputFile {
 public:
  // Creates the file, or truncates an existing file.
  static Result<OutputFile> create(const std::string& path, WriteProgress progress);

  OutputFile(OutputFile&& other) noexcept = default;
  OutputFile& operator=(OutputFile&& other) = delete;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);

  // Syncs the file to the disk and keeps it.
  Status finish();
  // Syncs the file to the disk and renames it to `path`, in the same folder.
  Status finish_as(const std::string& path);
  // Renames the file to `path` without waiting for the disk. This is only for data that can be generated
  // again: after a power failure the file may be incomplete.
  Status rename_to(const std::string& path);

  [[nodiscard]] FileChecksum checksum(const std::string& name) const { return {hasher_.hex(), size_, name}; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  OutputFile(FileDescriptor descriptor, const std::string& path, WriteProgress progress)
      : descriptor_(std::move(descriptor)), path_(path), progress_(progress) {}
  Status sync();
  [[nodiscard]] Status write_error(int error) const;

  FileDescriptor descriptor_;  // open while the destructor must remove the file
  std::string path_;
  WriteProgress progress_;
  std::uint64_t size_ = 0;
  Hasher hasher_;
};

// Writes a file of `size` bytes: `write` writes its content to the partial file, which is then fsynced and
// renamed to `path`. After an error, an old file is unchanged.
Status write_atomically(const std::string& path, std::uint64_t size,
                        const std::function<Status(OutputFile&)>& write);

// Returns the path under which a file is written before finish_as() renames it: `.NAME.partial` in the same
// folder. Fails if `path` exists and is not a regular file, because a rename would replace a device.
Result<std::string> partial_path(const std::string& path);

}  // namespace octavo_train
