// See text_file.h.
// SPDX-License-Identifier: MIT
#include "train/io/text_file.h"

#include "train/base/status.h"
#include "train/io/mapped_file.h"
#include "train/io/output_file.h"

namespace octavo_train {

Status write_text_file(const std::string& path, std::string_view text) {
  const Result<std::string> partial = partial_path(path);
  if (!partial.ok()) return partial.status();
  Result<OutputFile> file = OutputFile::create(*partial, {0, text.size()});
  if (!file.ok()) return file.status();
  RETURN_IF_ERROR(file->write(std::as_bytes(std::span(text))));
  return file->finish_as(path);
}

Result<std::string> read_text_file(const std::string& path, std::uint64_t limit) {
  Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return file.status();
  if (file->size > limit) {
    return Status::invalid(path + ": " + size_text(file->size) + ", expected at most " + size_text(limit));
  }
  std::string text(static_cast<std::size_t>(file->size), '\0');
  const Result<std::size_t> count = file->read(std::as_writable_bytes(std::span(text)), path);
  if (!count.ok()) return count.status();
  text.resize(*count);
  return text;
}

}  // namespace octavo_train
