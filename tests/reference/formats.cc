// See formats.h. Every rule here is a sentence in docs/formats.md.
// SPDX-License-Identifier: MIT
#include "tests/reference/formats.h"

#include "tests/reference/minifloat.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace reference {
namespace {

using octavo::Moment;
using octavo::MomentSpec;
using octavo::StateFormat;

constexpr float kSmallestScale = 0x1p-126f;

// Returns the j-th midpoint of N equal intervals between 0.1 and 1, times 10^exponent, rounded as in the
// tables of bitsandbytes and torchao.
float decade_midpoint(int intervals, int j, float power_of_ten) {
  const float slope = (1.0f - 0.1f) / static_cast<float>(intervals);
  const auto point = [&](int i) {
    return i < (intervals + 1) / 2 ? std::fma(slope, static_cast<float>(i), 0.1f)
                                   : std::fma(-slope, static_cast<float>(intervals - i), 1.0f);
  };
  const float sum = point(j) + point(j + 1);
  return power_of_ten * (sum / 2.0f);
}

constexpr std::array<float, 8> kTens = {1e-7f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1e0f};

// Signed maps of `decades` decades have q = |code - zero code|; q = 0 is 0, the last q is 1, and there is no
// -1.
template <std::size_t kCodes>
std::array<float, kCodes> build_signed(int decades) {
  std::array<float, kCodes> map{};
  const int zero = static_cast<int>(kCodes) / 2 - 1;
  for (int code = 0; code < static_cast<int>(kCodes); ++code) {
    const int q = std::abs(code - zero);
    float value = 0.0f;
    if (q == 1 << decades) {
      value = 1.0f;
    } else if (q > 0) {
      const int decade = std::ilogb(static_cast<double>(q));
      value = decade_midpoint(1 << decade, q - (1 << decade),
                              kTens[static_cast<std::size_t>(8 - decades + decade)]);
    }
    map[static_cast<std::size_t>(code)] = code < zero ? -value : value;
  }
  return map;
}

// The unsigned 8-bit map has q = code + 1; q = 1 is 0, q = 256 is 1.
std::array<float, 256> build_unsigned() {
  std::array<float, 256> map{};
  for (int q = 2; q < 256; ++q) {
    const int decade = std::ilogb(static_cast<double>(q));
    map[static_cast<std::size_t>(q - 1)] =
        decade_midpoint(1 << decade, q - (1 << decade), kTens[static_cast<std::size_t>(decade)]);
  }
  map[255] = 1.0f;
  return map;
}

std::array<float, 16> build_linear() {
  std::array<float, 16> map{};
  for (int code = 0; code < 16; ++code)
    map[static_cast<std::size_t>(code)] = static_cast<float>(code + 1) / 16.0f;
  return map;
}

// m has 0, then numbers with `steps` values per power of two from 1 on, then the same with a sign. v has only
// the numbers from 1 on.
std::vector<float> build_small_float(int steps, Moment moment) {
  std::vector<float> map;
  const auto add = [&](int k, int power) {
    map.push_back(std::ldexp(static_cast<float>(k) / static_cast<float>(steps), power));
  };
  const bool second = moment == Moment::second;
  for (int k = 0; k < steps && !second; ++k) add(k, 0);
  for (int power = 0; power < (second ? 8 : 3); ++power)
    for (int k = steps; k < 2 * steps; ++k) add(k, power);
  if (second) return map;
  const std::size_t magnitudes = map.size();
  for (std::size_t k = 0; k < magnitudes; ++k) map.push_back(-map[k]);
  return map;
}

// Returns the code whose value is nearest to x in exact arithmetic, ties to the smaller magnitude. The sum of
// two neighbours and 2x are exact in double, so the comparison is too.
int nearest_code(std::span<const float> map, float x) {
  int code = 0;
  while (code + 1 < static_cast<int>(map.size())) {
    const double low = map[static_cast<std::size_t>(code)];
    const double high = map[static_cast<std::size_t>(code) + 1];
    const double twice = 2.0 * static_cast<double>(x);
    const bool above = twice > low + high;
    const bool tie = twice == low + high;
    if (!above && !(tie && std::fabs(high) < std::fabs(low))) break;
    ++code;
  }
  return code;
}

// Returns the code of a small float. The value is between two neighbours of the map; the upper one is chosen
// if the fraction of the distance, in units of 2^-shift, plus `added` is at least one.
int small_float_code(const MomentSpec& spec, float x, const std::function<std::uint32_t()>& random) {
  const std::vector<float>& map = map_small_float(spec.format, spec.moment);
  const bool second = spec.moment == Moment::second;
  const int bits = spec.format == StateFormat::fp4 ? 4 : 3;
  const int shift = 26 - bits;  // the mantissa of a float has 23 bits, of which bits - 3 are kept
  const int codes = static_cast<int>(second ? map.size() : map.size() / 2);
  double added = std::ldexp(1.0, shift - 1) - 1.0;
  if (random) {
    auto r = static_cast<std::int64_t>(random());
    if (second) r += (3 * r * (65536 - r)) >> (bits == 4 ? 20 : 19);
    added = std::ldexp(static_cast<double>(r), shift - 16);
  }
  double y = std::fabs(static_cast<double>(x));
  if (second) y = std::max(y, 1.0);
  if (!second && y < 1.0) y = static_cast<double>(static_cast<float>(y + 1.0)) - 1.0;
  y = std::min(y, static_cast<double>(map[static_cast<std::size_t>(codes) - 1]));
  int code = codes - 1;
  while (static_cast<double>(map[static_cast<std::size_t>(code)]) > y) --code;
  if (code + 1 < codes) {
    const double low = map[static_cast<std::size_t>(code)];
    const double high = map[static_cast<std::size_t>(code) + 1];
    const double fraction = std::ldexp((y - low) / (high - low), shift);
    if (fraction + added >= std::ldexp(1.0, shift)) ++code;
  }
  return !second && std::signbit(x) ? code + codes : code;
}

// Returns the format of this moment: a pair has one for each.
StateFormat format_of(const MomentSpec& spec) {
  if (spec.format != StateFormat::int4_int8) return spec.format;
  return spec.moment == Moment::first ? StateFormat::int4 : StateFormat::int8;
}

int encode_element(const MomentSpec& spec, float value, float scale,
                   const std::function<std::uint32_t()>& random = {}) {
  if (!std::isfinite(scale)) return 0;
  const bool positive_variance = spec.moment == Moment::second && value > 0.0f;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  const float x = value * inverse;
  switch (format_of(spec)) {
    case StateFormat::int8: {
      const int code = nearest_code(map_8bit(spec.moment), x);
      return code == 0 && positive_variance ? 1 : code;
    }
    case StateFormat::int4:
    case StateFormat::int4_rank1:
      return nearest_code(map_4bit(spec.moment), x);
    case StateFormat::fp8_e4m3:
    case StateFormat::fp8_e5m2: {
      const Minifloat& fp8 = spec.format == StateFormat::fp8_e4m3 ? kE4M3 : kE5M2;
      const auto magnitude = static_cast<int>(fp8.nearest_magnitude(x, true));
      if (magnitude == 0 && positive_variance) return 1;
      return std::signbit(x) ? magnitude | 0x80 : magnitude;
    }
    case StateFormat::fp4:
    case StateFormat::fp3:
      return small_float_code(spec, x, random);
    default:
      return 0;
  }
}

float code_value(const MomentSpec& spec, int code) {
  switch (format_of(spec)) {
    case StateFormat::int8:
      return map_8bit(spec.moment)[static_cast<std::size_t>(code)];
    case StateFormat::fp8_e4m3:
      return static_cast<float>(kE4M3.value(static_cast<std::uint32_t>(code)));
    case StateFormat::fp8_e5m2:
      return static_cast<float>(kE5M2.value(static_cast<std::uint32_t>(code)));
    case StateFormat::fp4:
    case StateFormat::fp3:
      return map_small_float(spec.format, spec.moment)[static_cast<std::size_t>(code)];
    default:
      return map_4bit(spec.moment)[static_cast<std::size_t>(code)];
  }
}

// Returns the bits of a code in a block.
std::int64_t code_bits(const MomentSpec& spec) {
  switch (format_of(spec)) {
    case StateFormat::int4:
    case StateFormat::int4_rank1:
    case StateFormat::fp4:
      return 4;
    case StateFormat::fp3:
      return 3;
    default:
      return 8;
  }
}

// Writes and reads a code of a stream of bits. The first code is in the highest bits of the first byte.
void put_code(std::vector<std::uint8_t>& bytes, std::int64_t bits, std::int64_t index, int code) {
  for (std::int64_t b = 0; b < bits; ++b) {
    const std::int64_t at = index * bits + b;
    const int bit = (code >> (bits - 1 - b)) & 1;
    auto& byte = bytes[static_cast<std::size_t>(at / 8)];
    byte = static_cast<std::uint8_t>(byte | bit << (7 - at % 8));
  }
}
int get_code(std::span<const std::uint8_t> bytes, std::int64_t bits, std::int64_t index) {
  int code = 0;
  for (std::int64_t at = index * bits; at < (index + 1) * bits; ++at)
    code = code * 2 + ((bytes[static_cast<std::size_t>(at / 8)] >> (7 - at % 8)) & 1);
  return code;
}

bool is_rank1(const MomentSpec& spec) {
  return spec.format == StateFormat::int4_rank1 && spec.moment == Moment::second && spec.ndim >= 2;
}

std::int64_t block_of(const MomentSpec& spec) {
  return spec.block_size != 0 ? spec.block_size : octavo::default_block_size(spec.format);
}

std::uint32_t magnitude_bits(float value) { return bits_of(value) & 0x7FFFFFFFu; }

// Returns the divisor of a block (or of an element of rank-1) whose largest magnitude is `largest`.
float scale_of(StateFormat format, Moment moment, float largest) {
  if (!std::isfinite(largest)) return from_bits(kNanBits);
  if (largest == 0.0f) return 0.0f;
  if (format == StateFormat::fp8_e4m3) return std::max(largest / 448.0f, kSmallestScale);
  if (format == StateFormat::fp8_e5m2) return std::max(largest / 57344.0f, kSmallestScale);
  if (is_small_float(format))
    return std::max(largest / std::fabs(map_small_float(format, moment).back()), kSmallestScale);
  return std::max(largest, kSmallestScale);
}

// Returns the index of an element along each axis of a row-major shape.
std::vector<std::int64_t> coordinates(const MomentSpec& spec, std::int64_t index) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(spec.ndim));
  for (int axis = spec.ndim - 1; axis >= 0; --axis) {
    const std::int64_t extent = spec.shape[static_cast<std::size_t>(axis)];
    result[static_cast<std::size_t>(axis)] = index % extent;
    index /= extent;
  }
  return result;
}

