// The vocabulary: which tensor has which element in which matmul, names, and what settings are refused.
// SPDX-License-Identifier: MIT
#include "tests/fp8/matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace test {
namespace {

using fp8::Element;
using fp8::Format;
using fp8::Operand;
using fp8::Pass;
using ::testing::HasSubstr;

// "dy transposed e5m2, x transposed e4m3"
std::string shown(const fp8::Use& use) {
  return std::string(name(use.operand)) + (use.transposed ? " transposed " : " ") +
         std::string(name(use.element));
}
std::string shown(Format format, Pass pass) {
  const fp8::Uses uses = fp8::uses(format, pass);
  return shown(uses.a) + ", " + shown(uses.b);
}

TEST(Fp8Recipe, ElementsOfEveryMatmul) {
  EXPECT_EQ(shown(Format::hybrid, Pass::forward), "x e4m3, w e4m3");
  EXPECT_EQ(shown(Format::hybrid, Pass::dgrad), "dy e5m2, w transposed e4m3");
  EXPECT_EQ(shown(Format::hybrid, Pass::wgrad), "dy transposed e5m2, x transposed e4m3");
  EXPECT_EQ(shown(Format::e4m3, Pass::forward), "x e4m3, w e4m3");
  EXPECT_EQ(shown(Format::e4m3, Pass::dgrad), "dy e4m3, w transposed e4m3");
  EXPECT_EQ(shown(Format::e4m3, Pass::wgrad), "dy transposed e4m3, x transposed e4m3");
  EXPECT_EQ(shown(Format::e5m2, Pass::forward), "x e5m2, w e4m3");
  EXPECT_EQ(shown(Format::e5m2, Pass::dgrad), "dy e5m2, w transposed e4m3");
  EXPECT_EQ(shown(Format::e5m2, Pass::wgrad), "dy transposed e5m2, x transposed e4m3");
}

TEST(Fp8Recipe, WhatSharesAScale) {
  using fp8::Recipe;
  using fp8::Tiling;
  for (const Operand operand : {Operand::x, Operand::w, Operand::dy}) {
    EXPECT_EQ(fp8::tiling(Recipe::delayed, operand), Tiling::tensor);
    EXPECT_EQ(fp8::tiling(Recipe::current, operand), Tiling::tensor);
    EXPECT_EQ(fp8::tiling(Recipe::rowwise, operand), Tiling::row);
    EXPECT_EQ(fp8::tiling(Recipe::block, operand),
              operand == Operand::w ? Tiling::tile_128x128 : Tiling::tile_1x128);
  }
}

TEST(Fp8Recipe, NamesParse) {
  for (const Format format : kFormats) EXPECT_EQ(fp8::parse_format(name(format)).value(), format);
  for (const fp8::Recipe recipe : kRecipes) EXPECT_EQ(fp8::parse_recipe(name(recipe)).value(), recipe);
  EXPECT_EQ(fp8::parse_amax_algo("most_recent").value(), fp8::AmaxAlgo::most_recent);
  EXPECT_EQ(fp8::parse_amax_algo("max").value(), fp8::AmaxAlgo::max);
  EXPECT_EQ(fp8::parse_activation("gelu").value(), fp8::Activation::gelu);
  EXPECT_EQ(fp8::parse_format("fp8").status().message(),
            "[fp8] format: got 'fp8', expected one of hybrid, e4m3, e5m2");
  EXPECT_EQ(fp8::parse_recipe("Delayed").status().message(),
            "[fp8] recipe: got 'Delayed', expected one of delayed, current, rowwise, block");
  EXPECT_EQ(fp8::parse_amax_algo("").status().message(),
            "[fp8] amax_compute_algo: got '', expected one of max, most_recent");
  EXPECT_EQ(fp8::parse_activation("tanh").status().message(),
            "[fp8] activation: got 'tanh', expected one of none, relu, gelu, silu");
  EXPECT_EQ(name(static_cast<Format>(3)), "unknown");
}

TEST(Fp8Recipe, SettingsAreCheckedAndShown) {
  fp8::Settings settings;
  EXPECT_TRUE(fp8::check(settings).ok());
  EXPECT_EQ(fp8::text(settings), "fp8: format hybrid, recipe delayed (history of 1024, max, margin 0)");
  settings.recipe = fp8::Recipe::block;
  EXPECT_EQ(fp8::text(settings), "fp8: format hybrid, recipe block");
  settings.format = Format::e5m2;
  EXPECT_THAT(fp8::text(settings), HasSubstr("wgrad takes x in e4m3"));

  const auto refused = [](auto&& change) {
    fp8::Settings bad;
    change(bad);
    return fp8::check(bad).message();
  };
  EXPECT_EQ(refused([](fp8::Settings& s) { s.amax_history_len = 0; }),
            "[fp8] amax_history_len: got 0, expected 1 to 65536 (1: the last step alone)");
  EXPECT_THAT(refused([](fp8::Settings& s) { s.amax_history_len = 65537; }), HasSubstr("got 65537"));
  EXPECT_EQ(refused([](fp8::Settings& s) { s.margin = -1; }),
            "[fp8] margin: got -1, expected 0 to 16 (scales are divided by 2^margin)");
  EXPECT_EQ(refused([](fp8::Settings& s) { s.format = static_cast<Format>(7); }),
            "[fp8] format: got 7, expected one of 0 (hybrid), 1 (e4m3), 2 (e5m2)");
  EXPECT_THAT(refused([](fp8::Settings& s) { s.recipe = static_cast<fp8::Recipe>(9); }),
              HasSubstr("[fp8] recipe: got 9"));
  EXPECT_THAT(refused([](fp8::Settings& s) { s.amax_compute_algo = static_cast<fp8::AmaxAlgo>(2); }),
              HasSubstr("[fp8] amax_compute_algo: got 2, expected one of 0 (max), 1 (most_recent)"));
}

}  // namespace
}  // namespace test
