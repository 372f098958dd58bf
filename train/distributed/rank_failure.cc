// SPDX-License-Identifier: MIT
#include "train/distributed/rank_failure.h"

#include <charconv>

namespace octavo_train {

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

// The stored form is "rank found_by text".
std::string to_store(const RankFailure& failure) {
  return std::to_string(failure.rank) + ' ' + std::to_string(static_cast<int>(failure.found_by)) + ' ' +
         failure.text;
}

RankFailure from_store(std::string_view stored) {
  int rank = 0, found_by = 0;
  const char* const end = stored.data() + stored.size();
  const auto first = std::from_chars(stored.data(), end, rank);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return {.text = std::string(stored)};
  const auto second = std::from_chars(first.ptr + 1, end, found_by);
  const bool valid = second.ec == std::errc() && second.ptr != end && *second.ptr == ' ' &&
                     rank >= RankFailure::kNoRank && found_by >= 0 &&
                     found_by <= static_cast<int>(RankFailure::FoundBy::all);
  if (!valid) return {.text = std::string(stored)};
  return {rank, static_cast<RankFailure::FoundBy>(found_by), std::string(second.ptr + 1, end)};
}

}  // namespace octavo_train
