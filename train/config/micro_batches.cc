// See micro_batches.h.
// SPDX-License-Identifier: MIT
#include "train/config/micro_batches.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::size_t kMostShown = 12;

std::string counted_ranks(std::int64_t ranks) {
  return ranks == 1 ? "one rank" : std::to_string(ranks) + " ranks";
}

// Returns the divisors in ascending order. REQUIRES: number >= 1.
std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t each = 1; each * each <= number; ++each) {
    if (number % each != 0) continue;
    low.push_back(each);
    if (each * each != number) high.push_back(number / each);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

// Returns the numbers as "1, 2, 3 or 6". If there are more than kMostShown, returns those around `near`.
template <class Write>
std::string listed(const std::vector<std::int64_t>& numbers, std::int64_t near, const Write& write) {
  std::size_t first = 0;
  while (first + kMostShown < numbers.size() && numbers[first + kMostShown / 2] < near) ++first;
  const std::size_t end = std::min(first + kMostShown, numbers.size());
  std::string out = first > 0 ? "…, " : "";
  for (std::size_t i = first; i < end; ++i) {
    const bool is_last = i + 1 == numbers.size();
    out += (i == first ? "" : is_last ? " or " : ", ") + write(numbers[i]);
  }
  return end < numbers.size() ? out + ", …" : out;
}

}  // namespace

std::string possible_batch_splits(std::int64_t global, std::int64_t per_device, std::int64_t ranks) {
  if (global % ranks != 0) {
    return counted_ranks(ranks) + " cannot divide it: use " +
           listed(divisors(global), ranks, [](std::int64_t each) { return std::to_string(each); }) + " ranks";
  }
  const std::int64_t rows = global / ranks;
  return "per_device_train_batch_size x gradient_accumulation_steps must be " + std::to_string(rows) +
         " with " + counted_ranks(ranks) + ": " +
         listed(divisors(rows), per_device, [rows](std::int64_t each) {
           return std::to_string(each) + " x " + std::to_string(rows / each);
         });
}

Result<std::int64_t> accumulation_for(const TrainingSettings& training, std::int64_t ranks) {
  const std::int64_t given = training.gradient_accumulation_steps;
  if (!training.global_batch_size) return given;
  const std::int64_t global = *training.global_batch_size;
  const std::int64_t pass = training.per_device_train_batch_size * ranks;
  const std::int64_t passes = global / pass;
  const bool agrees = training.accumulation_is_auto || passes == given;
  if (global % pass == 0 && agrees) return passes;
  return invalid_error(
      "training.global_batch_size: got {}, but per_device_train_batch_size is {}{} and there {}{}; {}{}",
      global, training.per_device_train_batch_size,
      training.accumulation_is_auto ? "" : ", gradient_accumulation_steps is " + std::to_string(given),
      ranks == 1 ? "is " : "are ", counted_ranks(ranks),
      possible_batch_splits(global, training.per_device_train_batch_size, ranks),
      global % ranks != 0 ? ", or a multiple of " + std::to_string(ranks) : "");
}

}  // namespace octavo_train
