// Fuzzes file readers with mutated files. Every input is read or gives a Status, never a crash, an exception
// or bytes outside of the input. All readers of a test take about one second together; OCTAVO_FUZZ_SECONDS
// and OCTAVO_FUZZ_SEED work as in api/fuzz_test.cc. OCTAVO_FUZZ_INPUTS=n gives each reader n inputs, without
// a time limit.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/support/random.h"
#include "tests/train/little.h"

#include <octavo/status.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace octavo_train {

inline constexpr int kFuzzed = 6;             // readers that share a test's time
inline constexpr std::int64_t kFewest = 200;  // inputs, even on a slow machine

inline double number_from(const char* name, double fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atof(text) : fallback;
}

// Returns a number that overflows sums or multiplications, in one of the sizes that formats use.
inline std::string odd_number(test::Random& random) {
  const std::uint64_t values[] = {0,
                                  1,
                                  2,
                                  255,
                                  256,
                                  0x7fff,
                                  0xffff,
                                  0x7fffffff,
                                  0xffffffff,
                                  0x100000000,
                                  INT64_MAX,
                                  UINT64_MAX,
                                  UINT64_MAX - 511,
                                  std::uint64_t{1} << 62,
                                  random.bits()};
  return little(values[random.below(std::size(values))], std::size_t{1} << random.below(4));
}

inline std::string mutated(std::string text, std::span<const std::string> pieces, test::Random& random) {
  for (std::uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const auto at = static_cast<std::size_t>(random.below(text.size() + 1));
    const std::string& piece = pieces[static_cast<std::size_t>(random.below(pieces.size()))];
    switch (random.below(7)) {
      case 0:
        text.insert(at, piece);
        break;
      case 1:
        text.erase(at, static_cast<std::size_t>(random.below(12)));
        break;
      case 2:
        text.insert(at, text.substr(static_cast<std::size_t>(random.below(text.size() + 1)),
                                    static_cast<std::size_t>(random.below(80))));
        break;
      case 3:
        if (random.chance(4)) text.resize(at);
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(random.below(256));
        break;
      case 5:
        text.replace(at, std::min(piece.size(), text.size() - at), piece);
        break;
      default: {
        const std::string number = odd_number(random);
        text.replace(at, std::min(number.size(), text.size() - at), number);
      }
    }
  }
  return text;
}

// Reads the input and every byte that the result refers to. Returns true if the input was accepted.
using Reader = std::function<bool(std::string_view)>;

inline void check(const Status& status) {
  EXPECT_FALSE(status.message().empty());
  EXPECT_LT(status.message().size(), 2000u);
  for (const char c : status.message()) ASSERT_TRUE(static_cast<unsigned char>(c) >= 32) << status.message();
}

inline void fuzz(std::span<const std::string> seeds, std::span<const std::string> pieces, const Reader& read,
                 std::int64_t accepted_at_least) {
  const auto inputs = static_cast<std::int64_t>(number_from("OCTAVO_FUZZ_INPUTS", 0));
  const double seconds = number_from("OCTAVO_FUZZ_SECONDS", 1.0) / kFuzzed;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::int64_t accepted = 0;
  std::int64_t count = 0;
  for (auto seed = static_cast<std::uint64_t>(number_from("OCTAVO_FUZZ_SEED", 1));; ++seed, ++count) {
    if (inputs > 0 ? count == inputs : count >= kFewest && std::chrono::steady_clock::now() >= end) break;
    test::Random random(seed);
    const std::string text =
        mutated(seeds[static_cast<std::size_t>(random.below(seeds.size()))], pieces, random);
    accepted += read(text) ? 1 : 0;
    ASSERT_FALSE(testing::Test::HasFailure()) << "OCTAVO_FUZZ_SEED=" << seed;
  }
  // Both outcomes must occur; otherwise the inputs are not useful.
  EXPECT_GE(accepted, accepted_at_least) << count;
  EXPECT_GT(count - accepted, 10) << count;
  testing::Test::RecordProperty("inputs", std::to_string(count));
  testing::Test::RecordProperty("accepted", std::to_string(accepted));
}

}  // namespace octavo_train
