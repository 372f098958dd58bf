// SPDX-License-Identifier: MIT
#include "train/tasks/speech/manifest/manifest_order.h"

#include "train/data/mix.h"
#include "train/data/order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <string>

namespace octavo_train {
namespace {

constexpr std::uint64_t kSubsetKey = 0x6D616E6966657374;  // arbitrary; determines the subsets

// Returns the clips of a manifest, numbered from 0, in the order in which they occur in an epoch.
std::vector<std::uint32_t> turns_of(const Turns& manifest) {
  const auto clips = static_cast<std::uint32_t>(manifest.clips);
  const double whole = std::floor(manifest.weight);
  std::vector<std::uint32_t> out;
  for (int i = 0; i < static_cast<int>(whole); ++i) {
    for (std::uint32_t clip = 0; clip < clips; ++clip) out.push_back(clip);
  }
  const auto rest = static_cast<std::uint32_t>(std::llround((manifest.weight - whole) * clips));
  if (rest == 0) return out;
  const Permutation random(clips, mix(kSubsetKey + clips));
  const auto begin = static_cast<std::ptrdiff_t>(out.size());
  for (std::uint32_t i = 0; i < rest; ++i) out.push_back(static_cast<std::uint32_t>(random(i)));
  std::sort(out.begin() + begin, out.end());
  return out;
}

// The next entry of a manifest (`turn`) among all its entries in the epoch (`turns`).
struct Next {
  std::uint64_t turn = 0, turns = 0;
  std::size_t manifest = 0;
};

// Orders entries by their position in the epoch, (turn + 1/2) / turns. The comparison is exact, because a
// turn is below 2^32.
struct Later {
  bool operator()(const Next& a, const Next& b) const {
    const std::uint64_t left = (2 * a.turn + 1) * b.turns;
    const std::uint64_t right = (2 * b.turn + 1) * a.turns;
    return left != right ? left > right : a.manifest > b.manifest;
  }
};

}  // namespace

Result<std::vector<std::uint32_t>> mixed_turns(std::span<const Turns> manifests) {
  constexpr double kMost = std::numeric_limits<std::int32_t>::max();
  double entries = 0;
  for (const Turns& manifest : manifests)
    entries += static_cast<double>(manifest.clips) * std::max(manifest.weight, 1.0);
  if (manifests.size() == 1 && manifests[0].weight == 1) return std::vector<std::uint32_t>();
  if (entries > kMost)
    return Status::unsupported(
        "an epoch of all manifests with their weights would have more than 2,147,483,647 clips; use smaller "
        "weights");
  std::vector<std::vector<std::uint32_t>> turns;
  std::vector<std::uint32_t> first;  // number of clips in the preceding manifests
  std::priority_queue<Next, std::vector<Next>, Later> next;
  std::uint32_t clips = 0;
  std::size_t total = 0;
  for (std::size_t i = 0; i < manifests.size(); ++i) {
    turns.push_back(turns_of(manifests[i]));
    first.push_back(clips);
    clips += static_cast<std::uint32_t>(manifests[i].clips);
    total += turns.back().size();
    if (!turns.back().empty()) next.push({0, turns.back().size(), i});
  }
  if (total == 0)
    return Status::invalid("the manifests' weights are so small that no clip is left; use larger ones");
  std::vector<std::uint32_t> out;
  out.reserve(total);
  while (!next.empty()) {
    Next turn = next.top();
    next.pop();
    out.push_back(first[turn.manifest] + turns[turn.manifest][turn.turn]);
    if (++turn.turn < turn.turns) next.push(turn);
  }
  return out;
}

}  // namespace octavo_train