// Returns the position of each axis's maximum for this element in the scale buffer.
std::vector<std::int64_t> rank1_positions(const MomentSpec& spec, std::int64_t index) {
  std::vector<std::int64_t> result = coordinates(spec, index);
  std::int64_t start = 0;
  for (int axis = 0; axis < spec.ndim; ++axis) {
    result[static_cast<std::size_t>(axis)] += start;
    start += spec.shape[static_cast<std::size_t>(axis)];
  }
  return result;
}

float rank1_scale(const MomentSpec& spec, std::span<const float> maxima, std::int64_t index) {
  std::uint32_t smallest = 0xFFFFFFFFu;
  for (const std::int64_t position : rank1_positions(spec, index)) {
    smallest = std::min(smallest, magnitude_bits(maxima[static_cast<std::size_t>(position)]));
  }
  // If every axis has a NaN or an infinity, there is no finite divisor: the scale is that value itself.
  if (smallest >= bits_of(INFINITY)) return from_bits(smallest);
  return scale_of(spec.format, spec.moment, from_bits(smallest));
}

std::vector<float> rank1_maxima(const MomentSpec& spec, std::span<const float> values) {
  std::vector<float> maxima(static_cast<std::size_t>(scale_count(spec)), 0.0f);
  for (std::int64_t i = 0; i < spec.numel; ++i) {
    for (const std::int64_t position : rank1_positions(spec, i)) {
      float& largest = maxima[static_cast<std::size_t>(position)];
      largest =
          from_bits(std::max(magnitude_bits(largest), magnitude_bits(values[static_cast<std::size_t>(i)])));
    }
  }
  for (float& largest : maxima) largest = canonical(largest);
  return maxima;
}

