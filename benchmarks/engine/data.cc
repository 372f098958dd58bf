// Reproducible benchmark data and the hash of results; see data.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/data.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace octavo::cli {
namespace {

// Works row by row, so that rows without data cost only a fill with zeros.
template <class As>
void fill_as(void* data, std::uint64_t stream, int shift, const RowMask& mask, std::int64_t begin,
             std::int64_t end) {
  auto* out = static_cast<typename As::Type*>(data);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t stop = mask.touched == nullptr ? end : std::min(end, (i / mask.row + 1) * mask.row);
    if (!mask.holds(i)) i = std::fill_n(out + i, stop - i, typename As::Type{}) - out;
    for (; i < stop; ++i) out[i] = As::of(sample(stream, i, shift));
  }
}

}  // namespace

std::uint64_t stream_of(std::uint64_t tensor, std::uint64_t kind) {
  return splitmix64(splitmix64(0, tensor), kind);
}

void fill(void* data, DType dtype, std::uint64_t stream, int shift, const RowMask& mask, std::int64_t begin,
          std::int64_t end) {
  switch (dtype) {
    case DType::f32:
      return fill_as<AsF32>(data, stream, shift, mask, begin, end);
    case DType::bf16:
      return fill_as<AsBf16>(data, stream, shift, mask, begin, end);
    case DType::f16:
      return fill_as<AsF16>(data, stream, shift, mask, begin, end);
  }
}

std::uint64_t fnv1a(std::uint64_t hash, std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3ULL;
  return hash;
}

std::string hex16(std::uint64_t hash) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

}  // namespace octavo::cli
