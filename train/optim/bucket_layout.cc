// SPDX-License-Identifier: MIT
#include "train/optim/bucket_layout.h"

#include <algorithm>
#include <map>
#include <utility>

namespace octavo_train {
namespace {

std::int64_t rounded_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// Returns the bytes of the parameters that cannot be divided, with padding.
std::int64_t whole_bytes(std::span<const LaidParameter> parameters, std::int64_t alignment) {
  std::int64_t total = 0;
  for (const LaidParameter& each : parameters) {
    if (each.whole) total += rounded_up(each.elements, alignment) * each.element_bytes;
  }
  return total;
}

}  // namespace

BucketLayout BucketLayout::make(std::span<const LaidParameter> parameters, int ranks, std::int64_t alignment,
                                bool divided, std::int64_t bucket_bytes) {
  struct Open {
    Bucket bucket;
    std::int64_t bytes = 0;
    bool owned = false;
  };
  // Buckets with one owner are small enough that every rank can get one.
  const std::int64_t owned_bytes =
      std::clamp<std::int64_t>(rounded_up(whole_bytes(parameters, alignment), ranks) / ranks, 1,
                               std::max<std::int64_t>(bucket_bytes, 1));
  std::vector<Open> all;
  std::map<std::pair<bool, int>, std::size_t> open;  // by (owned, type): the last bucket begun
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const LaidParameter& param = parameters[i];
    const bool owned = divided && param.whole;
    const std::int64_t limit = owned ? owned_bytes : bucket_bytes;
    const std::int64_t bytes = rounded_up(param.elements, alignment) * param.element_bytes;
    const auto found = open.find({owned, param.type});
    const bool fits = found != open.end() && all[found->second].bytes + bytes <= limit;
    if (!fits) {
      open[{owned, param.type}] = all.size();
      all.push_back({Bucket{param.type, {}, {}, 0, -1}, 0, owned});
    }
    Open& into = all[open[{owned, param.type}]];
    const std::int64_t begin = rounded_up(into.bucket.elements, alignment);
    into.bucket.parameters.push_back(i);
    into.bucket.begins.push_back(begin);
    into.bucket.elements = begin + param.elements;
    into.bytes += bytes;
  }
  // Buckets are in the order in which their last parameter gets its gradient.
  std::stable_sort(all.begin(), all.end(), [](const Open& a, const Open& b) {
    return a.bucket.parameters.back() > b.bucket.parameters.back();
  });

  BucketLayout out;
  out.ranks_ = ranks;
  out.divided_ = divided;
  out.places_.resize(parameters.size());
  std::vector<std::int64_t> owned(static_cast<std::size_t>(ranks), 0);  // bytes by rank
  for (Open& each : all) {
    Bucket& bucket = each.bucket;
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const std::size_t param = bucket.parameters[k];
      out.places_[param] = {out.buckets_.size(), bucket.begins[k], parameters[param].elements};
    }
    if (each.owned) {
      const auto least = std::min_element(owned.begin(), owned.end());
      *least += each.bytes;
      bucket.owner = static_cast<int>(least - owned.begin());
    } else if (divided) {
      bucket.elements = rounded_up(bucket.elements, ranks * alignment);
    }
    out.buckets_.push_back(std::move(bucket));
  }
  return out;
}

Piece BucketLayout::chunk(std::size_t bucket, int rank) const {
  const Bucket& of = buckets_[bucket];
  if (!divided_ || of.owner == rank) return {0, of.elements};
  if (of.owner >= 0) return {};
  const std::int64_t each = of.elements / ranks_;
  return {rank * each, (rank + 1) * each};
}

Piece BucketLayout::piece(std::size_t parameter, int rank) const {
  const At& at = places_[parameter];
  const Piece has = chunk(at.bucket, rank);
  const std::int64_t begin = std::max<std::int64_t>(has.begin - at.begin, 0);
  const std::int64_t end = std::min(has.end - at.begin, at.elements);
  return begin < end ? Piece{begin, end} : Piece{};
}

}  // namespace octavo_train
