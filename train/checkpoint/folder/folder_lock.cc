// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/folder_lock.h"

#include "train/io/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

namespace octavo_train {
namespace {

constexpr const char* kName = "/.lock";
constexpr int kAttempts = 100;  // tries to open a file that its holder may remove

struct Holder {
  std::string host;
  long pid = 0;
};

std::string this_host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// Returns true if a lock on this file may be invisible to other machines although it succeeded.
bool may_be_local(const FileDescriptor& file) {
  constexpr long kNfs = 0x6969;
  struct statfs found {};
  return ::fstatfs(file.get(), &found) == 0 && found.f_type == kNfs;
}

Holder holder_of(const FileDescriptor& file) {
  std::array<char, 512> text{};
  const ssize_t count = ::pread(file.get(), text.data(), text.size() - 1, 0);
  Holder out;
  if (count > 0)
    std::istringstream(std::string(text.data(), static_cast<std::size_t>(count))) >> out.host >> out.pid;
  return out;
}

std::string holder_text(const Holder& holder) {
  return holder.host.empty() ? std::string() : fmt::format(" (process {} on {})", holder.pid, holder.host);
}

std::chrono::duration<double> age_of(const struct stat& file) {
  struct timespec now {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::chrono::seconds(now.tv_sec - file.st_mtim.tv_sec) +
         std::chrono::duration<double>(1e-9 * static_cast<double>(now.tv_nsec - file.st_mtim.tv_nsec));
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

// The open lock file, and the thread that touches it.
class FolderLock::Held {
 public:
  Held(FileDescriptor file, const std::string& folder)
      : file_(std::move(file)),
        folder_(folder),
        folder_file_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
        path_(folder + kName) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  ~Held() {
    if (beating_.joinable()) {
      {
        const std::lock_guard guard(mutex_);
        done_ = true;
      }
      wake_.notify_all();
      beating_.join();
    }
    // The file is removed only if it is still this one: a user may have removed it by hand, and another
    // process may have created a new one.
    struct stat mine {
    }, there{};
    if (::fstat(file_.get(), &mine) == 0 && ::lstat(path_.c_str(), &there) == 0 && same_file(mine, there))
      ::unlink(path_.c_str());
  }

  // Writes the holder into the file. A file of another user can be locked but not written; then it names no
  // holder.
  void sign(const std::string& host) {
    const std::string text = fmt::format("{} {}\n", host, ::getpid());
    std::ignore = ::ftruncate(file_.get(), 0);
    std::ignore = ::pwrite(file_.get(), text.data(), text.size(), 0);
  }

  [[nodiscard]] Status check() const {
    struct stat mine {
    }, there{};
    if (folder_file_.get() < 0 || ::fstat(folder_file_.get(), &mine) != 0)
      return {};  // the folder cannot be compared
    const bool found = ::stat(folder_.c_str(), &there) == 0;
    // Other errors, such as those of a network file system or of permissions, do not prove that the folder is
    // gone.
    if (found ? same_file(mine, there) : errno != ENOENT && errno != ENOTDIR) return {};
    return failed_error("output_dir: {} was removed, moved or replaced while the run used it", folder_);
  }

  void beat(std::chrono::milliseconds every) {
    beating_ = std::thread([this, every] {
      std::unique_lock guard(mutex_);
      while (!wake_.wait_for(guard, every, [this] { return done_; }))
        std::ignore = ::futimens(file_.get(), nullptr);
    });
  }

 private:
  FileDescriptor file_;
  std::string folder_;
  FileDescriptor folder_file_;  // open, so that the folder's inode number is not reused
  std::string path_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread beating_;
};

FolderLock::FolderLock(FolderLockOptions options) : options_(std::move(options)) {
  if (options_.host.empty()) options_.host = this_host();
}
FolderLock::FolderLock(FolderLock&& other) noexcept = default;
FolderLock& FolderLock::operator=(FolderLock&& other) noexcept = default;
FolderLock::~FolderLock() = default;

Status FolderLock::take(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return failed_error("output_dir: {} cannot be made: {}", folder, error.message());
  const std::string path = folder + kName;
  const auto in_use = [&](const Holder& holder, const std::string& more) {
    return failed_error("output_dir: another octavo train is using {}{}; wait for it, or choose another{}",
                        folder, holder_text(holder), more);
  };
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file.get() < 0 && errno == EACCES) {
      file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      if (file.get() < 0 && errno == ENOENT) {
        return failed_error(
            "output_dir: {} cannot be written to (Permission denied); choose another output_dir", folder);
      }
    }
    if (file.get() < 0 && errno == ELOOP)
      return failed_error("output_dir: {} is a link, expected a file; remove it", path);
    if (file.get() < 0) return system_error("output_dir: " + path, "open the lock", errno);
    const bool locked = options_.system_locks && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
    if (!locked && options_.system_locks && errno == EWOULDBLOCK) return in_use(holder_of(file), "");
    struct stat mine {
    }, there{};
    if (::fstat(file.get(), &mine) != 0)
      return system_error("output_dir: " + path, "look at the lock", errno);
    // The previous holder may have removed the file since it was opened.
    if (::lstat(path.c_str(), &there) != 0 || !same_file(mine, there)) continue;

    const bool unsure = !locked || may_be_local(file);
    if (const Holder holder = holder_of(file); unsure && !holder.host.empty()) {
      const bool here = holder.host == options_.host;
      const bool alive =
          here ? !locked && ::kill(static_cast<pid_t>(holder.pid), 0) == 0 : age_of(mine) < options_.stale;
      if (alive) {
        return in_use(holder,
                      here ? "" : "; if that process is gone, start again in a minute, or remove " + path);
      }
    }
    held_ = std::make_unique<Held>(std::move(file), folder);
    held_->sign(options_.host);
    if (unsure) held_->beat(options_.beat);
    return {};
  }
  return failed_error("output_dir: {} comes and goes: many processes start in {}", path, folder);
}

Status FolderLock::check() const { return held_ != nullptr ? held_->check() : Status(); }

}  // namespace octavo_train
