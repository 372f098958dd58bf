// Files and folders of the operating system: descriptors, folders, reading, maps into memory, and the texts
// of errors.
//
// All readers open their files here: a folder, a pipe or a device is an error, and opening it never blocks.
//
// If a mapped file was shortened or its disk has a read error, the kernel sends SIGBUS to the thread that
// reads the missing page, which ends the process. copy_mapped() returns false instead.
//
// Folders are listed and removed with system calls instead of std::filesystem, because LibTorch's wheels
// contain and export a copy of it from another compiler. The iterators and remove_all() of that copy are
// incompatible with ours and crash a process that has both.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
