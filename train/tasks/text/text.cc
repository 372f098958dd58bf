// Mapped files as one sequence of bytes, its windows, and the entropy of its bytes; see text.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/text.h"

#include "train/io/files.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace octavo_train {

Status cannot_read_mapped(const std::string& path, std::int64_t begin, std::int64_t end) {
  struct stat now {};
  if (::stat(path.c_str(), &now) == 0 && now.st_size < end) {
    return failed_error(
        "{}: has {} bytes, expected at least {}; it was shortened while it was in use. Restore it, then "
        "start again",
        path, now.st_size, end);
  }
  return failed_error(
      "{}: bytes {} to {} cannot be read; the disk reports an error, or the file was shortened and has grown "
      "again",
      path, begin, end);
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
    ASSIGN_OR_RETURN(MappedFile map, MappedFile::open(path));
    const std::size_t size = map.bytes().size();
    if (size == 0) return Status::invalid(path + ": is empty; name a file with text");
    files->add(path, std::move(map), 0, size);
  }
  return TextCorpus(std::move(files));
}

Result<TextCorpus> TextCorpus::open(std::span<const TextPiece> pieces) {
  auto files = std::make_shared<Files>();
  for (const TextPiece& piece : pieces) {
    if (piece.begin == piece.end) continue;
    ASSIGN_OR_RETURN(MappedFile map, MappedFile::open(piece.path));
    if (static_cast<std::int64_t>(map.bytes().size()) < piece.end) {
      return failed_error("{}: has {} bytes, expected {}; it has shrunk", piece.path, map.bytes().size(),
                          piece.end);
    }
    files->add(piece.path, std::move(map), static_cast<std::size_t>(piece.begin),
               static_cast<std::size_t>(piece.end));
  }
  return TextCorpus(std::move(files));
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

std::int64_t sample_count(const TextRange& range, std::int64_t block_size, std::int64_t max_samples) {
  const std::int64_t all = std::max<std::int64_t>(range.size() - 1, 0) / block_size;
  return max_samples < 0 ? all : std::min(all, max_samples);
}

Sampler::Sampler(TextRange range, std::int64_t block_size, Order order)
    : range_(std::move(range)), block_size_(block_size), order_(order) {
  const std::int64_t samples = order_.samples();
  if (samples < sample_count(range_, block_size, -1)) range_.end = range_.begin + samples * block_size + 1;
}

std::int64_t Sampler::offset(std::uint64_t draw) const {
  const std::uint64_t epoch = order_.epoch(draw);
  const auto shift = static_cast<std::int64_t>(
      epoch == 0 ? 0 : order_.noise(epoch) % static_cast<std::uint64_t>(block_size_));
  const std::int64_t last = range_.end - block_size_ - 1;
  return std::min(range_.begin + order_.sample(draw) * block_size_ + shift, last);
}

void Sampler::read(std::uint64_t draw, std::span<std::uint8_t> out) const {
  range_.corpus.read(offset(draw), out);
}

std::vector<std::int64_t> evaluation_offsets(const TextRange& range, std::int64_t block_size,
                                             std::int64_t limit) {
  const std::int64_t all = sample_count(range, block_size, -1);
  const std::int64_t taken = sample_count(range, block_size, limit);
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(taken));
  // `window` is i * all / taken, rounded down, computed without a multiplication that could overflow.
  std::int64_t window = 0;
  std::int64_t remainder = 0;
  for (std::int64_t i = 0; i < taken; ++i) {
    out.push_back(range.begin + window * block_size);
    window += all / taken;
    remainder += all % taken;
    if (remainder >= taken) {
      remainder -= taken;
      ++window;
    }
  }
  return out;
}

}  // namespace octavo_train
