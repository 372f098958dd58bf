// See files.h.
// SPDX-License-Identifier: MIT
#include "train/io/files.h"

#include "train/base/numbers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <memory>
#include <system_error>

namespace octavo_train {
namespace {

// The copy that a thread is performing.
struct Copy {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  sigjmp_buf failed;
};

thread_local Copy* current_copy = nullptr;
struct sigaction action_before;

void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  const bool fault = info->si_code > 0;  // not sent by kill() or raise()
  if (fault && current_copy != nullptr && address >= current_copy->begin && address < current_copy->end)
    siglongjmp(current_copy->failed, 1);
  // After the handler returns, a fault occurs again, and the previous action handles it. A signal that was
  // sent is raised again.
  sigaction(SIGBUS, &action_before, nullptr);
  if (!fault) raise(signal);
}

bool install_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  sigemptyset(&action.sa_mask);
  // siglongjmp() leaves the handler without restoring the signal mask, so SIGBUS must not be blocked in it.
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGBUS, &action, &action_before) == 0;
}

}  // namespace

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
  if (bytes < 1000) return counted(static_cast<std::int64_t>(bytes), "byte");
  static constexpr std::array<const char*, 6> kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return decimal_text(value, std::chars_format::fixed, 1) + ' ' + kUnits[unit];
}

Result<std::vector<std::string>> list_folder(const std::string& path) {
  struct Close {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  std::vector<std::string> names;
  const std::unique_ptr<DIR, Close> folder(opendir(path.c_str()));
  if (folder == nullptr) {
    if (errno == ENOENT) return names;
    return system_error(path, "list the folder", errno);
  }
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return system_error(path, "list the folder", errno);
  return names;
}

bool is_folder(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

Status remove_tree(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0)
    return errno == ENOENT ? Status() : system_error(path, "remove", errno);
  const bool folder = S_ISDIR(found.st_mode);
  if (folder) {
    ASSIGN_OR_RETURN(const auto names, list_folder(path));
    for (const std::string& name : names) RETURN_IF_ERROR(remove_tree(path + "/" + name));
  }
  const int failed = folder ? rmdir(path.c_str()) : unlink(path.c_str());
  return failed != 0 && errno != ENOENT ? system_error(path, "remove", errno) : Status();
}

Result<ScratchFolder> ScratchFolder::make(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) return system_error(path, "make the folder", errno);
  return ScratchFolder(path);
}

ScratchFolder::~ScratchFolder() {
  if (!path_.empty()) (void)remove_tree(path_);  // the next writer removes what remains
}

bool copy_mapped(std::span<const std::byte> from, void* to) {
  if (from.empty()) return true;
  [[maybe_unused]] static const bool installed = install_handler();
  Copy copy;
  copy.begin = from.data();
  copy.end = from.data() + from.size();
  if (sigsetjmp(copy.failed, 0) != 0) {
    current_copy = nullptr;
    return false;
  }
  current_copy = &copy;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the copy between the two stores
  std::memcpy(to, from.data(), from.size());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  current_copy = nullptr;
  return true;
}

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
  ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
  MappedFile mapped;
  if (file.size == 0) return mapped;
  if (file.size > SIZE_MAX) return Status::unsupported(path + ": too large for this machine's addresses");
  const auto size = static_cast<std::size_t>(file.size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
  if (data == MAP_FAILED) return system_error(path, "map " + size_text(file.size) + " of", errno);
  mapped.bytes_ = {static_cast<const std::byte*>(data), size};
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace octavo_train
