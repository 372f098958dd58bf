// Measures the copy ceiling: memcpy and a loop of streaming stores, 1 GiB each side (less when memory is
// short). Streaming stores skip the read that an ordinary store makes of its cache line; memcpy may or may
// not use them.
// SPDX-License-Identifier: MIT
#include "copy_speed.h"

#include "cli.h"
#include "table.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace octavo::cli {
namespace {

constexpr std::int64_t kWanted = std::int64_t{1} << 30;
constexpr std::int64_t kLeast = std::int64_t{1} << 26;  // below this, caches would answer for the memory
constexpr std::int64_t kLine = 64;

#if defined(__SSE2__)
void stream_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1);
  const __m128i c = _mm_load_si128(source + 2), d = _mm_load_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}
#elif defined(__clang__)
void stream_line(std::byte* to, const std::byte* from) {
  using Vector = float __attribute__((vector_size(16)));
  for (std::int64_t i = 0; i < kLine; i += 16)
    __builtin_nontemporal_store(*reinterpret_cast<const Vector*>(from + i),
                                reinterpret_cast<Vector*>(to + i));
}
#else
void stream_line(std::byte* to, const std::byte* from) { std::memcpy(to, from, kLine); }
#endif

// Four pages at a time, a line of each in turn: more of the memory's banks are busy, 15 to 25% faster than
// one page after another. REQUIRES: both on a cache line, `bytes` a multiple of one.
void stream_copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t kPage = 4096, kPages = 4;
  std::int64_t i = 0;
  for (; i + kPages * kPage <= bytes; i += kPages * kPage) {
    for (std::int64_t line = i; line < i + kPage; line += kLine)
      for (std::int64_t page = 0; page < kPages; ++page)
        stream_line(to + line + page * kPage, from + line + page * kPage);
  }
  for (; i < bytes; i += kLine) stream_line(to + i, from + i);
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

void plain_copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

using Copy = void(std::byte*, const std::byte*, std::int64_t);

double seconds_of(Copy* copy, const PageBuffer& to, const PageBuffer& from, int threads) {
  const auto start = std::chrono::steady_clock::now();
  for_slices(threads, from.size(), kLine, [&](std::int64_t begin, std::int64_t end) {
    copy(to.data() + begin, from.data() + begin, end - begin);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

CopyMeter::CopyMeter(int threads) : threads_(threads) {
  const std::int64_t available = available_memory();
  std::int64_t bytes = kWanted;
  while (bytes > available / 5 * 2) bytes /= 2;
  if (bytes < kLeast)
    throw Failure(kExitFailure, "the copy ceiling needs " + human_bytes(kLeast * 5 / 2) +
                                    " of free memory, " + human_bytes(available) +
                                    " are there; --dry-run measures nothing");
  if (bytes < kWanted)
    note_ = "copied " + human_bytes(bytes) + " instead of " + human_bytes(kWanted) + " each side: only " +
            human_bytes(available) + " of memory are free";
  from_ = PageBuffer(bytes);
  to_ = PageBuffer(bytes);
  touch(from_, threads);
  touch(to_, threads);
}

CopySamples CopyMeter::sample(int repeat) {
  CopySamples out;
  for (int i = 0; i < repeat; ++i) {
    out.memcpy_s.push_back(seconds_of(plain_copy, to_, from_, threads_));
    out.stream_s.push_back(seconds_of(stream_copy, to_, from_, threads_));
  }
  return out;
}

double CopyMeter::gb_per_s(const CopySamples& before, const CopySamples& after) const {
  const auto both = [](std::vector<double> a, const std::vector<double>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return median(std::move(a));
  };
  const double seconds =
      std::min(both(before.memcpy_s, after.memcpy_s), both(before.stream_s, after.stream_s));
  return 2e-9 * static_cast<double>(bytes()) / seconds;
}

}  // namespace octavo::cli
