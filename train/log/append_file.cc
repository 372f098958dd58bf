// SPDX-License-Identifier: MIT
#include "train/log/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace octavo_train {
namespace {

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
  AppendFile file(
      FileDescriptor(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | flags_of(mode), 0666)),
      path);
  if (file.descriptor_.get() < 0) return system_error(path, "open it for writing", errno);
  struct stat found {};
  if (::fstat(file.descriptor_.get(), &found) != 0) return system_error(path, "ask for its size", errno);
  file.size_ = found.st_size;
  return file;
}

AppendFile::AppendFile(FileDescriptor descriptor, std::string path)
    : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

Status AppendFile::append(std::string_view bytes) {
  std::string_view left = bytes;
  while (!left.empty()) {
    const ssize_t written = ::write(descriptor_.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      // A partial record would damage the next record, so it is removed. If that fails too, readers skip it.
      if (left.size() < bytes.size() && ::ftruncate(descriptor_.get(), size_) != 0)
        size_ += bytes.size() - left.size();
      return system_error(path_, "append " + std::to_string(bytes.size()) + " bytes", error);
    }
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<std::int64_t>(bytes.size());
  return {};
}

Status AppendFile::sync() {
  const int error = sync_descriptor(descriptor_);
  // A pipe or a device cannot be synced.
  if (error != 0 && error != EINVAL && error != EROFS)
    return system_error(path_, "write it to the disk", error);
  return {};
}

}  // namespace octavo_train
