// Rows of logits, each processed by a warp: computes their denominator and record, and replaces their
// elements. A row may begin at any element.
// SPDX-License-Identifier: MIT
#pragma once

#include "transducer/cuda/cells.cuh"

namespace octavo::cuda {

template <DType kType>
inline constexpr int kElementBytes = 16 / kVector<kType>;

// Returns the number of elements from an address to the next multiple of sixteen bytes.
template <DType kType>
__device__ inline std::int32_t to_boundary(const char* at) {
  return static_cast<std::int32_t>(-reinterpret_cast<std::uintptr_t>(at) & 15U) / kElementBytes<kType>;
}

// Returns the log of the sum of exponentials of `count` elements to every lane.
template <DType kType>
__device__ inline float row_norm(const char* row, std::int32_t count) {
  constexpr int kOf = kVector<kType>, kTogether = 4;
  const int lane = threadIdx.x % 32;
  const std::int32_t head = min(count, to_boundary<kType>(row)), vectors = (count - head) / kOf;
  const auto* const from = reinterpret_cast<const uint4*>(row + head * kElementBytes<kType>);
  ExpSum sum;
  std::int32_t v = lane;
  for (; v + 32 * (kTogether - 1) < vectors; v += 32 * kTogether) {
    uint4 words[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) words[i] = from[v + 32 * i];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      float x[kOf];
      unpack<kType>(words[i], x);
      sum.add<kOf>(x);
    }
  }
  for (; v < vectors; v += 32) {
    float x[kOf];
    unpack<kType>(from[v], x);
    sum.add<kOf>(x);
  }
  if (const std::int32_t k = lane < head ? lane : lane + vectors * kOf; k < count) {  // fewer than 2 * kOf
    const float x = load_one<kType>(row, k);
    sum.add<1>(&x);
  }
  return sum.log_of_lanes();
}

// Computes the record of a cell from its outputs. Single elements are requested before the long row.
template <DType kType>
__device__ inline void write_record(const TransducerLattice& l, std::int64_t cell, const CellPlace& p,
                                    const char* tokens, const char* durations) {
  const int lane = threadIdx.x % 32;
  const bool has_label = p.u < p.labels;
  const std::int32_t label = has_label ? label_of(l, p.clip, p.u) : -1;
  float duration[2] = {kMinusInf, kMinusInf};
#pragma unroll
  for (int turn = 0; turn < 2; ++turn) {
    if (lane + 32 * turn < l.durations) duration[turn] = load_one<kType>(durations, lane + 32 * turn);
  }
  const float blank = load_one<kType>(tokens, l.blank);
  const float next = label >= 0 ? load_one<kType>(tokens, label) : static_cast<float>(kNotANumber);
  const float norm = row_norm<kType>(tokens, l.tokens);
  float* const out = l.records + cell * l.width();
  if (l.durations > 0) {
    ExpSum mine;
    mine.add<2>(duration);
    const float duration_norm = mine.log_of_lanes();
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      if (lane + 32 * turn < l.durations) out[3 + lane + 32 * turn] = duration[turn] - duration_norm;
    }
  }
  if (lane != 0) return;
  out[0] = norm;
  out[1] = blank - norm - l.sigma;
  out[2] = has_label ? next - norm - l.sigma : kMinusInf;
}

// Loads sixteen bytes from any element on. REQUIRES: the aligned vectors that contain them are readable.
__device__ inline uint4 load_across(const char* at) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(at);
  const auto* const from = reinterpret_cast<const uint4*>(address & ~std::uintptr_t{15});
  const uint4 low = from[0], high = from[1];
  std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if ((address & 8U) != 0) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if ((address & 4U) != 0) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  const std::uint32_t bits = static_cast<std::uint32_t>(address & 3U) * 8;
  return make_uint4(__funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
                    __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits));
}

// f(first element's number, its values) replaces `vectors` vectors from element `first` on.
template <DType kType, bool kAcross, class Fn>
__device__ inline void map_vectors(const char* from, char* to, std::int32_t first, std::int32_t vectors,
                                   Fn&& f) {
  constexpr int kOf = kVector<kType>, kTogether = kAcross ? 2 : 4;
  const char* const read = from + first * kElementBytes<kType>;
  auto* const written = reinterpret_cast<uint4*>(to + first * kElementBytes<kType>);
  for (auto v = static_cast<std::int32_t>(threadIdx.x % 32); v < vectors; v += 32 * kTogether) {
    uint4 words[kTogether] = {};
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const std::int32_t own = v + 32 * j;
      if (own >= vectors) continue;
      if constexpr (kAcross)
        words[j] = load_across(read + std::int64_t{own} * 16);
      else
        words[j] = reinterpret_cast<const uint4*>(read)[own];
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const std::int32_t own = v + 32 * j;
      if (own >= vectors) continue;
      float x[kOf];
      unpack<kType>(words[j], x);
      f(first + own * kOf, x, std::integral_constant<int, kOf>{});
      written[own] = pack_fast<kType>(x);
    }
  }
}

// Replaces a row of `count` elements by the results of f(number, values, how many). Rows are the same memory
// or do not overlap.
template <DType kType, class Fn>
__device__ inline void map_row(const char* from, char* to, std::int32_t count, Fn&& f) {
  constexpr int kOf = kVector<kType>;
  std::int32_t head = to_boundary<kType>(to);
  const bool across = to_boundary<kType>(from) != head;
  if (across) head += kOf;  // so that no vector is read from before the row
  head = min(head, count);
  const std::int32_t vectors = max(0, (count - head) / kOf - (across ? 1 : 0));  // or from after it
  if (across)
    map_vectors<kType, true>(from, to, head, vectors, f);
  else
    map_vectors<kType, false>(from, to, head, vectors, f);
  for (auto i = static_cast<std::int32_t>(threadIdx.x % 32); i < count - vectors * kOf; i += 32) {
    const std::int32_t k = i < head ? i : i + vectors * kOf;
    float x = load_one<kType>(from, k);
    f(k, &x, std::integral_constant<int, 1>{});
    store_one<kType>(to, k, x);
  }
}

// Fills a row with `count` equal elements.
template <DType kType>
__device__ inline void fill_row(char* to, std::int32_t count, float value) {
  constexpr int kOf = kVector<kType>;
  const int lane = threadIdx.x % 32;
  float x[kOf];
#pragma unroll
  for (int i = 0; i < kOf; ++i) x[i] = value;
  const uint4 words = pack_fast<kType>(x);
  const std::int32_t head = min(count, to_boundary<kType>(to)), vectors = (count - head) / kOf;
  auto* const written = reinterpret_cast<uint4*>(to + head * kElementBytes<kType>);
  for (std::int32_t v = lane; v < vectors; v += 32) written[v] = words;
  if (const std::int32_t k = lane < head ? lane : lane + vectors * kOf; k < count)
    store_one<kType>(to, k, value);
}

}  // namespace octavo::cuda
