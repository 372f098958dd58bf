// See output_file.h.
// SPDX-License-Identifier: MIT
#include "train/io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace octavo_train {
namespace {

// Pieces are small enough that the hashed bytes are still in the cache when they are written.
constexpr std::size_t kPiece = 1 << 20;

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path, WriteProgress progress) {
  FileDescriptor descriptor(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (descriptor.get() < 0) return system_error(path, "create", errno);
  return OutputFile(std::move(descriptor), path, progress);
}

OutputFile::~OutputFile() {
  if (descriptor_.get() >= 0) ::unlink(path_.c_str());
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    hasher_.add(piece);
    for (std::size_t done = 0; done < piece.size();) {
      const ssize_t count = ::write(descriptor_.get(), piece.data() + done, piece.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return write_error(errno);
      done += static_cast<std::size_t>(count);
      size_ += static_cast<std::uint64_t>(count);
    }
    bytes = bytes.subspan(piece.size());
  }
  return {};
}

Status OutputFile::write_error(int error) const {
  Status status = system_error(path_, "write", error);
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return status;
  const std::uint64_t written = progress_.before + size_;
  const std::uint64_t total = std::max(progress_.total, written);
  return failed_error("{}; {} of {} were written, {} are missing: make room, or write to another disk",
                      status.message(), size_text(written), size_text(total), size_text(total - written));
}

Status OutputFile::sync() {
  // Some file systems reserve space only when they write to the disk, so a full disk may be reported only
  // here.
  const int error = sync_descriptor(descriptor_);
  return error == 0 ? Status() : write_error(error);
}

Status OutputFile::finish() {
  RETURN_IF_ERROR(sync());
  const FileDescriptor closed = std::move(descriptor_);
  return {};
}

Status OutputFile::finish_as(const std::string& path) {
  RETURN_IF_ERROR(sync());
  RETURN_IF_ERROR(rename_to(path));
  return sync_folder(parent_folder(path));
}

Status OutputFile::rename_to(const std::string& path) {
  if (std::rename(path_.c_str(), path.c_str()) != 0) return system_error(path, "replace", errno);
  const FileDescriptor closed = std::move(descriptor_);
  return {};
}

Status write_atomically(const std::string& path, std::uint64_t size,
                        const std::function<Status(OutputFile&)>& write) {
  ASSIGN_OR_RETURN(const std::string partial, partial_path(path));
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(partial, {0, size}));
  RETURN_IF_ERROR(write(file));
  return file.finish_as(path);
}

Result<std::string> partial_path(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    return Status::invalid(path + ": is there and not a file; choose another name");
  const std::size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  if (name == path.size()) return invalid_error("'{}': expected the name of a file", path);
  return path.substr(0, name) + "." + path.substr(name) + ".partial";
}

}  // namespace octavo_train
