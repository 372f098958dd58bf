// See mapped_file.h.
// SPDX-License-Identifier: MIT
#include "train/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace octavo_train {

Result<InputFile> InputFile::open(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) return system_error(path, "open", errno);
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0) return system_error(path, "look at", errno);
  if (S_ISDIR(info.st_mode)) return Status::invalid(path + ": is a folder, expected a file");
  if (!S_ISREG(info.st_mode)) return Status::invalid(path + ": is a pipe or a device, expected a file");
  InputFile file;
  file.descriptor = std::move(descriptor);
  file.size = static_cast<std::uint64_t>(info.st_size);
  return file;
}

Result<std::size_t> InputFile::read(std::span<std::byte> out, const std::string& path) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::read(descriptor.get(), out.data() + done, out.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(path, "read", errno);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return file.status();
  MappedFile mapped;
  if (file->size == 0) return mapped;
  if (file->size > SIZE_MAX) return Status::unsupported(path + ": too large for this machine's addresses");
  const auto size = static_cast<std::size_t>(file->size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->descriptor.get(), 0);
  if (data == MAP_FAILED) return system_error(path, "map " + size_text(file->size) + " of", errno);
  mapped.bytes_ = {static_cast<const std::byte*>(data), size};
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace octavo_train
