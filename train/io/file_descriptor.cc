// See file_descriptor.h.
// SPDX-License-Identifier: MIT
#include "train/io/file_descriptor.h"

#include "train/base/numbers.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace octavo_train {

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

Status system_error(const std::string& path, std::string_view action, int error) {
  return failed_error("{}: cannot {}: {}", path, action, std::generic_category().message(error));
}

int sync_descriptor(const FileDescriptor& descriptor) {
  while (::fsync(descriptor.get()) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

Status sync_folder(const std::string& path) {
  const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return system_error(path, "open the folder", errno);
  const int error = sync_descriptor(folder);
  // Some network file systems do not support fsync of folders, and there is no alternative.
  if (error != 0 && error != EINVAL && error != ENOTSUP) return system_error(path, "sync the folder", error);
  return {};
}

std::string parent_folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < '\x7f' && c != '/'; });
}

std::string size_text(std::uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  static constexpr std::array<const char*, 6> kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return decimal_text(value, std::chars_format::fixed, 1) + ' ' + kUnits[unit];
}

}  // namespace octavo_train
