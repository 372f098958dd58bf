// Maps draws to samples by a keyed permutation per epoch; see order.h. Changing these constants breaks
// resuming: a resumed run would get another order.
// SPDX-License-Identifier: MIT
#include "train/data/order.h"

#include "train/data/mix.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::uint64_t kRounds = 6;
constexpr int kLeastHalfBits = 3;  // with fewer, six rounds do not make all orders equally likely

// Returns a key made of the seed and of everything else that changes the order.
std::uint64_t order_key(std::uint64_t seed, std::int64_t samples, std::uint64_t start) {
  std::uint64_t key = mix(seed + kGoldenGamma);
  key = mix(key + kGoldenGamma * static_cast<std::uint64_t>(samples));
  return mix(key + kGoldenGamma * start);
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t key)
    : size_(size),
      key_(key),
      half_bits_(std::max(kLeastHalfBits, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2)) {}

// A Feistel network permutes the numbers of 2 * half_bits_ bits; there are fewer than 4 * size_ of them (or
// 64). A result outside [0, size_) is mapped again until it is inside, which permutes the numbers below
// size_.
std::uint64_t Permutation::operator()(std::uint64_t index) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = index >> half_bits_;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t noise = mix(key_ + kGoldenGamma * (right * kRounds + round + 1));
      left = std::exchange(right, left ^ (noise >> (64 - half_bits_)));
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

Order::Order(std::int64_t samples, std::uint64_t seed, std::uint64_t start)
    : samples_(samples), key_(order_key(seed, samples, start)), start_(start) {}

std::uint64_t Order::epoch(std::uint64_t draw) const {
  return (draw - start_) / static_cast<std::uint64_t>(samples_);
}

std::int64_t Order::sample(std::uint64_t draw) const {
  const auto samples = static_cast<std::uint64_t>(samples_);
  const std::uint64_t key = mix(key_ + kGoldenGamma * (2 * epoch(draw) + 1));
  return static_cast<std::int64_t>(Permutation(samples, key)((draw - start_) % samples));
}

std::uint64_t Order::noise(std::uint64_t epoch) const { return mix(key_ + kGoldenGamma * (2 * epoch + 2)); }

}  // namespace octavo_train
