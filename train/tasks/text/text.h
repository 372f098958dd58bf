// Training text: files mapped into memory, as one sequence of bytes. A byte is a token. A window of
// block_size tokens is block_size + 1 bytes, because the last byte is only a target.
//
//   auto corpus = octavo_train::TextCorpus::open(paths);
//   if (!corpus.ok()) show(corpus.status().message());
//   std::int64_t samples = octavo_train::sample_count({*corpus, 0, corpus->size()}, 512, -1);
//
// Offsets count from the start of the first file, also in ranges. text_files.h finds the files and divides
// them into training and evaluation text. Files must keep their size while they are in use: reading a byte
// that no longer exists is an error.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/data/order.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {

// Returns an error that explains why these bytes of a mapped file could not be read: the file is shorter now,
// or its disk has an error.
Status cannot_read_mapped(const std::string& path, std::int64_t begin, std::int64_t end);

// A part of a file.
struct TextPiece {
  std::string path;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// A sequence of mapped files, or of parts of files. Copies share the maps. Any number of threads may read.
class TextCorpus {
 public:
  TextCorpus() = default;  // no bytes

  // Opens files, which follow each other in the given order without a separator. Returns an error that names
  // the file if it is missing, empty, not a regular file or unreadable.
  static Result<TextCorpus> open(std::span<const std::string> paths);
  // Opens parts of files, in the given order. REQUIRES: 0 <= begin <= end. Returns an error if a file ends
  // before its part.
  static Result<TextCorpus> open(std::span<const TextPiece> pieces);

  [[nodiscard]] std::int64_t size() const;

  // Fills `out` with the bytes from `offset` on, across files if needed.
  // REQUIRES: 0 <= offset, offset + out.size() <= size(). Throws an Error that names the file if it was
  // shortened since it was opened, or if its disk reports an error.
  void read(std::int64_t offset, std::span<std::uint8_t> out) const;

 private:
  struct Files;
  explicit TextCorpus(std::shared_ptr<const Files> files) : files_(std::move(files)) {}
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

// Returns the number of windows that lie side by side in the range, each followed by one more byte. The
// result is at most max_samples, unless that is -1. REQUIRES: block_size >= 1, max_samples >= 1 or -1.
std::int64_t sample_count(const TextRange& range, std::int64_t block_size, std::int64_t max_samples);

// Maps draws to windows of a text. train/data/order.h has the order.
//
// From the second epoch on, all windows of an epoch are shifted by the same random part of a block, so that
// the text is cut at other positions. No window extends beyond the first `samples` blocks (and their last
// target): the last window moves back as far as needed.
class Sampler {
 public:
  // REQUIRES: order.samples() <= sample_count(range, block_size, -1).
  Sampler(TextRange range, std::int64_t block_size, Order order);

  // Returns the offset of the window's first byte in the corpus. REQUIRES: draw >= order().start().
  [[nodiscard]] std::int64_t offset(std::uint64_t draw) const;

  // Reads the window's block_size + 1 bytes. REQUIRES: draw >= order().start(), and out.size() is block_size
  // + 1.
  void read(std::uint64_t draw, std::span<std::uint8_t> out) const;

  [[nodiscard]] const Order& order() const { return order_; }
  [[nodiscard]] std::int64_t block_size() const { return block_size_; }

 private:
  TextRange range_;  // ends at the end of the last sample
  std::int64_t block_size_;
  Order order_;
};

// Returns the offsets of the windows of an evaluation, in order and without overlap. If `limit` is smaller
// than their number, `limit` windows are spread evenly over the range. REQUIRES: as for sample_count().
std::vector<std::int64_t> evaluation_offsets(const TextRange& range, std::int64_t block_size,
                                             std::int64_t limit);

// Returns the entropy of the bytes' frequencies in nats per byte: the loss of a model that knows only the
// frequencies. Returns 0 if there are no bytes.
double unigram_entropy(std::span<const std::uint8_t> bytes);
double unigram_entropy(const TextRange& range);
// Returns the unigram entropy of 256 pieces of 64 KiB, evenly spread, or of the complete range if it is not
// larger.
double estimated_unigram_entropy(const TextRange& range);

}  // namespace octavo_train
