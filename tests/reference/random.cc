// See random.h.
// SPDX-License-Identifier: MIT
#include "tests/reference/random.h"

#include "tests/reference/elements.h"

#include <algorithm>
#include <cmath>

namespace reference {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::uint64_t base(std::uint64_t seed, std::uint64_t step) {
  return mix(mix(seed + kGolden) ^ (step + kGolden));
}

std::uint32_t random32(std::uint64_t key, std::uint64_t index) {
  const std::uint64_t high_part = (index >> 32) << 32;
  const auto high = static_cast<std::uint32_t>(mix((key >> 32) ^ high_part));
  std::uint32_t x = static_cast<std::uint32_t>(index) ^ static_cast<std::uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x21F0AAADu;
  x = x ^ (x >> 15) ^ high;
  x = x * 0x735A2D97u;
  return x ^ (x >> 15);
}

}  // namespace

std::uint32_t random16(std::uint64_t seed, std::uint64_t step, std::uint64_t id, std::uint32_t stream,
                       std::uint64_t index) {
  return random32(mix(base(seed, step) ^ (id * kGolden + stream)), index) >> 16;
}

std::uint32_t code_random16(std::uint64_t seed, std::uint64_t step, std::uint64_t id, int slot,
                            std::uint64_t index) {
  const auto stream = static_cast<std::uint64_t>(1 + slot / 2 * 2);
  const std::uint32_t bits = random32(mix(base(seed, step) ^ (id * kGolden + stream)), index);
  return slot % 2 == 0 ? bits >> 16 : bits & 0xFFFFu;
}

std::uint32_t dropout16(std::uint64_t seed, std::uint64_t step, std::int64_t sample, std::uint32_t layer,
                        std::uint64_t element) {
  const std::uint64_t own = mix(base(seed, step) ^ 0x64726F706F757421u);
  const std::uint64_t key = mix(own ^ (static_cast<std::uint64_t>(sample) * kGolden + layer));
  const std::uint32_t bits = random32(key, element / 512 * 256 + element % 256);
  return element / 256 % 2 == 1 ? bits >> 16 : bits & 0xFFFFu;
}

void dropout(const octavo::DropoutArgs& args) {
  const double threshold = std::min(65535.0, std::floor(args.probability * 65536.0 + 0.5));
  const auto scale = static_cast<float>(65536.0 / (65536.0 - threshold));
  for (std::int64_t o = 0; o < args.outer; ++o) {
    for (std::int64_t b = 0; b < args.batch; ++b) {
      for (std::int64_t i = 0; i < args.inner; ++i) {
        const std::int64_t at = (o * args.batch + b) * args.inner + i;
        const std::int64_t plain = o * args.inner + i;
        const std::int64_t number = args.row == 0 ? plain : plain / args.row * args.pitch + plain % args.row;
        const std::uint32_t random =
            dropout16(args.seed, args.step, args.samples[b], args.layer, static_cast<std::uint64_t>(number));
        const float x = load(args.dtype, args.from, at);
        store_nearest(args.dtype, args.to, at, random < threshold ? 0.0f : canonical(x * scale));
      }
    }
  }
}

}  // namespace reference
