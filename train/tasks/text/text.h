// Text to train on: files mapped into memory and seen as one sequence of bytes, a byte being a token. A
// window of block_size tokens is block_size + 1 bytes, for the last one is only a target.
//
//   auto corpus = octavo::train::TextCorpus::open(paths);
//   if (!corpus.ok()) show(corpus.status().message());
//   std::int64_t samples = octavo::train::sample_count({*corpus, 0, corpus->size()}, 512, -1);
//
// Offsets count from the start of the first file, in ranges too. text_files.h finds the files and divides
// them into what is trained on and what is evaluated on. Files must keep their size while they are in use:
// to read a byte that is no longer there is an error.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

// Why these bytes of a mapped file could not be read: the file is shorter now, or its disk has an error.
Status cannot_read_mapped(const std::string& path, std::int64_t begin, std::int64_t end);

// A part of a file.
struct TextPiece {
  std::string path;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Copies share the maps; any number of threads may read.
class TextCorpus {
 public:
  TextCorpus() = default;  // no bytes

  // Files follow each other in the order given, with nothing in between. A file that is missing, empty, not
  // a regular file or unreadable is an error that names it.
  static Result<TextCorpus> open(std::span<const std::string> paths);
  // Parts of files, in the order given. REQUIRES: 0 <= begin <= end. A file that ends before is an error.
  static Result<TextCorpus> open(std::span<const TextPiece> pieces);

  [[nodiscard]] std::int64_t size() const;

  // Fills `out` with the bytes from `offset` on, across files where need be.
  // REQUIRES: 0 <= offset, offset + out.size() <= size(). Throws an Error that names the file if it was
  // shortened since it was opened, or if its disk reports an error.
  void read(std::int64_t offset, std::span<std::uint8_t> out) const;

 private:
  struct Files;
  std::shared_ptr<const Files> files_;
};

struct TextRange {
  TextCorpus corpus;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

struct TextSplit {
  TextRange train;
  TextRange validation;
};

// How many windows lie side by side in the range, each followed by one more byte; at most max_samples, where
// that is not -1. REQUIRES: block_size >= 1, max_samples >= 1 or -1.
std::int64_t sample_count(const TextRange& range, std::int64_t block_size, std::int64_t max_samples);

// Where the windows of an evaluation begin, in order and without overlap; evenly spread over the range if
// `limit` is smaller than their number. REQUIRES: as sample_count.
std::vector<std::int64_t> evaluation_offsets(const TextRange& range, std::int64_t block_size,
                                             std::int64_t limit);

// Entropy of the bytes' frequencies in nats per byte: the loss of a model that knows only those. 0 for none.
double unigram_entropy(std::span<const std::uint8_t> bytes);
double unigram_entropy(const TextRange& range);
// The same over 256 pieces of 64 KiB, evenly spread, where the range has more bytes than they.
double estimated_unigram_entropy(const TextRange& range);

}  // namespace octavo::train
