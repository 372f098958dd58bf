// Opens and maps regular files for reading, and copies bytes out of a map. All readers open their files here:
// a folder, a pipe or a device is an error, and opening it never blocks.
//
// If a mapped file was shortened or its disk has a read error, the kernel sends SIGBUS to the thread that
// reads the missing page, which ends the process. copy_mapped() returns false instead.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/io/file_descriptor.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace octavo_train {

struct InputFile {
  FileDescriptor descriptor;
  std::uint64_t size = 0;

  static Result<InputFile> open(const std::string& path);

  // Reads the next bytes into `out` and returns their number, which is less than out.size() only at the end
  // of the file. `path` is used in errors.
  Result<std::size_t> read(std::span<std::byte> out, const std::string& path);
};

class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  static Result<MappedFile> open(const std::string& path);

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }  // empty for an empty file

 private:
  std::span<const std::byte> bytes_;
};

// Copies `from`, a part of a mapped file, to `to`. Returns false if a byte could not be read; the content of
// `to` is then undefined. Any number of threads may call it. The first call installs a SIGBUS handler for the
// process; a SIGBUS from any other code gets the action that was set before.
[[nodiscard]] bool copy_mapped(std::span<const std::byte> from, void* to);

}  // namespace octavo_train
