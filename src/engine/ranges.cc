// SPDX-License-Identifier: MIT
#include "engine/ranges.h"

#include <algorithm>

namespace octavo::engine {
namespace {

bool before(const Range& a, const Range& b) { return a.begin < b.begin; }

// Calls f(earlier, later) for pairs of overlapping buffers. Of the earlier parameters, and of the other
// earlier buffers, only the one with the greatest end is reported; any other overlap implies that one.
template <class Fn>
void for_overlaps(std::span<const Range> sorted, Fn&& f) {
  const Range* params = nullptr;
  const Range* others = nullptr;
  for (const Range& now : sorted) {
    for (const Range* earlier : {params, others}) {
      if (earlier != nullptr && earlier->end > now.begin && !f(*earlier, now)) return;
    }
    const Range*& last = now.param ? params : others;
    if (last == nullptr || now.end > last->end) last = &now;
  }
}

}  // namespace

std::string name_of(const Range& range) {
  return "tensor " + std::to_string(range.handle) + "." + range.field;
}

Ranges::Ranges(std::vector<Range> ranges) : sorted_(std::move(ranges)) {
  std::stable_sort(sorted_.begin(), sorted_.end(), before);
  reach_out();
}

Ranges Ranges::changed(const Ranges& added, std::span<const std::uint32_t> gone) const {
  std::vector<Range> stay;
  stay.reserve(sorted_.size());
  std::copy_if(sorted_.begin(), sorted_.end(), std::back_inserter(stay), [&](const Range& range) {
    return !std::binary_search(gone.begin(), gone.end(), range.handle);
  });
  Ranges out;
  out.sorted_.resize(stay.size() + added.sorted_.size());
  std::merge(stay.begin(), stay.end(), added.sorted_.begin(), added.sorted_.end(), out.sorted_.begin(),
             before);
  out.reach_out();
  return out;
}

void Ranges::reach_out() {
  reach_.resize(sorted_.size());
  std::uintptr_t end = 0;
  for (std::size_t i = 0; i < sorted_.size(); ++i) reach_[i] = end = std::max(end, sorted_[i].end);
}

std::optional<Ranges::Clash> Ranges::clash() const {
  std::optional<Clash> found;
  for_overlaps(sorted_, [&](const Range& earlier, const Range& later) {
    if (!(earlier.param && later.param)) found = {later, earlier};
    return !found;
  });
  return found;
}

std::vector<std::uint32_t> Ranges::sharing() const {
  std::vector<std::uint32_t> found;
  for_overlaps(sorted_, [&](const Range& earlier, const Range& later) {
    found.push_back(earlier.handle);
    found.push_back(later.handle);
    return true;
  });
  return found;
}

std::optional<Range> Ranges::find(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (bytes == 0) return {};
  const auto after = std::lower_bound(sorted_.begin(), sorted_.end(), begin + bytes,
                                      [](const Range& range, std::uintptr_t at) { return range.begin < at; });
  const auto count = after - sorted_.begin();
  if (count == 0 || reach_[static_cast<std::size_t>(count - 1)] <= begin) return {};
  return *std::find_if(sorted_.begin(), after, [&](const Range& range) { return range.end > begin; });
}

}  // namespace octavo::engine
