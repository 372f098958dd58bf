// Mapped files as one sequence of bytes, and the entropy of its bytes; see text.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/text.h"

#include "train/io/mapped_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace octavo_train {

Status cannot_read_mapped(const std::string& path, std::int64_t begin, std::int64_t end) {
  struct stat now {};
  if (::stat(path.c_str(), &now) == 0 && now.st_size < end) {
    return Status::failed(path + ": has " + std::to_string(now.st_size) + " bytes, expected at least " +
                          std::to_string(end) +
                          "; it was shortened while it was in use. Restore it, then start again");
  }
  return Status::failed(
      path + ": bytes " + std::to_string(begin) + " to " + std::to_string(end) +
      " cannot be read; the disk reports an error, or the file was shortened and has grown again");
}

struct TextCorpus::Files {
  std::vector<std::string> paths;    // file of each map
  std::vector<std::int64_t> begins;  // offset of each piece in its file
  std::vector<MappedFile> maps;
  std::vector<std::span<const std::byte>> pieces;  // one per map
  std::vector<std::int64_t> ends;                  // end of each piece in the corpus

  void add(const std::string& path, MappedFile map, std::size_t begin, std::size_t end) {
    paths.push_back(path);
    begins.push_back(static_cast<std::int64_t>(begin));
    pieces.push_back(map.bytes().subspan(begin, end - begin));
    maps.push_back(std::move(map));
    ends.push_back((ends.empty() ? 0 : ends.back()) + static_cast<std::int64_t>(end - begin));
  }
};

Result<TextCorpus> TextCorpus::open(std::span<const std::string> paths) {
  auto files = std::make_shared<Files>();
  for (const std::string& path : paths) {
    Result<MappedFile> map = MappedFile::open(path);
    if (!map.ok()) return map.status();
    const std::size_t size = map->bytes().size();
    if (size == 0) return Status::invalid(path + ": is empty; name a file with text");
    files->add(path, std::move(*map), 0, size);
  }
  TextCorpus out;
  out.files_ = std::move(files);
  return out;
}

Result<TextCorpus> TextCorpus::open(std::span<const TextPiece> pieces) {
  auto files = std::make_shared<Files>();
  for (const TextPiece& piece : pieces) {
    if (piece.begin == piece.end) continue;
    Result<MappedFile> map = MappedFile::open(piece.path);
    if (!map.ok()) return map.status();
    if (static_cast<std::int64_t>(map->bytes().size()) < piece.end) {
      return Status::failed(piece.path + ": has " + std::to_string(map->bytes().size()) +
                            " bytes, expected " + std::to_string(piece.end) + "; it has shrunk");
    }
    files->add(piece.path, std::move(*map), static_cast<std::size_t>(piece.begin),
               static_cast<std::size_t>(piece.end));
  }
  TextCorpus out;
  out.files_ = std::move(files);
  return out;
}

std::int64_t TextCorpus::size() const { return files_ && !files_->ends.empty() ? files_->ends.back() : 0; }

void TextCorpus::read(std::int64_t offset, std::span<std::uint8_t> out) const {
  if (out.empty()) return;
  const auto& ends = files_->ends;
  auto file = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), offset) - ends.begin());
  auto at = static_cast<std::size_t>(offset - (file == 0 ? 0 : ends[file - 1]));
  while (!out.empty()) {
    const auto from = files_->pieces[file].subspan(at);
    const std::size_t count = std::min(from.size(), out.size());
    if (!copy_mapped(from.first(count), out.data())) {
      const std::int64_t begin = files_->begins[file] + static_cast<std::int64_t>(at);
      throw Error(cannot_read_mapped(files_->paths[file], begin, begin + static_cast<std::int64_t>(count)));
    }
    out = out.subspan(count);
    ++file;
    at = 0;
  }
}

namespace {

using Counts = std::array<std::int64_t, 256>;

void count(std::span<const std::uint8_t> bytes, Counts& counts) {
  for (const std::uint8_t byte : bytes) ++counts[byte];
}

double entropy(const Counts& counts) {
  double total = 0;
  for (const std::int64_t each : counts) total += static_cast<double>(each);
  double out = 0;
  for (const std::int64_t each : counts) {
    if (each == 0) continue;
    const double share = static_cast<double>(each) / total;
    out -= share * std::log(share);
  }
  return out;
}

}  // namespace

double unigram_entropy(std::span<const std::uint8_t> bytes) {
  Counts counts = {};
  count(bytes, counts);
  return entropy(counts);
}

double unigram_entropy(const TextRange& range) {
  constexpr std::int64_t kPiece = 1 << 16;
  std::vector<std::uint8_t> piece(static_cast<std::size_t>(std::min(kPiece, range.size())));
  Counts counts = {};
  for (std::int64_t at = range.begin; at < range.end; at += kPiece) {
    const auto bytes = std::span(piece).first(static_cast<std::size_t>(std::min(kPiece, range.end - at)));
    range.corpus.read(at, bytes);
    count(bytes, counts);
  }
  return entropy(counts);
}

double estimated_unigram_entropy(const TextRange& range) {
  constexpr std::int64_t kPiece = 1 << 16, kPieces = 256;
  if (range.size() <= kPiece * kPieces) return unigram_entropy(range);
  std::vector<std::uint8_t> piece(kPiece);
  Counts counts = {};
  for (std::int64_t i = 0; i < kPieces; ++i) {
    range.corpus.read(range.begin + (range.size() - kPiece) / (kPieces - 1) * i, piece);
    count(piece, counts);
  }
  return entropy(counts);
}

}  // namespace octavo_train
