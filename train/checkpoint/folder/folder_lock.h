// A lock on a run's folder, for one process at a time. The file FOLDER/.lock names the holder and is locked
// with flock(). The system releases the lock when the process ends for any reason.
//
// The lock excludes all processes of one machine, and of other machines if the file system's locks reach them
// (NFS 4, NFS 3 with its lock daemon, Lustre with -o flock). If they do not or may not (NFS mounted with
// nolock or local_lock), the holder touches the file every ten seconds, and another machine treats a file
// touched within the last minute as locked. This method cannot separate two processes that start in the same
// instant, and it needs clocks that agree within a minute.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <chrono>
#include <memory>
#include <string>

namespace octavo_train {

// The defaults are correct for production; tests use others.
struct FolderLockOptions {
  bool system_locks = true;  // false: behave as on a file system without locks
  std::chrono::milliseconds beat{10'000};
  std::chrono::milliseconds stale{60'000};
  std::string host = {};  // empty: this machine's name
};

class FolderLock {
 public:
  explicit FolderLock(FolderLockOptions options = {});
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();  // releases the lock

  // Takes the lock, and creates the folder if it is missing. If another process holds the lock, the error
  // names it.
  Status take(const std::string& folder);
  // Returns an error if the folder was removed, moved or replaced since take(). Returns ok() before take().
  [[nodiscard]] Status check() const;

 private:
  class Held;
  FolderLockOptions options_;
  std::unique_ptr<Held> held_;
};

}  // namespace octavo_train
