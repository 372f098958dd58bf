// Counts and lists the clips that a run skips, each once. The list is a file of JSON lines in the run's
// folder; a line has the place in a manifest, the recording and the reason. All functions are thread-safe.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/manifest/manifest.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace octavo_train {

inline constexpr const char* kSkippedName = "skipped.jsonl";

class SkippedClips {
 public:
  // Lists skipped clips in a file of this folder from now on, including those added before. Clips that the
  // file already contains, from an earlier start of the run, are not listed again.
  Status list_in(const std::string& folder);
  // Counts and lists the clip, unless it has been added before. Returns an error if the list cannot be
  // written.
  Status add(const SkippedClip& clip);

  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] std::string path() const;  // of the list; empty before list_in()

 private:
  Status write(const std::string& lines);

  mutable std::mutex mutex_;
  std::set<std::string> places_;
  std::string waiting_;  // lines to write once there is a file
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, nullptr};  // open for reading and appending
};

}  // namespace octavo_train
