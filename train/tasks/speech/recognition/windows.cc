// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/windows.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>

namespace octavo_train {
namespace {

using Begins = std::function<bool(std::int64_t)>;

constexpr std::int64_t kSlack = 4;      // frames by which two windows may differ in the time of a label
constexpr std::int64_t kNear = 6;       // frames before the middle where the search for a word of `b` begins
constexpr std::int64_t kLongWord = 25;  // frames

struct Pair {
  std::size_t a = 0, b = 0;
};

// Returns a pair of equal labels of `a` and `b`: among the pairs of a longest common subsequence, the pair
// closest to `middle`.
std::optional<Pair> common_label(std::span<const Emission> a, std::span<const Emission> b,
                                 std::int64_t middle) {
  const auto same = [&](std::size_t i, std::size_t j) {
    return a[i].token == b[j].token && std::abs(a[i].frame - b[j].frame) <= kSlack;
  };
  // most[i][j]: length of the longest common subsequence of a from i and b from j.
  const std::size_t width = b.size() + 1;
  std::vector<std::int32_t> most((a.size() + 1) * width, 0);
  const auto at = [&](std::size_t i, std::size_t j) -> std::int32_t& { return most[i * width + j]; };
  for (std::size_t i = a.size(); i-- > 0;) {
    for (std::size_t j = b.size(); j-- > 0;) {
      at(i, j) = std::max(at(i + 1, j), at(i, j + 1));
      if (same(i, j)) at(i, j) = std::max(at(i, j), at(i + 1, j + 1) + 1);
    }
  }
  std::optional<Pair> best;
  const auto distance = [&](const Pair& pair) { return std::abs(a[pair.a].frame - middle); };
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (same(i, j) && at(i, j) == at(i + 1, j + 1) + 1) {
      if (const Pair pair{i, j}; !best || distance(pair) < distance(*best)) best = pair;
      ++i, ++j;
    } else {
      at(i + 1, j) >= at(i, j + 1) ? ++i : ++j;
    }
  }
  return best;
}

// Returns the index of the first token at `frame` or later.
std::size_t token_from(std::span<const Emission> tokens, std::int64_t frame) {
  const auto late = std::ranges::find_if(tokens, [&](const Emission& e) { return e.frame >= frame; });
  return static_cast<std::size_t>(late - tokens.begin());
}

// Returns the index of the first token from `first` on that begins a word. Returns `first` if no token does
// within kLongWord frames, such as in a language without spaces.
std::size_t next_word(std::span<const Emission> tokens, std::size_t first, const Begins& begins_word) {
  for (std::size_t i = first; i < tokens.size(); ++i) {
    if (tokens[i].frame > tokens[first].frame + kLongWord) return first;
    if (begins_word(tokens[i].token)) return i;
  }
  return tokens.size();
}

// Returns the seam of two windows without a common label: the words of `a` that begin before the middle, then
// the words of `b` that begin after them.
Pair seam_between_words(std::span<const Emission> a, std::span<const Emission> b, std::int64_t middle,
                        const Begins& begins_word) {
  const std::size_t kept = next_word(a, token_from(a, middle), begins_word);
  std::int64_t from = middle - kNear;
  if (kept > 0) from = std::max(from, a[kept - 1].end() - 1);
  const std::size_t late = token_from(b, from);
  return {kept, late == 0 ? 0 : next_word(b, late, begins_word)};
}

// Appends the tokens of a window to the transcript of the preceding windows, which ends at frame `end`.
// `first` is the window's first frame.
void add_window(Transcript& out, std::int64_t end, const Transcript& tokens, std::int64_t first,
                const Begins& begins_word) {
  const auto before = [](std::int64_t frame) { return [=](const Emission& e) { return e.frame < frame; }; };
  const auto from = std::ranges::partition_point(out, before(first));
  const auto offset = static_cast<std::size_t>(from - out.begin());
  const std::span<const Emission> a(from, out.end());
  const std::span<const Emission> b(tokens.begin(), std::ranges::partition_point(tokens, before(end)));
  const std::int64_t middle = first + (end - first) / 2;
  Pair seam;
  if (const auto common = common_label(a, b, middle)) {
    seam = {common->a + 1, common->b + 1};
  } else {
    seam = seam_between_words(a, tokens, middle, begins_word);
  }
  out.resize(offset + seam.a);
  for (std::size_t i = seam.b; i < tokens.size(); ++i) {
    out.push_back(tokens[i]);
    if (out.size() > 1) out.back().frame = std::max(out.back().frame, out[out.size() - 2].frame);
  }
}

}  // namespace

std::vector<RecognitionWindow> cut_windows(std::int64_t frames, std::int64_t longest, std::int64_t margin) {
  const std::int64_t shared = 2 * margin;
  if (frames <= longest + shared) return {{0, frames}};
  const std::int64_t count = (frames - shared + longest - 1) / longest;
  const std::int64_t each = (frames + shared * (count - 1) + count - 1) / count;
  std::vector<RecognitionWindow> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back({i * (frames - each) / (count - 1), each});
  return out;
}

Transcript merge_windows(const std::vector<RecognizedWindow>& windows, const Begins& begins_word) {
  Transcript out;
  std::int64_t end = 0;
  for (const RecognizedWindow& each : windows) {
    Transcript tokens = each.tokens;
    for (Emission& emission : tokens) emission.frame += each.window.first;
    add_window(out, std::max(end, each.window.first), tokens, each.window.first, begins_word);
    end = each.window.end();
  }
  return out;
}

}  // namespace octavo_train
