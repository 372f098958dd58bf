// The clips that a run goes without, each once: counted, and listed in its folder, a line of JSON each, with
// the place in a manifest, the recording and the reason. Any thread may add some.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/manifest.h"

#include <octavo/status.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace octavo::train {

inline constexpr const char* kSkippedName = "skipped.jsonl";

class SkippedClips {
 public:
  SkippedClips();
  ~SkippedClips();

  // From now on they are listed in this folder, those of before too. What its list has already, of an earlier
  // start of the run, is not listed again.
  Status list_in(const std::string& folder);
  // An error: the list cannot be written.
  Status add(const LeftOutClip& clip);

  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] std::string path() const;  // of the list; empty: there is none yet

 private:
  struct File;
  mutable std::mutex mutex_;
  std::set<std::string> places_;
  std::string waiting_;  // lines, until there is a file
  std::unique_ptr<File> file_;
};

}  // namespace octavo::train
