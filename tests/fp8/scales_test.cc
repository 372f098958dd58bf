// Delayed scaling against Transformer Engine's kernel written out slot by slot, and the scales that casts
// find themselves.
// SPDX-License-Identifier: MIT
#include "fp8/matrices.h"

#include <cmath>
#include <limits>

namespace test {
namespace {

using fp8::AmaxAlgo;
using fp8::DelayedState;
using fp8::Element;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();

octavo::Status update(DelayedState& state, Element element, AmaxAlgo algo, int margin) {
  const fp8::DelayedTensor tensors[] = {state.view(element)};
  fp8::ScaleUpdate args;
  args.tensors = tensors;
  args.length = std::ssize(state.history);
  args.algo = algo;
  args.margin = margin;
  return fp8::update_scales(args);
}

// amax_and_scale_update_after_reduction of Transformer Engine, by a thread that does all its loops.
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
  float scale = state.scale;
  if (std::isfinite(amax) && amax > 0.0f) scale = scaled_max / amax;
  if (std::isinf(scale)) scale = kMost;
  state.scale = scale;
}

TEST(Fp8Scales, DelayedScalingIsTransformerEngines) {
  for (const std::int64_t length : {1, 2, 3, 16, 1024}) {
    for (const AmaxAlgo algo : {AmaxAlgo::max, AmaxAlgo::most_recent}) {
      for (const Element element : kElements) {
        for (const int margin : {0, 1, 7}) {
          DelayedState state{1.0f, std::vector<float>(static_cast<std::size_t>(length))};
          DelayedState expected = state;
          Random random(static_cast<std::uint64_t>(length));
          for (int step = 0; step < 200; ++step) {
            float amax = std::ldexp(std::fabs(random.gaussian()), static_cast<int>(random.below(40)) - 20);
            if (random.chance(9)) amax = 0.0f;
            if (random.chance(31)) amax = kInf;
            if (random.chance(41)) amax = NAN;
            if (random.chance(31)) amax = 0x1p-140f;
            if (random.chance(31)) amax = kMost;
            state.history[0] = expected.history[0] = amax;
            ASSERT_TRUE(update(state, element, algo, margin).ok());
            reference_update(expected, element, algo, margin);
            ASSERT_EQ(state.scale, expected.scale) << "step " << step;
            for (std::size_t i = 0; i < state.history.size(); ++i) {
              ASSERT_EQ(reference::bits_of(state.history[i]), reference::bits_of(expected.history[i]))
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
  DelayedState state{1.0f, {0.0f, 0.0f, 0.0f}};
  const auto step = [&](float amax) {
    state.history[0] = amax;
    EXPECT_TRUE(update(state, Element::e4m3, AmaxAlgo::max, 0).ok());
    return state.scale;
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
    DelayedState state{static_cast<float>(i + 1), std::vector<float>(4)};
    for (float& amax : state.history) amax = std::fabs(random.gaussian());
    together.push_back(state);
    alone.push_back(state);
  }
  std::vector<fp8::DelayedTensor> views;
  for (std::size_t i = 0; i < together.size(); ++i) views.push_back(together[i].view(kElements[i % 2]));
  fp8::ScaleUpdate args;
  args.tensors = views;
  args.length = 4;
  ASSERT_TRUE(fp8::update_scales(args).ok());
  for (std::size_t i = 0; i < alone.size(); ++i)
    ASSERT_TRUE(update(alone[i], kElements[i % 2], AmaxAlgo::max, 0).ok());
  EXPECT_EQ(together, alone);
}

// What cuBLASLt reads: rows are contiguous for `line`, and filled up to four for `square`.
TEST(Fp8Scales, Places) {
  using fp8::Tiling;
  EXPECT_EQ(fp8::scale_count(Tiling::tensor, 48, 400), 1);
  EXPECT_EQ(fp8::scale_count(Tiling::row, 48, 400), 48);
  EXPECT_EQ(fp8::scale_count(Tiling::line, 48, 400), 4 * 48);
  EXPECT_EQ(fp8::scale_count(Tiling::square, 160, 640), 2 * 8);
  EXPECT_EQ(fp8::scale_place(Tiling::tensor, 48, 400, 47, 399), 0);
  EXPECT_EQ(fp8::scale_place(Tiling::row, 48, 400, 47, 399), 47);
  EXPECT_EQ(fp8::scale_place(Tiling::line, 48, 400, 7, 127), 7);
  EXPECT_EQ(fp8::scale_place(Tiling::line, 48, 400, 7, 128), 48 + 7);
  EXPECT_EQ(fp8::scale_place(Tiling::square, 160, 640, 127, 639), 4);
  EXPECT_EQ(fp8::scale_place(Tiling::square, 160, 640, 128, 0), 8);
}

}  // namespace
}  // namespace test
