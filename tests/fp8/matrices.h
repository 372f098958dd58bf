// Matrices for the tests of FP8: what is cast, what a cast writes, and matmuls in double.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/reference/elements.h"
#include "tests/reference/minifloat.h"
#include "tests/support/buffers.h"
#include "tests/support/random.h"

#include <octavo/fp8.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
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

// A matrix of any element type, dense, in memory of its exact size that is aligned to an element and no more.
struct Dense {
  octavo::DType dtype = octavo::DType::f32;
  std::int64_t rows = 0, columns = 0;
  Buffer data;

  Dense(octavo::DType type, std::int64_t height, std::int64_t width)
      : dtype(type),
        rows(height),
        columns(width),
        data(height * width * octavo::dtype_bytes(type), octavo::dtype_bytes(type)) {}
  Dense(octavo::DType type, std::int64_t height, std::int64_t width, const std::vector<float>& values)
      : Dense(type, height, width) {
    for (std::int64_t i = 0; i < height * width; ++i)
      reference::store_nearest(type, data.data(), i, values[static_cast<std::size_t>(i)]);
  }
  [[nodiscard]] float at(std::int64_t i, std::int64_t j) const {
    return reference::load(dtype, data.data(), i * columns + j);
  }
};

// A matrix of codes as cast() writes it.
struct Cast {
  fp8::Element element = fp8::Element::e4m3;
  fp8::Tiling tiling = fp8::Tiling::tensor;
  std::int64_t rows = 0, inner = 0;
  Buffer codes, inverse;

  Cast() = default;
  Cast(fp8::Element type, fp8::Tiling tiles, std::int64_t height, std::int64_t width)
      : element(type),
        tiling(tiles),
        rows(fp8::padded(height)),
        inner(fp8::padded(width)),
        codes(rows * inner, 1),
        inverse(4 * fp8::scale_count(tiles, rows, inner), 4) {}

  [[nodiscard]] fp8::Codes out(const float* scale = nullptr) const {
    return {element, codes.as<std::uint8_t>(), inverse.as<float>(), scale};
  }
  [[nodiscard]] fp8::Matrix matrix() const {
    return {element, tiling, rows, inner, codes.as<std::uint8_t>(), inverse.as<float>()};
  }
  [[nodiscard]] std::uint8_t code(std::int64_t i, std::int64_t k) const {
    return codes.as<std::uint8_t>()[i * inner + k];
  }
  [[nodiscard]] float inverse_at(std::int64_t i, std::int64_t k) const {
    return inverse.as<float>()[fp8::scale_place(tiling, rows, inner, i, k)];
  }
  [[nodiscard]] double value(std::int64_t i, std::int64_t k) const {
    return definition(element).value(code(i, k)) * static_cast<double>(inverse_at(i, k));
  }
};

inline fp8::CastArgs args_of(const Dense& from, fp8::Recipe recipe, fp8::Operand operand = fp8::Operand::x) {
  fp8::CastArgs args;
  args.dtype = from.dtype;
  args.from = from.data.data();
  args.rows = from.rows;
  args.columns = from.columns;
  args.recipe = recipe;
  args.operand = operand;
  return args;
}

// A tensor's delayed scaling by its parts.
struct DelayedState {
  std::vector<float> history;
  std::array<float, 2> scales = {1.0f, 1.0f};
  friend bool operator==(const DelayedState&, const DelayedState&) = default;
};

// update_scales() for tensors whose histories have one length.
inline octavo::Status update(std::span<DelayedState> tensors, fp8::AmaxAlgo algo, int margin) {
  std::vector<float> states;
  for (const DelayedState& one : tensors) {
    states.insert(states.end(), one.scales.begin(), one.scales.end());
    states.insert(states.end(), one.history.begin(), one.history.end());
  }
  fp8::ScaleUpdate args;
  args.states = states.data();
  args.tensors = std::ssize(tensors);
  args.length = std::ssize(tensors[0].history);
  args.algo = algo;
  args.margin = margin;
  octavo::Status status = fp8::update_scales(args);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto from = fp8::DelayedTensor::at(states.data(), args.length, static_cast<std::int64_t>(i));
    std::copy_n(from.scales, 2, tensors[i].scales.begin());
    std::copy_n(from.history, args.length, tensors[i].history.begin());
  }
  return status;
}

// One matrix of codes. Delayed scaling has the scale of the tensor's own maximum, from a history of one step.
inline Cast cast(const Dense& from, fp8::Recipe recipe, const fp8::Use& use) {
  Cast out(use.element, fp8::tiling(recipe, use.operand), use.transposed ? from.columns : from.rows,
           use.transposed ? from.rows : from.columns);
  DelayedState state{{0.0f}};
  fp8::CastArgs args = args_of(from, recipe, use.operand);
  (use.transposed ? args.transposed : args.by_rows) =
      out.out(&state.scales[static_cast<std::size_t>(use.element)]);
  if (recipe == fp8::Recipe::delayed) {
    args.amax = state.history.data();
    EXPECT_TRUE(fp8::cast(args).ok());
    EXPECT_TRUE(update({&state, 1}, fp8::AmaxAlgo::max, 0).ok());
  }
  const octavo::Status status = fp8::cast(args);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.codes.surroundings_intact() && out.inverse.surroundings_intact());
  return out;
}

}  // namespace test
