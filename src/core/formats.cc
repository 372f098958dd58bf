// Computes the descriptions of the formats, with their names, from the registry and the codecs' constants.
// SPDX-License-Identifier: MIT
#include "core/builtin_registry.h"

#include <octavo/formats.h>

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>

namespace octavo {
namespace {

template <class Wanted, class... T>
constexpr StateFormat number_in(TypeList<T...>) {
  std::uint32_t at = 0;
  const bool found = ((std::is_same_v<Wanted, T> || (++at, false)) || ...);
  if (!found) throw "a format with axis scales needs the same codecs with block scales in the list";
  return static_cast<StateFormat>(at);
}
template <class F>
constexpr StateFormat kNumber = number_in<F>(Formats{});

static_assert(kNumber<Format<codecs::Fp32>> == StateFormat::fp32);
static_assert(kNumber<Format<codecs::Bf16>> == StateFormat::bf16);
static_assert(kNumber<Format<codecs::Int8>> == StateFormat::int8);
static_assert(kNumber<Format<codecs::Int4>> == StateFormat::int4);
static_assert(kNumber<Format<codecs::Int4, codecs::Int4Rank1>> == StateFormat::int4_rank1);
static_assert(kNumber<Format<codecs::E4M3>> == StateFormat::fp8_e4m3);
static_assert(kNumber<Format<codecs::E5M2>> == StateFormat::fp8_e5m2);
static_assert(kNumber<Format<codecs::Int4, codecs::Int8>> == StateFormat::int4_int8);
static_assert(kNumber<Format<codecs::Fp4, codecs::SecondOf<codecs::Fp4>>> == StateFormat::fp4);
static_assert(kNumber<Format<codecs::Fp3, codecs::SecondOf<codecs::Fp3>>> == StateFormat::fp3);

template <class... F>
constexpr std::array<FormatInfo, sizeof...(F)> infos(TypeList<F...>) {
  return {F::info(kNumber<F>, kNumber<typename F::OfVectors>)...};
}
constexpr auto kInfos = infos(Formats{});

constexpr auto kValues = [] {
  std::array<StateFormat, kInfos.size()> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = kInfos[i].number;
  return out;
}();

}  // namespace

std::span<const FormatInfo> formats() { return kInfos; }

const FormatInfo* describe(StateFormat format) {
  const auto at = static_cast<std::size_t>(format);
  return at < kInfos.size() ? &kInfos[at] : nullptr;
}

std::span<const StateFormat> all_state_formats() { return kValues; }

std::string_view name(StateFormat value) {
  const FormatInfo* info = describe(value);
  return info == nullptr ? "unknown" : info->name;
}

std::int64_t default_block_size(StateFormat value) {
  const FormatInfo* info = describe(value);
  return info == nullptr ? 0 : info->default_block;
}

Result<StateFormat> parse_state_format(std::string_view text) {
  std::string known;
  std::string pairs;
  for (const FormatInfo& info : kInfos) {
    if (text == info.name || std::find(info.aliases.begin(), info.aliases.end(), text) != info.aliases.end())
      return info.number;
    std::string& list = info.name.find('/') == std::string_view::npos ? known : pairs;
    list += (list.empty() ? "" : ", ") + std::string(info.name);
  }
  const std::string got = "[octavo] state: got '" + std::string(text) + "', expected ";
  if (text.find('/') == std::string_view::npos || pairs.empty())
    return Status::invalid(got + "one of " + known + (pairs.empty() ? "" : ", " + pairs));
  return Status::invalid(got + "a pair (first moments/second moments) that is compiled, " + pairs +
                         ", or one of " + known);
}

}  // namespace octavo
