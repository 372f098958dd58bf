// Finds the tokenizer's file at a path; see tokenizer.h.
// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/tokenizer.h"

#include <sys/stat.h>

#include <array>

namespace octavo_train {
namespace {

constexpr std::uint64_t kLargest = 64 << 20;  // bytes; tokenizers have a few MB

bool is_folder(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

}  // namespace

Result<Tokenizer> Tokenizer::open(const std::string& path) {
  std::string file = path;
  if (is_folder(path)) {
    constexpr std::array<std::string_view, 2> kNames = {"tokenizer.model", "tokenizer.json"};
    for (const std::string_view name : kNames) {
      file = path + '/' + std::string(name);
      if (path_exists(file)) break;
    }
    if (!path_exists(file))
      return Status::invalid(path +
                             ": the folder has no tokenizer.model and no tokenizer.json; give the file of a "
                             "SentencePiece model");
  }
  Result<std::string> bytes = read_text_file(file, kLargest);
  if (!bytes.ok()) return bytes.status();
  return from_bytes(std::move(*bytes), file);
}

}  // namespace octavo_train
