// The files of a run's text. They are found by name, folder or pattern, identified by their content, and
// divided into training and evaluation text. A checkpoint stores the record of the files: a resumed run
// checks that the text is the same, and keeps the division if files have grown.
//   auto paths = octavo_train::find_text_files("data.train", {"corpus/", "more/*.txt"}, settings);
//   auto record = octavo_train::record_text(*paths, std::nullopt, 512);
//   auto split = octavo_train::open_split(*record, 512);
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/tasks/text/text.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

struct FileRecord {
  std::string path;
  std::int64_t size = 0;      // bytes that the run uses: all of them, when the run began
  std::string hash;           // fingerprint() of these bytes
  std::int64_t held_out = 0;  // bytes at their end that are used for evaluation
  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

struct TextRecord {
  std::vector<FileRecord> train;
  std::vector<FileRecord> validation;  // empty: the held-out parts of `train` are used
  friend bool operator==(const TextRecord&, const TextRecord&) = default;
};

// Returns the files that the entries name, in the order of the entries. An entry is a file, a folder (all
// files in it and below, sorted by path), or a pattern with * ? or [ ] (all matches, sorted by path). Hidden
// and empty files of folders and patterns are omitted. Errors begin with `key`, and name the places, from
// `settings`, that were searched.
Result<std::vector<std::string>> find_text_files(const std::string& key, std::span<const std::string> entries,
                                                 const Settings& settings);

// Returns the XXH3 hash of the first `size` bytes of a file or, if these are more than 4 MiB, of 64 pieces of
// 64 KiB, evenly spread. Returns an error if the file has fewer bytes.
Result<std::string> fingerprint(const std::string& path, std::int64_t size);

// The rule that holds out a part of several files: the end of each file or, as in version 0.1, the end of all
// the text together.
enum class HoldOut { each_file, end_of_all };

// Returns the record of the files, with their hashes. Without validation files, a part is held out: a tenth
// of all the text, at least one window and at most 8 MiB (or one window, if that is longer). It is the end of
// each file, in proportion to the file's size, in pieces of at least one window. Returns an error if the text
// is too short for a window; the error has the number of bytes and the number needed.
Result<TextRecord> record_text(const std::vector<std::string>& train,
                               const std::optional<std::vector<std::string>>& validation,
                               std::int64_t block_size, HoldOut rule = HoldOut::each_file);

// Opens the text. REQUIRES: the files are as recorded, or larger.
Result<TextSplit> open_split(const TextRecord& record);

// The result of comparing the text of a run at its checkpoint, `then`, with the text `now`.
struct TextChange {
  TextRecord record;                 // files of `then` keep their size and division; new files have their own
  std::vector<std::string> grown;    // messages about parts of files that are not used
  std::vector<std::string> changed;  // messages about changes of the text; empty: the text is the same
};
Result<TextChange> compare_text(const TextRecord& then, const TextRecord& now);

// Converts a record to and from the JSON in checkpoints. text_record() throws nlohmann::json::exception if
// the JSON is not a record, and returns an error if its numbers contradict each other.
nlohmann::ordered_json to_json(const TextRecord& record);
Result<TextRecord> text_record(const nlohmann::ordered_json& json);

}  // namespace octavo_train
