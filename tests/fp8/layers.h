// A layer with its tensors, and its three matmuls by the plain functions of octavo/fp8.h, group by group.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/fp8/matrices.h"

#include <octavo/fp8_layer.h>

#include <string>

namespace test {

inline std::string text(const fp8::Layer& layer) {
  return std::to_string(layer.groups) + 'x' + std::to_string(layer.tokens) + 'x' +
         std::to_string(layer.inputs) + 'x' + std::to_string(layer.outputs) +
         (layer.one_input ? " one_input" : "") + (layer.one_output ? " one_output" : "") +
         (layer.transposed_weight ? " transposed_weight" : "");
}

// Every matrix has the same maximum: so the scale of all groups is that of each.
inline constexpr float kMost = 8.0f;

struct LayerTensors {
  fp8::Layer layer;
  std::vector<Dense> x, w, dy;  // by group; w is [outputs, inputs], however the layer has it in memory

  explicit LayerTensors(const fp8::Layer& of) : layer(of) {
    fill(x, of.one_input ? 1 : of.groups, of.tokens, of.inputs, 1);
    fill(w, of.groups, of.outputs, of.inputs, 2);
    fill(dy, of.one_output ? 1 : of.groups, of.tokens, of.outputs, 3);
  }
  [[nodiscard]] const std::vector<Dense>& groups(fp8::Operand operand) const {
    return operand == fp8::Operand::x ? x : operand == fp8::Operand::w ? w : dy;
  }
  [[nodiscard]] const Dense& of(fp8::Operand operand, std::int64_t group) const {
    const auto& all = groups(operand);
    return all[static_cast<std::size_t>(std::min(group, std::ssize(all) - 1))];
  }
  // The operand as the layer wants it in memory.
  [[nodiscard]] Buffer memory(fp8::Operand operand) const {
    const auto& all = groups(operand);
    const Dense& first = all[0];
    Buffer out(std::ssize(all) * first.data.size());
    std::int64_t at = 0;
    const auto put = [&](float value) { reference::store_nearest(first.dtype, out.data(), at++, value); };
    const bool transposed = operand == fp8::Operand::w && layer.transposed_weight;
    for (const Dense& one : all) {
      for (std::int64_t i = 0; i < (transposed ? one.columns : one.rows); ++i) {
        for (std::int64_t j = 0; j < (transposed ? one.rows : one.columns); ++j)
          put(transposed ? one.at(j, i) : one.at(i, j));
      }
    }
    return out;
  }

 private:
  static void fill(std::vector<Dense>& out, std::int64_t groups, std::int64_t rows, std::int64_t columns,
                   std::uint64_t seed) {
    Random random(seed);
    for (std::int64_t g = 0; g < groups; ++g) {
      std::vector<float> values(static_cast<std::size_t>(rows * columns));
      for (float& value : values) value = random.gaussian();
      if (!values.empty()) values[random.below(values.size())] = kMost;
      out.emplace_back(octavo::DType::bf16, rows, columns, values);
    }
  }
};

inline std::array<float, 2> scales_of_most() {
  return {fp8::largest(fp8::Element::e4m3) / kMost, fp8::largest(fp8::Element::e5m2) / kMost};
}

// Codes of one matrix by the plain cast, delayed scaling with the scales above.
inline Cast plain_cast(const Dense& from, fp8::Recipe recipe, const fp8::Use& use) {
  Cast out(use.element, fp8::tiling(recipe, use.operand), use.transposed ? from.columns : from.rows,
           use.transposed ? from.rows : from.columns);
  const std::array<float, 2> scales = scales_of_most();
  fp8::CastArgs args = args_of(from, recipe, use.operand);
  (use.transposed ? args.transposed : args.by_rows) = out.out(&scales[static_cast<std::size_t>(use.element)]);
  EXPECT_TRUE(fp8::cast(args).ok());
  return out;
}

// Returns the expected result of a pass, from plain casts and matmuls; dw is that of w as [outputs, inputs].
inline std::vector<Dense> plain_pass(const LayerTensors& tensors, const fp8::Settings& settings,
                                     fp8::Pass pass, octavo::DType dtype) {
  const fp8::Uses uses = fp8::uses(settings.format, pass);
  const fp8::Layer& layer = tensors.layer;
  const bool summed =
      (pass == fp8::Pass::forward && layer.one_output) || (pass == fp8::Pass::dgrad && layer.one_input);
  std::vector<Dense> out;
  for (std::int64_t g = 0; g < layer.groups; ++g) {
    const Cast a = plain_cast(tensors.of(uses.a.operand, g), settings.recipe, uses.a);
    const Cast b = plain_cast(tensors.of(uses.b.operand, g), settings.recipe, uses.b);
    fp8::MatmulArgs args;
    args.add = summed && g > 0;
    if (!args.add) out.emplace_back(dtype, a.rows, b.rows);
    args.a = a.matrix();
    args.b = b.matrix();
    args.to = out.back().data.data();
    args.dtype = dtype;
    EXPECT_TRUE(fp8::matmul(args).ok());
  }
  return out;
}

}  // namespace test
