// Matrices for the tests of FP8: what is cast, what a cast writes, and products in double.
// SPDX-License-Identifier: MIT
#pragma once

#include "reference/elements.h"
#include "reference/minifloat.h"
#include "support/buffers.h"
#include "support/random.h"

#include <octavo/fp8.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace test {

namespace fp8 = octavo::fp8;

inline constexpr fp8::Element kElements[] = {fp8::Element::e4m3, fp8::Element::e5m2};
inline constexpr fp8::Format kFormats[] = {fp8::Format::hybrid, fp8::Format::e4m3, fp8::Format::e5m2};
inline constexpr fp8::Recipe kRecipes[] = {fp8::Recipe::delayed, fp8::Recipe::current, fp8::Recipe::rowwise,
                                           fp8::Recipe::block};
inline constexpr fp8::Pass kPasses[] = {fp8::Pass::forward, fp8::Pass::dgrad, fp8::Pass::wgrad};

inline const reference::Minifloat& definition(fp8::Element element) {
  return element == fp8::Element::e4m3 ? reference::kE4M3 : reference::kE5M2;
}

}  // namespace test
