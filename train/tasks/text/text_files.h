// The files of a run's text: found by name, folder or pattern, told apart by what is in them, and divided
// into a part to train on and a part to evaluate on. A checkpoint keeps the record, so that whoever resumes
// knows whether the text is still the same, and goes on with the same division where files have grown.
//
//   auto paths = octavo::train::find_text_files("data.train", {"corpus/", "more/*.txt"}, settings);
//   auto record = octavo::train::record_text(*paths, std::nullopt, 512);
//   auto split = octavo::train::open_split(*record, 512);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/tasks/text/text.h"

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

struct FileRecord {
  std::string path;
  std::int64_t size = 0;      // of the part that the run uses: all of it, when the run began
  std::string hash;           // fingerprint() of that part
  std::int64_t held_out = 0;  // bytes at the end of that part that are evaluated on
  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

struct TextRecord {
  std::vector<FileRecord> train;
  std::vector<FileRecord> validation;  // none: the held-out parts of `train` are evaluated on
  friend bool operator==(const TextRecord&, const TextRecord&) = default;
};

// The files that the entries name, in that order: a file, a folder (all files in it and below, by path), or a
// pattern with * ? or [ ] (what matches, by path). Hidden and empty files of folders and patterns are left
// out. `key` is what errors begin with; `settings` know where the entries were looked for.
Result<std::vector<std::string>> find_text_files(const std::string& key, std::span<const std::string> entries,
                                                 const Settings& settings);

// The XXH3 of the first `size` bytes of a file, or of 64 pieces of 64 KiB, evenly spread, where they are more
// than 4 MiB. Fewer bytes in the file: an error.
Result<std::string> fingerprint(const std::string& path, std::int64_t size);

// How much of several files is held out where. Version 0.1 took the end of all the text together.
enum class HoldOut { each_file, end_of_all };

// The files with their hashes. Without validation files a part is held out: a tenth of all the text, at least
// one window and at most 8 MiB (or one window, where that is longer); from the end of each file in proportion
// to its size, in pieces of at least one window. Text that is too short for a window is an error that says
// what there is and what is needed.
Result<TextRecord> record_text(const std::vector<std::string>& train,
                               const std::optional<std::vector<std::string>>& validation,
                               std::int64_t block_size, HoldOut rule = HoldOut::each_file);

// REQUIRES: files as the record has them, or larger.
Result<TextSplit> open_split(const TextRecord& record);

// What a run that was trained on `then` does with `now`.
struct TextChange {
  TextRecord record;                 // files of `then` keep their size and division; new ones have their own
  std::vector<std::string> grown;    // what is said: parts of files that are not used
  std::vector<std::string> changed;  // what makes it another text; empty: it is the same
};
Result<TextChange> compare_text(const TextRecord& then, const TextRecord& now);

}  // namespace octavo::train
