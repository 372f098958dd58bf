// Formats and recipes: their tables, their names, and the check of options.
// SPDX-License-Identifier: MIT
#include "codecs/fp8.h"
#include "fp8/invalid_argument.h"
#include "fp8/tiles.h"
#include "fp8/values.h"
#include "status/first_error.h"

#include <octavo/fp8.h>

#include <array>
#include <string>

namespace octavo::fp8 {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 2> kElements = {"e4m3", "e5m2"};
constexpr std::array<std::string_view, 3> kOperands = {"x", "w", "dy"};
constexpr std::array<std::string_view, 3> kPasses = {"forward", "dgrad", "wgrad"};
constexpr std::array<std::string_view, 2> kAlgos = {"max", "most_recent"};
constexpr std::array<std::string_view, 4> kActivations = {"none", "relu", "gelu", "silu"};
constexpr std::array<std::string_view, 4> kTilings = {"tensor", "row", "tile_1x128", "tile_128x128"};
constexpr std::array<std::string_view, 3> kFormats = {"hybrid", "e4m3", "e5m2"};
constexpr std::array<std::string_view, 4> kRecipes = {"delayed", "current", "rowwise", "block"};

// The elements of x, w and dy.
constexpr Element kElementOf[3][3] = {
    {Element::e4m3, Element::e4m3, Element::e5m2},  // hybrid
    {Element::e4m3, Element::e4m3, Element::e4m3},  // e4m3
    {Element::e5m2, Element::e4m3, Element::e5m2},  // e5m2
};

// The operands a and b of each pass; the format defines their elements.
constexpr Uses kUses[3] = {
    {{Operand::x, false}, {Operand::w, false}},  // forward
    {{Operand::dy, false}, {Operand::w, true}},  // dgrad
    {{Operand::dy, true}, {Operand::x, true}},   // wgrad
};

// The tilings of x, w and dy.
constexpr Tiling kTilingOf[4][3] = {
    {Tiling::tensor, Tiling::tensor, Tiling::tensor},                // delayed
    {Tiling::tensor, Tiling::tensor, Tiling::tensor},                // current
    {Tiling::row, Tiling::row, Tiling::row},                         // rowwise
    {Tiling::tile_1x128, Tiling::tile_128x128, Tiling::tile_1x128},  // block
};

template <class E>
std::string_view name_in(Names names, E value) {
  const auto at = static_cast<std::size_t>(value);
  return at < names.size() ? names[at] : "unknown";
}

template <class E>
Result<E> parse_in(Names names, const char* field, std::string_view text) {
  std::string known;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<E>(i);
    known += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  std::string quoted = "'";
  quoted.append(text).append("'");
  return invalid(field, quoted, "one of " + known);
}

}  // namespace

std::string_view name(Element value) { return name_in(kElements, value); }
std::string_view name(Format value) { return name_in(kFormats, value); }
std::string_view name(Recipe value) { return name_in(kRecipes, value); }
std::string_view name(Operand value) { return name_in(kOperands, value); }
std::string_view name(Pass value) { return name_in(kPasses, value); }
std::string_view name(AmaxAlgo value) { return name_in(kAlgos, value); }
std::string_view name(Activation value) { return name_in(kActivations, value); }
std::string_view name(Tiling value) { return name_in(kTilings, value); }

Result<Format> parse_format(std::string_view text) { return parse_in<Format>(kFormats, "format", text); }
Result<Recipe> parse_recipe(std::string_view text) { return parse_in<Recipe>(kRecipes, "recipe", text); }
Result<AmaxAlgo> parse_amax_algo(std::string_view text) {
  return parse_in<AmaxAlgo>(kAlgos, "amax_compute_algo", text);
}
Result<Activation> parse_activation(std::string_view text) {
  return parse_in<Activation>(kActivations, "activation", text);
}

float largest(Element element) {
  return element == Element::e4m3 ? codecs::E4M3::kLargest : codecs::E5M2::kLargest;
}

float value(Element element, std::uint8_t code) { return values(element)[code]; }

Uses uses(Format format, Pass pass) {
  Uses out = kUses[static_cast<std::size_t>(pass)];
  for (Use* use : {&out.a, &out.b}) {
    use->element = kElementOf[static_cast<std::size_t>(format)][static_cast<std::size_t>(use->operand)];
  }
  // cuBLASLt has no matmul of two E5M2 operands.
  if (out.a.element == Element::e5m2 && out.b.element == Element::e5m2) out.b.element = Element::e4m3;
  return out;
}

Tiling tiling(Recipe recipe, Operand operand) {
  return kTilingOf[static_cast<std::size_t>(recipe)][static_cast<std::size_t>(operand)];
}

std::int64_t scale_count(Tiling tiling, std::int64_t rows, std::int64_t inner) {
  return scale_map(tiling, rows, inner).count;
}
std::int64_t scale_place(Tiling tiling, std::int64_t rows, std::int64_t inner, std::int64_t i,
                         std::int64_t k) {
  return scale_map(tiling, rows, inner).place(i, k);
}

Status check(const Settings& settings) {
  return first_error({check_enum("format", settings.format), check_enum("recipe", settings.recipe),
                      check_history(settings.amax_history_len, settings.amax_compute_algo, settings.margin)});
}

std::string text(const Settings& settings) {
  std::string out =
      "fp8: format " + std::string(name(settings.format)) + ", recipe " + std::string(name(settings.recipe));
  if (settings.recipe == Recipe::delayed) {
    out += " (history of " + std::to_string(settings.amax_history_len) + ", " +
           std::string(name(settings.amax_compute_algo)) + ", margin " + std::to_string(settings.margin) +
           ")";
  }
  if (settings.format == Format::e5m2)
    out += "; wgrad takes x in e4m3, because cuBLASLt has no product of two e5m2 operands";
  return out;
}

}  // namespace octavo::fp8
