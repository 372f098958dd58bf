// Which part of the text is trained on and which is held out, and the windows in a part; see text.h.
// SPDX-License-Identifier: MIT
#include "train/data/text.h"

#include <algorithm>

namespace octavo::train {
namespace {

constexpr std::int64_t kMostHeldOut = std::int64_t{8} << 20;

std::string joined(std::span<const std::string> paths) {
  std::string out;
  for (const std::string& path : paths) out += (out.empty() ? "" : ", ") + path;
  return out;
}

// `data.train: corpus.txt: 100 bytes are too few for block_size 512: it takes 513; use more text or …`
Status too_short(std::string_view key, std::span<const std::string> paths, std::int64_t size,
                 std::int64_t block_size, std::int64_t needed, std::string_view why) {
  return Status::invalid(std::string(key) + ": " + joined(paths) + ": " + std::to_string(size) +
                         " bytes are too few for a block_size of " + std::to_string(block_size) +
                         ", which takes " + std::to_string(needed) + std::string(why) +
                         "; use more text or a smaller data.block_size");
}

Result<TextRange> open_range(std::string_view key, std::span<const std::string> paths) {
  if (paths.empty()) return Status::invalid(std::string(key) + ": no files; name the text");
  Result<TextCorpus> corpus = TextCorpus::open(paths);
  if (!corpus.ok()) {
    return Status(corpus.status().code(), std::string(key) + ": " + corpus.status().message());
  }
  return TextRange{*corpus, 0, corpus->size()};
}

}  // namespace

Result<TextSplit> split_text(std::span<const std::string> train,
                             const std::optional<std::vector<std::string>>& validation,
                             std::int64_t block_size) {
  const std::int64_t window = block_size + 1;
  Result<TextRange> all = open_range("data.train", train);
  if (!all.ok()) return all.status();
  const std::int64_t size = all->size();
  if (!validation) {
    if (size < 2 * window) {
      return too_short("data.train", train, size, block_size, 2 * window,
                       " where data.validation is null and a part is held out for it");
    }
    // Both bounds leave a window to train on: a tenth is less than the rest, and two windows fit.
    const std::int64_t held_out = std::max(std::min(size / 10, kMostHeldOut), window);
    const std::int64_t cut = size - held_out;
    return TextSplit{{all->corpus, 0, cut}, {all->corpus, cut, size}};
  }
  if (size < window) return too_short("data.train", train, size, block_size, window, "");
  Result<TextRange> held_out = open_range("data.validation", *validation);
  if (!held_out.ok()) return held_out.status();
  if (held_out->size() < window) {
    return too_short("data.validation", *validation, held_out->size(), block_size, window, "");
  }
  return TextSplit{*all, *held_out};
}

std::int64_t sample_count(const TextRange& range, std::int64_t block_size, std::int64_t max_samples) {
  const std::int64_t all = std::max<std::int64_t>(range.size() - 1, 0) / block_size;
  return max_samples < 0 ? all : std::min(all, max_samples);
}

std::vector<std::int64_t> evaluation_offsets(const TextRange& range, std::int64_t block_size,
                                             std::int64_t limit) {
  const std::int64_t all = sample_count(range, block_size, -1);
  const std::int64_t taken = sample_count(range, block_size, limit);
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(taken));
  // Window number i * all / taken, rounded down, without a product that could overflow.
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

}  // namespace octavo::train
