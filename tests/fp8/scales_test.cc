// Delayed scaling against Transformer Engine's kernel written out slot by slot, and the scales that casts
// find themselves.
// SPDX-License-Identifier: MIT
#include "tests/fp8/matrices.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace test {
namespace {

using fp8::AmaxAlgo;
using fp8::Element;
using fp8::Recipe;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();

octavo::Status update(DelayedState& state, AmaxAlgo algo, int margin) {
  return test::update({&state, 1}, algo, margin);
}

// amax_and_scale_update_after_reduction of Transformer Engine, by a thread that does all its loops.
// Its state has one element: two states, one for each, are ours.
void reference_update(DelayedState& state, Element element, AmaxAlgo algo, int margin) {
  const std::vector<float> old = state.history;
  const std::size_t length = old.size();
  const float last_amax = old[0];
  float amax = 0.0f;
  if (last_amax != 0.0f) {
    for (std::size_t i = 0; i < length; ++i) {
      const float a = i < length - 1 ? old[i + 1] : last_amax;
      amax = std::fmax(amax, a);
      state.history[i] = i > 0 ? a : 0.0f;
    }
  }
  if (algo == AmaxAlgo::most_recent) amax = last_amax;
  const float scaled_max =
      (element == Element::e4m3 ? 448.0f : 57344.0f) * std::pow(2.0f, -static_cast<float>(margin));
  float& scale = state.scales[static_cast<std::size_t>(element)];
  if (std::isfinite(amax) && amax > 0.0f) scale = scaled_max / amax;
  if (std::isinf(scale)) scale = kMost;
}

TEST(Fp8Scales, DelayedScalingIsTransformerEngines) {
  for (const std::int64_t length : {1, 2, 3, 16, 1024}) {
    for (const AmaxAlgo algo : {AmaxAlgo::max, AmaxAlgo::most_recent}) {
      for (const int margin : {0, 1, 7}) {
        DelayedState state{std::vector<float>(static_cast<std::size_t>(length))};
        std::array<DelayedState, 2> expected = {state, state};
        Random random(static_cast<std::uint64_t>(length));
        for (int step = 0; step < 200; ++step) {
          float amax = std::ldexp(std::fabs(random.gaussian()), static_cast<int>(random.below(40)) - 20);
          if (random.chance(9)) amax = 0.0f;
          if (random.chance(31)) amax = kInf;
          if (random.chance(41)) amax = NAN;
          if (random.chance(31)) amax = 0x1p-140f;
          if (random.chance(31)) amax = kMost;
          state.history[0] = amax;
          ASSERT_TRUE(update(state, algo, margin).ok());
          for (const Element element : kElements) {
            const auto at = static_cast<std::size_t>(element);
            expected[at].history[0] = amax;
            reference_update(expected[at], element, algo, margin);
            ASSERT_EQ(state.scales[at], expected[at].scales[at]) << "step " << step;
            for (std::size_t i = 0; i < state.history.size(); ++i) {
              ASSERT_EQ(reference::bits_of(state.history[i]), reference::bits_of(expected[at].history[i]))
                  << "step " << step << ", slot " << i;
            }
          }
        }
      }
    }
  }
}

// A history of three slots: the step under way and two before it.
TEST(Fp8Scales, AHistoryByHand) {
  DelayedState state{{0.0f, 0.0f, 0.0f}};
  const auto step = [&](float amax) {
    state.history[0] = amax;
    EXPECT_TRUE(update(state, AmaxAlgo::max, 0).ok());
    EXPECT_EQ(state.scales[1], 128.0f * state.scales[0]);  // as far as their largest numbers are apart
    return state.scales[0];
  };
  EXPECT_EQ(step(4.0f), 112.0f);
  EXPECT_EQ(state.history, (std::vector<float>{0.0f, 0.0f, 4.0f}));
  EXPECT_EQ(step(2.0f), 112.0f);
  EXPECT_EQ(state.history, (std::vector<float>{0.0f, 4.0f, 2.0f}));
  EXPECT_EQ(step(0.0f), 112.0f);  // not used: nothing moves
  EXPECT_EQ(state.history, (std::vector<float>{0.0f, 4.0f, 2.0f}));
  EXPECT_EQ(step(1.0f), 112.0f);  // 4 is still there,
  EXPECT_EQ(step(1.0f), 224.0f);  // now 2 is the largest,
  EXPECT_EQ(step(kInf), 224.0f);  // infinity keeps the scale
  EXPECT_EQ(step(1.0f), 224.0f);
  EXPECT_EQ(step(1.0f), 224.0f);
  EXPECT_EQ(step(1.0f), 448.0f);  // until it is gone
}

TEST(Fp8Scales, ManyTensorsAtOnceAreManyAlone) {
  std::vector<DelayedState> together, alone;
  Random random(5);
  for (int i = 0; i < 20; ++i) {
    DelayedState state{std::vector<float>(4), {static_cast<float>(i + 1), 1.0f}};
    for (float& amax : state.history) amax = std::fabs(random.gaussian());
    together.push_back(state);
    alone.push_back(state);
  }
  ASSERT_TRUE(test::update(together, AmaxAlgo::max, 0).ok());
  for (DelayedState& state : alone) ASSERT_TRUE(update(state, AmaxAlgo::max, 0).ok());
  EXPECT_EQ(together, alone);
}

// --- scales of what is cast itself ---

float rounded_down(float scale) { return std::ldexp(1.0f, std::ilogb(scale)); }

// The scale by its definition, from the maximum of the elements that share it.
float expected_scale(float amax, Element element, bool power_of_two) {
  if (amax == 0.0f || std::isinf(amax)) return 1.0f;
  float scale = static_cast<float>(definition(element).max_finite) / amax;
  if (std::isinf(scale)) scale = kMost;
  return power_of_two ? rounded_down(scale) : scale;
}

struct TileSize {
  std::int64_t rows, columns;
};
TileSize tile_of(Recipe recipe, fp8::Operand operand) {
  constexpr std::int64_t kAll = 1 << 20;
  if (recipe == Recipe::current) return {kAll, kAll};
  if (recipe == Recipe::rowwise) return {1, kAll};
  return operand == fp8::Operand::w ? TileSize{128, 128} : TileSize{1, 128};
}

TEST(Fp8Scales, EachTileHasTheScaleOfItsMaximum) {
  constexpr std::int64_t kRows = 270, kColumns = 300;
  std::vector<float> values = spread_values(kRows * kColumns, 31, 30);
  std::fill_n(values.begin() + 5 * kColumns, kColumns, 0.0f);  // a row of zeros
  for (std::int64_t j = 0; j < kColumns; ++j)                  // scales that are no floats
    values[static_cast<std::size_t>(6 * kColumns + j)] = 0x1p-145f;
  values[7 * kColumns + 200] = kInf;
  for (const Recipe recipe : {Recipe::current, Recipe::rowwise, Recipe::block}) {
    for (const fp8::Operand operand : {fp8::Operand::x, fp8::Operand::w, fp8::Operand::dy}) {
      for (const Element element : kElements) {
        if (recipe == Recipe::current || operand == fp8::Operand::w)
          values[7 * kColumns + 200] = element == Element::e4m3 ? 9.0f : kInf;
        const Dense from(octavo::DType::f32, kRows, kColumns, values);
        const Cast out = cast(from, recipe, {operand, false, element});
        const TileSize tile = tile_of(recipe, operand);
        for (std::int64_t top = 0; top < kRows; top += tile.rows) {
          for (std::int64_t left = 0; left < kColumns; left += tile.columns) {
            const std::int64_t bottom = std::min(kRows, top + tile.rows);
            const std::int64_t right = std::min(kColumns, left + tile.columns);
            float amax = 0.0f;
            for (std::int64_t i = top; i < bottom; ++i) {
              for (std::int64_t j = left; j < right; ++j) amax = std::max(amax, std::fabs(from.at(i, j)));
            }
            const float scale = expected_scale(amax, element, recipe != Recipe::current);
            for (std::int64_t i = top; i < bottom; ++i) {
              for (std::int64_t j = left; j < right; ++j) {
                const float x = from.at(i, j);
                if (std::isinf(amax)) {
                  ASSERT_TRUE(std::isnan(out.inverse_at(i, j)));
                } else {
                  ASSERT_EQ(out.inverse_at(i, j), 1.0f / scale) << name(recipe) << ' ' << i << ' ' << j;
                }
                const auto sign = std::signbit(x) ? 0x80u : 0u;
                const auto code = definition(element).nearest_magnitude(static_cast<double>(x * scale), true);
                ASSERT_EQ(out.code(i, j), code | sign) << name(recipe) << ' ' << i << ' ' << j;
              }
            }
          }
        }
      }
    }
  }
}

#if defined(__x86_64__)
// A caller that flushes denormals gets the same numbers, and its mode back.
TEST(Fp8Scales, FlushedDenormalsChangeNothing) {
  constexpr unsigned kFlush = 0x8040;  // flush to zero, denormals are zero
  const Dense from(octavo::DType::f32, 16, 144, std::vector<float>(16 * 144, 0x1p-130f));
  for (const Recipe recipe : kRecipes) {
    for (const fp8::Operand operand : {fp8::Operand::x, fp8::Operand::w}) {
      const fp8::Use use{operand, true, Element::e4m3};
      const Cast usual = cast(from, recipe, use);
      const unsigned mode = _mm_getcsr();
      _mm_setcsr(mode | kFlush);
      const Cast flushed = cast(from, recipe, use);
      EXPECT_EQ(_mm_getcsr() & kFlush, kFlush);
      _mm_setcsr(mode);
      EXPECT_NE(usual.code(0, 0), 0);
      EXPECT_TRUE(std::ranges::equal(usual.codes.bytes(), flushed.codes.bytes()));
      EXPECT_TRUE(std::ranges::equal(usual.inverse.bytes(), flushed.inverse.bytes())) << name(recipe);
    }
  }
}
#endif

// The layout that cuBLASLt reads: rows are contiguous for `tile_1x128`, and filled up to four for
// `tile_128x128`.
TEST(Fp8Scales, Places) {
  using fp8::Tiling;
  EXPECT_EQ(fp8::scale_count(Tiling::tensor, 48, 400), 1);
  EXPECT_EQ(fp8::scale_count(Tiling::row, 48, 400), 48);
  EXPECT_EQ(fp8::scale_count(Tiling::tile_1x128, 48, 400), 4 * 48);
  EXPECT_EQ(fp8::scale_count(Tiling::tile_128x128, 160, 640), 2 * 8);
  EXPECT_EQ(fp8::scale_place(Tiling::tensor, 48, 400, 47, 399), 0);
  EXPECT_EQ(fp8::scale_place(Tiling::row, 48, 400, 47, 399), 47);
  EXPECT_EQ(fp8::scale_place(Tiling::tile_1x128, 48, 400, 7, 127), 7);
  EXPECT_EQ(fp8::scale_place(Tiling::tile_1x128, 48, 400, 7, 128), 48 + 7);
  EXPECT_EQ(fp8::scale_place(Tiling::tile_128x128, 160, 640, 127, 639), 4);
  EXPECT_EQ(fp8::scale_place(Tiling::tile_128x128, 160, 640, 128, 0), 8);
}

}  // namespace
}  // namespace test
