// SPDX-License-Identifier: MIT
#include "offload/test_delays.h"

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace octavo::offload {
namespace {

// Steele, Lea and Flood's SplitMix64.
std::uint64_t split_mix(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

template <class T>
bool parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<Delays> Delays::from_environment() {
  const char* given = std::getenv("OCTAVO_OFFLOAD_DELAYS");
  if (given == nullptr || *given == '\0') return Delays{};
  const std::string_view text = given;
  const auto colon = text.find(':');
  Delays delays;
  if (colon == std::string_view::npos || !parse(text.substr(0, colon), delays.seed) ||
      !parse(text.substr(colon + 1), delays.microseconds) || delays.microseconds < 0 ||
      delays.microseconds > 1'000'000) {
    return Status::invalid("[offload] OCTAVO_OFFLOAD_DELAYS: got '" + std::string(text) +
                           "', expected SEED:MICROSECONDS with at most 1000000 of them, such as 1:200");
  }
  return delays;
}

Delays Delays::of(std::uint64_t queue) const {
  std::uint64_t state = seed + 0x51ED2701U * (queue + 1);
  return {split_mix(state), microseconds};
}

std::int64_t Delays::next() {
  if (microseconds == 0) return 0;
  const std::uint64_t random = split_mix(seed);
  if ((random & 1) == 0) return 0;
  return static_cast<std::int64_t>((random >> 1) % static_cast<std::uint64_t>(microseconds + 1));
}

void Delays::sleep() {
  if (const std::int64_t pause = next(); pause > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
}

}  // namespace octavo::offload
