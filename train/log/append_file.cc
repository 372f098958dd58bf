// SPDX-License-Identifier: MIT
#include "train/log/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace octavo::train {
namespace {

Status system_failure(const std::string& path, const std::string& doing, int error) {
  return Status::failed(path + ": cannot " + doing + ": " + std::generic_category().message(error));
}

int flags_of(AppendFile::Mode mode) {
  switch (mode) {
    case AppendFile::Mode::create_new:
      return O_EXCL;
    case AppendFile::Mode::truncate:
      return O_TRUNC;
    case AppendFile::Mode::create_or_append:
      break;
  }
  return 0;
}

}  // namespace

Result<AppendFile> AppendFile::open(const std::string& path, Mode mode) {
  const int descriptor =
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | flags_of(mode), 0666);
  if (descriptor < 0) return system_failure(path, "open it for writing", errno);
  AppendFile file(descriptor, path, 0);  // owns the descriptor from here on
  struct stat found {};
  if (::fstat(descriptor, &found) != 0) return system_failure(path, "ask for its size", errno);
  file.size_ = found.st_size;
  return file;
}

AppendFile::AppendFile(int descriptor, std::string path, std::int64_t size)
    : descriptor_(descriptor), path_(std::move(path)), size_(size) {}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)), size_(other.size_) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  return *this;
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status AppendFile::append(std::string_view bytes) {
  std::string_view left = bytes;
  while (!left.empty()) {
    const ssize_t written = ::write(descriptor_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      // A part of a record would spoil the one that follows it. If this fails too, readers skip the part.
      if (left.size() < bytes.size() && ::ftruncate(descriptor_, size_) != 0)
        size_ += bytes.size() - left.size();
      return system_failure(path_, "append " + std::to_string(bytes.size()) + " bytes", error);
    }
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<std::int64_t>(bytes.size());
  return {};
}

Status AppendFile::sync() {
  while (::fsync(descriptor_) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL || errno == EROFS) break;  // a pipe or a device: nothing to wait for
    return system_failure(path_, "write it to the disk", errno);
  }
  return {};
}

}  // namespace octavo::train
