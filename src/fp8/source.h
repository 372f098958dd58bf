// Reads the matrix of a cast tile by tile: in fp32, after the activation, by rows or transposed, padded with
// zeros.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/tile_io.h"
#include "formula/activation.h"
#include "fp8/tiles.h"

#include <algorithm>
#include <array>

namespace octavo::fp8 {

using Line = std::array<float, kTile>;
using Tile = std::array<Line, kTile>;

inline void activate(Activation activation, std::span<float> values) {
  const auto each = [&](auto&& formula) {
    for (float& x : values) x = formula(scalar::F32(x)).v;
  };
  switch (activation) {
    case Activation::none:
      break;
    case Activation::relu:
      return each([](scalar::F32 x) { return formula::relu(x); });
    case Activation::gelu:
      return each([](scalar::F32 x) { return formula::gelu(x); });
    case Activation::silu:
      return each([](scalar::F32 x) { return formula::silu(x); });
  }
}

class Source {
 public:
  Source(const CastArgs& args, bool transposed) : args_(args), transposed_(transposed) {}

  // The sides of the matrix of codes.
  [[nodiscard]] std::int64_t rows() const { return padded(transposed_ ? args_.columns : args_.rows); }
  [[nodiscard]] std::int64_t inner() const { return padded(transposed_ ? args_.rows : args_.columns); }

  void load(std::int64_t group, std::int64_t i, std::int64_t k, Tile& to) const {
    if (!transposed_) {
      for (Line& line : to) load_line(group, i++, k, line);
      return;
    }
    Line across;
    for (std::size_t c = 0; c < to.size(); ++c) {
      load_line(group, k + static_cast<std::int64_t>(c), i, across);
      for (std::size_t r = 0; r < to.size(); ++r) to[r][c] = across[r];
    }
  }

 private:
  void load_line(std::int64_t group, std::int64_t row, std::int64_t column, Line& to) const {
    const std::int64_t count =
        row < args_.rows ? std::clamp<std::int64_t>(args_.columns - column, 0, kTile) : 0;
    const std::int64_t at = (group * args_.rows + row) * args_.columns + column;
    cpu::load_values<scalar::Lane>(args_.from, args_.dtype, at, count, to.data());
    std::fill(to.begin() + count, to.end(), 0.0F);
    activate(args_.activation, std::span(to).first(static_cast<std::size_t>(count)));
  }

  const CastArgs& args_;
  bool transposed_;
};

}  // namespace octavo::fp8