std::vector<float> block_scales(const MomentSpec& spec, std::span<const float> values) {
  std::vector<float> scales;
  const std::int64_t block = block_of(spec);
  for (std::int64_t start = 0; start < spec.numel; start += block) {
    std::uint32_t largest = 0;
    for (std::int64_t i = start; i < std::min(start + block, spec.numel); ++i) {
      largest = std::max(largest, magnitude_bits(values[static_cast<std::size_t>(i)]));
    }
    scales.push_back(scale_of(spec.format, spec.moment, from_bits(largest)));
  }
  return scales;
}

// Returns the scale of an element, from either kind of scale buffer.
float element_scale(const MomentSpec& spec, std::span<const float> scales, std::int64_t index) {
  if (is_rank1(spec)) return rank1_scale(spec, scales, index);
  return scales[static_cast<std::size_t>(index / block_of(spec))];
}

template <class T>
void put(std::vector<std::uint8_t>& bytes, std::int64_t index, T value) {
  std::memcpy(bytes.data() + static_cast<std::size_t>(index) * sizeof(T), &value, sizeof(T));
}

}  // namespace

const std::array<float, 256>& map_8bit(Moment moment) {
  static const std::array<std::array<float, 256>, 2> maps = {build_signed<256>(7), build_unsigned()};
  return maps[static_cast<std::size_t>(moment)];
}

