// See text_file.h.
// SPDX-License-Identifier: MIT
#include "train/io/text_file.h"

#include "train/io/files.h"
#include "train/io/output_file.h"

namespace octavo_train {

Status write_text_file(const std::string& path, std::string_view text) {
  return write_atomically(path, text.size(),
                          [&](OutputFile& file) { return file.write(std::as_bytes(std::span(text))); });
}

Result<std::string> read_text_file(const std::string& path, std::uint64_t limit) {
  ASSIGN_OR_RETURN(InputFile file, InputFile::open(path));
  if (file.size > limit)
    return invalid_error("{}: {}, expected at most {}", path, size_text(file.size), size_text(limit));
  std::string text(static_cast<std::size_t>(file.size), '\0');
  ASSIGN_OR_RETURN(const std::size_t count, file.read(std::as_writable_bytes(std::span(text)), path));
  text.resize(count);
  return text;
}

}  // namespace octavo_train
