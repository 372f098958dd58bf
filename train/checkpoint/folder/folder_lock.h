// The lock of a run's folder, for one process at a time: FOLDER/.lock, which the system's flock() guards and
// which names its holder. The system releases it when the process ends, however it does.
//
// What it reaches: all processes of one machine, and of others where the file system's locks do (NFS 4, NFS 3
// with its lock daemon, Lustre with -o flock). Where they do not, or may not (NFS mounted with nolock or
// local_lock), the holder touches the file every ten seconds, and whoever finds it touched within the last
// minute by another machine stays out. That cannot tell two processes apart that start in the same instant,
// and it relies on clocks that agree within a minute.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <chrono>
#include <memory>
#include <string>

namespace octavo::train {

// The defaults are right; tests have others.
struct FolderLockOptions {
  bool system_locks = true;  // false: as on a file system that has none
  std::chrono::milliseconds beat{10'000};
  std::chrono::milliseconds stale{60'000};
  std::string host = {};  // empty: this machine's name
};

class FolderLock {
 public:
  explicit FolderLock(FolderLockOptions options = {});
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();  // gives it back

  // Makes the folder where it is missing. Where another process has it, the error names the holder.
  Status take(const std::string& folder);
  // Returns an error if the folder was removed, moved or replaced since it was taken. ok() without take().
  [[nodiscard]] Status check() const;

 private:
  class Held;
  FolderLockOptions options_;
  std::unique_ptr<Held> held_;
};

}  // namespace octavo::train