const std::array<float, 16>& map_4bit(Moment moment) {
  static const std::array<std::array<float, 16>, 2> maps = {build_signed<16>(3), build_linear()};
  return maps[static_cast<std::size_t>(moment)];
}

const std::vector<float>& map_small_float(StateFormat format, Moment moment) {
  static const std::vector<float> maps[2][2] = {
      {build_small_float(2, Moment::first), build_small_float(2, Moment::second)},
      {build_small_float(1, Moment::first), build_small_float(1, Moment::second)}};
  return maps[format == StateFormat::fp4 ? 0 : 1][static_cast<std::size_t>(moment)];
}

bool is_small_float(StateFormat format) { return format == StateFormat::fp4 || format == StateFormat::fp3; }

std::int64_t codes_bytes(const MomentSpec& spec) {
  if (spec.format == StateFormat::fp32) return 4 * spec.numel;
  if (spec.format == StateFormat::bf16) return 2 * spec.numel;
  return (spec.numel * code_bits(spec) + 7) / 8;
}

std::int64_t scale_count(const MomentSpec& spec) {
  if (spec.format == StateFormat::fp32 || spec.format == StateFormat::bf16) return 0;
  if (!is_rank1(spec)) return (spec.numel + block_of(spec) - 1) / block_of(spec);
  if (spec.numel == 0) return 0;
  std::int64_t count = 0;
  for (int axis = 0; axis < spec.ndim; ++axis) count += spec.shape[static_cast<std::size_t>(axis)];
  return count;
}

Encoded encode(const MomentSpec& spec, std::span<const float> values, const Rand16& rand16) {
  Encoded out;
  out.codes.assign(static_cast<std::size_t>(codes_bytes(spec)), 0);
  const bool blocks = spec.format != StateFormat::fp32 && spec.format != StateFormat::bf16;
  if (blocks) out.scales = is_rank1(spec) ? rank1_maxima(spec, values) : block_scales(spec, values);
  for (std::int64_t i = 0; i < spec.numel; ++i) {
    const float value = values[static_cast<std::size_t>(i)];
    if (spec.format == StateFormat::fp32) {
      put(out.codes, i, canonical(value));
    } else if (spec.format == StateFormat::bf16) {
      const bool second = spec.moment == Moment::second;
      std::uint16_t code = second && rand16 ? bf16_stochastic(value, rand16(i)) : bf16_nearest(value);
      if (second && value > 0.0f && code == 0) code = 1;
      put(out.codes, i, code);
    } else {
      std::function<std::uint32_t()> random;
      if (rand16) random = [&] { return rand16(i); };
      put_code(out.codes, code_bits(spec), i,
               encode_element(spec, value, element_scale(spec, out.scales, i), random));
    }
  }
  return out;
}

std::vector<float> decode(const MomentSpec& spec, std::span<const std::uint8_t> codes,
                          std::span<const float> scales) {
  std::vector<float> values(static_cast<std::size_t>(spec.numel));
  for (std::int64_t i = 0; i < spec.numel; ++i) {
    float& value = values[static_cast<std::size_t>(i)];
    if (spec.format == StateFormat::fp32) {
      value = load(octavo::DType::f32, codes.data(), i);
    } else if (spec.format == StateFormat::bf16) {
      value = load(octavo::DType::bf16, codes.data(), i);
    } else {
      const int code = get_code(codes, code_bits(spec), i);
      value = code_value(spec, code) * element_scale(spec, scales, i);
    }
    value = canonical(value);
  }
  return values;
}

}  // namespace reference
