// See mapped_file.h.
// SPDX-License-Identifier: MIT
#include "train/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>

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
