// Implements the hash and the text format of checksums.txt; see checksums.h.
// SPDX-License-Identifier: MIT
#include "train/io/checksums.h"

#include "train/base/text.h"
#include "train/io/files.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

namespace octavo_train {
namespace {

constexpr std::size_t kHashDigits = 32;

FileChecksum own_checksum(std::string_view lines) {
  return {xxh3_hex(lines), lines.size(), std::string(kChecksumsName)};
}

std::string line_of(const FileChecksum& file) {
  return fmt::format("{} {} {}\n", file.hash, file.size, file.name);
}

bool is_hash(std::string_view text) {
  return text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// `line` has no newline.
bool parse_line(std::string_view line, FileChecksum& file) {
  const std::size_t first = line.find(' ');
  const std::size_t second = line.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  const auto size = parse_number<std::uint64_t>(line.substr(first + 1, second - first - 1));
  file.hash = line.substr(0, first);
  file.name = line.substr(second + 1);
  file.size = size.value_or(0);
  return size && is_hash(file.hash) && is_plain_name(file.name);
}

}  // namespace

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::string Hasher::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string xxh3_hex(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.hex();
}

std::string xxh3_hex(std::string_view text) { return xxh3_hex(std::as_bytes(std::span(text))); }

std::string format_checksums(std::span<const FileChecksum> files) {
  std::string text;
  for (const FileChecksum& file : files) text += line_of(file);
  return text + line_of(own_checksum(text));
}

Result<std::vector<FileChecksum>> parse_checksums(std::string_view text, const std::string& path) {
  const std::string torn = "; the file is torn or was changed";
  if (text.empty() || text.back() != '\n') return invalid_error("{}: its last line has no end{}", path, torn);
  std::vector<FileChecksum> files;
  std::size_t begin = 0;
  std::size_t last = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    const std::string place = fmt::format("{}:{}", path, files.size() + 1);
    FileChecksum file;
    if (!parse_line(text.substr(begin, end - begin), file))
      return invalid_error("{}: expected a hash of 32 hex digits, a size and a file name{}", place, torn);
    if (std::any_of(files.begin(), files.end(), [&](const auto& other) { return other.name == file.name; }))
      return invalid_error("{}: a second line for {}{}", place, file.name, torn);
    files.push_back(std::move(file));
    last = begin;
    begin = end + 1;
  }
  if (files.back() != own_checksum(text.substr(0, last)))
    return invalid_error("{}: its last line does not fit the lines before{}", path, torn);
  files.pop_back();
  return files;
}

}  // namespace octavo_train
