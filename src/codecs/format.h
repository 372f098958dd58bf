// Defines what a codec declares and what a format is: two codecs, one for each kind of moment. Kernels are
// templates over formats; everything else about a format follows from its codecs' constants.
//
// A codec has kName, kBits, kElement, kScale, kDefaultBlock and rounding(moment). A codec with a scale also
// has values<moment>() (the value of every code), encode<moment, Lane>, code_bias(moment) and kLargest.
// BlockCodec and PlainCodec contain what most codecs have in common.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/formats.h>
#include <octavo/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace octavo::codecs {

struct AnyCodec {
  static constexpr std::array<std::string_view, 0> kAliases{};
  static constexpr Rounding rounding(Moment) { return Rounding::nearest; }
};

struct PlainCodec : AnyCodec {
  static constexpr ScalePolicy kScale = ScalePolicy::none;
  static constexpr std::int64_t kDefaultBlock = 0;
};

template <int kWidth>
struct BlockCodec : AnyCodec {
  static_assert(kWidth >= 1 && kWidth <= 8);
  static constexpr int kBits = kWidth;
  static constexpr std::string_view kElement = kWidth == 8 ? "uint8" : "packed";
  static constexpr ScalePolicy kScale = ScalePolicy::block;
  static constexpr std::int64_t kDefaultBlock = 256;
  static constexpr float kLargest = 1.0F;  // the code value of a block's maximum
  // True if the SIMD encoder reports elements that it cannot decide, below this distance, for the caller to
  // encode by table.
  static constexpr bool kSuspects = false;
  static constexpr std::uint32_t kSuspectBelow = 0;
  // kEncodesFour: the codec has encode4, for four vectors of a SIMD lane. kTakesBeside: encode4 also calls a
  // function between these vectors.
  static constexpr bool kEncodesFour = false;
  static constexpr bool kTakesBeside = false;
};

// The codes of another codec, each scaled by the smallest of its per-axis maxima (Li et al. 2023).
template <class Codec>
struct Rank1Scaled : Codec {
  using Map = Codec;
  static constexpr ScalePolicy kScale = ScalePolicy::axis;
};

// The codec without its scale policy: it has the same codes in blocks.
template <class Codec>
struct MapOf {
  using Type = Codec;
};
template <class Codec>
requires requires { typename Codec::Map; }
struct MapOf<Codec> {
  using Type = typename Codec::Map;
};

// True if a step rounds the codes of a block stochastically. Such a codec has kNearest, noise and code
// (codecs/small_float.h).
template <class Codec, Moment kMoment>
inline constexpr bool kStochasticCodes =
    Codec::kScale == ScalePolicy::block&& Codec::rounding(kMoment) == Rounding::stochastic;

template <class Codec, Moment kMoment>
constexpr int zero_code() {
  if constexpr (Codec::kScale != ScalePolicy::none) {
    constexpr auto kValues = Codec::template values<kMoment>();
    for (std::size_t code = 0; code < kValues.size(); ++code) {
      if (kValues[code] == 0.0F) return static_cast<int>(code);
    }
    return -1;
  }
  return 0;
}

// The finite values with the largest magnitude. A map without negative values has the same one on both sides.
struct Outermost {
  float negative = 0.0F;
  float positive = 0.0F;
};
template <class Codec, Moment kMoment>
constexpr Outermost outermost() {
  if constexpr (Codec::kScale != ScalePolicy::none) {
    float lowest = 0.0F;
    for (const float value : Codec::template values<kMoment>()) {
      if (value < lowest && value >= std::numeric_limits<float>::lowest()) lowest = value;
    }
    return {lowest < 0.0F ? lowest : Codec::kLargest, Codec::kLargest};
  }
  return {};
}

// "a/b", with a terminating zero.
template <class First, class Second>
constexpr auto pair_name() {
  std::array<char, First::kName.size() + Second::kName.size() + 2> out{};
  auto* end = std::copy(First::kName.begin(), First::kName.end(), out.begin());
  *end++ = '/';
  std::copy(Second::kName.begin(), Second::kName.end(), end);
  return out;
}

template <class Codec, Moment kMoment>
constexpr MomentFormat moment_format() {
  return {Codec::kBits, Codec::kScale, Codec::rounding(kMoment), Codec::kElement,
          zero_code<Codec, kMoment>()};
}

}  // namespace octavo::codecs

namespace octavo {

// A format has one codec for first moments and one for second moments, or the same codec for both.
template <class First, class Second = First>
struct Format {
  template <Moment kMoment>
  using Codec = std::conditional_t<kMoment == Moment::first, First, Second>;
  template <Moment kMoment>
  using Map = typename codecs::MapOf<Codec<kMoment>>::Type;
  // The format of tensors of fewer than two dimensions: there, an axis would give every element its own
  // scale.
  using OfVectors = Format<Map<Moment::first>, Map<Moment::second>>;

  static constexpr bool kBlocked = First::kScale != ScalePolicy::none;
  static_assert(kBlocked == (Second::kScale != ScalePolicy::none),
                "either both moments of a format have scales or none");
  static constexpr bool kRank1 = First::kScale == ScalePolicy::axis || Second::kScale == ScalePolicy::axis;
  static constexpr std::int64_t kDefaultBlock = std::min(First::kDefaultBlock, Second::kDefaultBlock);

  // A codec that derives from the other gives the format its name.
  static constexpr bool kRefined = std::is_base_of_v<First, Second>;
  static constexpr auto kPairName = codecs::pair_name<First, Second>();
  static constexpr std::string_view kName =
      kRefined ? Second::kName : std::string_view(kPairName.data(), kPairName.size() - 1);

  static constexpr FormatInfo info(StateFormat number, StateFormat format_for_1d) {
    FormatInfo out{number, kName, {}, kDefaultBlock, format_for_1d, {}};
    if constexpr (kRefined) out.aliases = Second::kAliases;
    out.moment = {codecs::moment_format<First, Moment::first>(),
                  codecs::moment_format<Second, Moment::second>()};
    return out;
  }
};

}  // namespace octavo
