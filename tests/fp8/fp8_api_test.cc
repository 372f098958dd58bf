// FP8's C functions: the numbers of the C++ ones, and what they refuse.
// SPDX-License-Identifier: MIT
#include "tests/fp8/layers.h"
#include "tests/support/c_structs.h"

#include <octavo/octavo.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>

namespace test {
namespace {

using fp8::Operand;
using fp8::Pass;
using octavo::DType;
using ::testing::HasSubstr;

octavo_fp8_layer c_layer(const fp8::Layer& layer, const fp8::Settings& settings, uint32_t passes = 7) {
  auto c = sized<octavo_fp8_layer>();
  c.format = static_cast<uint32_t>(settings.format);
  c.recipe = static_cast<uint32_t>(settings.recipe);
  c.passes = passes;
  c.groups = layer.groups;
  c.tokens = layer.tokens;
  c.inputs = layer.inputs;
  c.outputs = layer.outputs;
  c.one_input = layer.one_input ? 1 : 0;
  c.one_output = layer.one_output ? 1 : 0;
  c.transposed_weight = layer.transposed_weight ? 1 : 0;
  std::fill_n(c.dtypes, 3, static_cast<uint32_t>(DType::bf16));
  c.history = settings.amax_history_len;
  return c;
}
octavo_fp8_sizes sizes_of(const octavo_fp8_layer& layer) {
  auto sizes = sized<octavo_fp8_sizes>();
  EXPECT_EQ(octavo_fp8_layer_sizes(&layer, &sizes), 0u) << octavo_last_error();
  return sizes;
}

// A whole layer through the C ABI, one step of delayed scaling included.
TEST(Fp8Api, EqualsPlainCastsAndMatmuls) {
  constexpr std::int64_t kLength = 4, kState = fp8::state_floats(kLength);
  for (const fp8::Recipe recipe : kRecipes) {
    const LayerTensors tensors({2, 32, 48, 64, false, true, true});
    const fp8::Settings settings{fp8::Format::hybrid, recipe, kLength};
    const octavo_fp8_layer layer = c_layer(tensors.layer, settings);
    EXPECT_STREQ(octavo_fp8_why_not(&layer), "");
    std::vector<float> states(static_cast<std::size_t>(3 * kState));
    const octavo_fp8_sizes sizes = sizes_of(layer);
    std::array<Buffer, 3> codes, transposed;
    auto buffers = sized<octavo_fp8_run_args>();
    buffers.gather = 1;
    buffers.states = states.data();
    for (uint32_t i = 0; i < 3; ++i) {
      states[static_cast<std::size_t>(i * kState)] = states[static_cast<std::size_t>(i * kState + 1)] = 1.0f;
      codes[i] = Buffer(sizes.codes[i]);
      transposed[i] = Buffer(sizes.transposed[i]);
      buffers.codes[i] = codes[i].size() > 0 ? codes[i].data() : nullptr;
      buffers.transposed[i] = transposed[i].size() > 0 ? transposed[i].data() : nullptr;
    }
    for (const int step : {0, 1}) {  // the first one gathers maxima
      for (uint32_t i = 0; i < 3; ++i) {
        const Buffer from = tensors.memory(static_cast<Operand>(i));
        octavo_fp8_run_args args = buffers;
        args.from[i] = from.data();
        ASSERT_EQ(octavo_fp8_run(&layer, &args), 0u) << octavo_last_error();
        EXPECT_EQ(states[static_cast<std::size_t>(i * kState + 2)],
                  recipe == fp8::Recipe::delayed ? kMost : 0.0f);
      }
      if (step == 1) break;
      auto update = sized<octavo_fp8_scale_args>();
      update.states = states.data();
      update.tensors = 3;
      update.length = kLength;
      ASSERT_EQ(octavo_fp8_update_scales(&update), 0u) << octavo_last_error();
      EXPECT_EQ(states[1], recipe == fp8::Recipe::delayed ? scales_of_most()[1] : 1.0f);
    }
    octavo_fp8_layer to_f32 = layer;
    std::fill_n(to_f32.dtypes, 3, static_cast<uint32_t>(DType::f32));
    for (uint32_t pass = 0; pass < 3; ++pass) {
      const int64_t* const result = std::array{sizes.y, sizes.dx, sizes.dw}[pass];
      const Buffer to(4 * result[0] * result[1] * result[2]);
      octavo_fp8_run_args args = buffers;
      args.to[pass] = to.data();
      ASSERT_EQ(octavo_fp8_run(&to_f32, &args), 0u) << octavo_last_error();
      const std::vector<Dense> expected = plain_pass(tensors, settings, static_cast<Pass>(pass), DType::f32);
      ASSERT_EQ(std::ssize(expected), result[0]);
      for (std::size_t g = 0; g < expected.size(); ++g) {
        for (std::int64_t i = 0; i < expected[g].rows; ++i) {
          for (std::int64_t j = 0; j < expected[g].columns; ++j) {
            const std::int64_t row = pass == 2 ? j : i, column = pass == 2 ? i : j;
            const std::int64_t at = (static_cast<std::int64_t>(g) * result[1] + row) * result[2] + column;
            ASSERT_EQ(to.as<float>()[at], expected[g].at(i, j)) << name(recipe) << ' ' << pass;
          }
        }
      }
    }
  }
}

TEST(Fp8Api, KnowsNames) {
  uint32_t number = 9;
  EXPECT_EQ(octavo_parse("fp8_format", "e5m2", &number), 0u);
  EXPECT_EQ(number, 2u);
  EXPECT_EQ(octavo_parse("fp8_recipe", "block", &number), 0u);
  EXPECT_EQ(number, 3u);
  EXPECT_EQ(octavo_parse("amax_compute_algo", "most_recent", &number), 0u);
  EXPECT_EQ(number, 1u);
  EXPECT_EQ(octavo_parse("activation", "silu", &number), 0u);
  EXPECT_EQ(number, 3u);
  EXPECT_NE(octavo_parse("fp8_recipe", "mxfp8", &number), 0u);
  EXPECT_THAT(octavo_last_error(), HasSubstr("'mxfp8', expected one of delayed, current, rowwise, block"));
}

TEST(Fp8Api, TheCpuIsNotSupported) {
  EXPECT_EQ(octavo_fp8_supported(0, 0, 0), 2u);
  EXPECT_THAT(octavo_last_error(), HasSubstr("got cpu, expected a GPU of compute capability 8.9"));
  EXPECT_EQ(octavo_fp8_supported(9, 0, 0), 1u);
  EXPECT_EQ(octavo_fp8_supported(0, 0, 9), 1u);
}

TEST(Fp8Api, OnlyMatmulsOnAGpuNeedAWorkspace) {
  octavo_fp8_layer layer = c_layer({1, 37, 48, 64}, {});
  EXPECT_EQ(sizes_of(layer).workspace, 0);
  layer.device_kind = 1;
  EXPECT_GT(sizes_of(layer).workspace, 0);
}

// The reference on the CPU is for tests, which ask for it.
TEST(Fp8Api, TheEnvironmentAllowsTheReference) {
  setenv("OCTAVO_FP8_REFERENCE", "1", 1);
  EXPECT_EQ(octavo_fp8_supported(0, 0, 0), 0u);
  setenv("OCTAVO_FP8_REFERENCE", "0", 1);
  EXPECT_EQ(octavo_fp8_supported(0, 0, 0), 2u);
  unsetenv("OCTAVO_FP8_REFERENCE");
}

// On a GPU the sums of tiles of 128 rows lie in the caller's memory, then those of 32 of them, and so on.
TEST(Fp8Api, TheWorkspaceOfACastHoldsTheSumsOfTiles) {
  const auto bytes = [](uint32_t device, std::int64_t tokens) {
    octavo_fp8_layer layer = c_layer({1, tokens, 48, 64}, {});
    layer.device_kind = device;
    return sizes_of(layer).cast_workspace;
  };
  EXPECT_EQ(bytes(0, 16384), 0);
  EXPECT_EQ(bytes(1, 0), 0);
  EXPECT_EQ(bytes(1, 128), 4 * 64);
  EXPECT_EQ(bytes(1, 129), 4 * 64 * (2 + 1));
  EXPECT_EQ(bytes(1, 16384), 4 * 64 * (128 + 4 + 1));
}

TEST(Fp8Api, Refuses) {
  const fp8::Layer good{1, 37, 48, 32};
  const auto refused = [](octavo_status status, const std::string& message) {
    EXPECT_EQ(status, 1u) << message;
    EXPECT_THAT(octavo_last_error(), HasSubstr(message));
  };
  const octavo_fp8_layer layer = c_layer(good, {});
  octavo_fp8_layer other = layer;
  auto sizes = sized<octavo_fp8_sizes>();
  auto args = sized<octavo_fp8_run_args>();
  refused(octavo_fp8_layer_sizes(nullptr, &sizes), "layer: got null");
  refused(octavo_fp8_layer_sizes(&layer, nullptr), "sizes: got null");
  other.passes = 8;
  refused(octavo_fp8_layer_sizes(&other, &sizes), "layer.passes: got 8, expected 0 to 7");
  other = layer;
  other.struct_size = 4;
  refused(octavo_fp8_layer_sizes(&other, &sizes), "layer.struct_size: got 4");
  EXPECT_EQ(octavo_fp8_why_not(&other), nullptr);
  other = layer;
  other.inputs = 47;
  EXPECT_STREQ(octavo_fp8_why_not(&other), "inputs: got 47, expected a multiple of 16");
  refused(octavo_fp8_layer_sizes(&other, &sizes), "layer.inputs: got 47");
  other.inputs = INT64_MAX;
  refused(octavo_fp8_layer_sizes(&other, &sizes), "layer.inputs: got 9223372036854775807");
  other = layer;
  other.recipe = 4;
  refused(octavo_fp8_run(&other, &args), "recipe: got 4");
  other = layer;
  other.history = INT64_MAX;
  refused(octavo_fp8_run(&other, &args), "amax_history_len: got 9223372036854775807, expected 1 to 65536");
  refused(octavo_fp8_run(&layer, nullptr), "args: got null");
  float sums = 0.0f;
  args.bias_grad = &sums;
  refused(octavo_fp8_run(&layer, &args), "args.bias_grad: got a buffer, expected null");
  args.from[2] = &sums;
  refused(octavo_fp8_run(&layer, &args), "codes: got null");
  args = sized<octavo_fp8_run_args>();
  args.to[0] = &sums;
  refused(octavo_fp8_run(&layer, &args), "a.data: got null");
  EXPECT_EQ(octavo_fp8_run(&layer, &(args = sized<octavo_fp8_run_args>())), 0u) << "nothing is asked for";
  refused(octavo_fp8_update_scales(nullptr), "args: got null");
  auto update = sized<octavo_fp8_scale_args>();
  refused(octavo_fp8_update_scales(&update), "amax_history_len: got 0, expected 1 to 65536");
  update.length = 1;
  update.tensors = -1;
  refused(octavo_fp8_update_scales(&update), "tensors: got -1");
  auto times = sized<octavo_fp8_times>();
  refused(octavo_fp8_fastest(&times, nullptr), "passes: got null");
}

TEST(Fp8Api, TheFastestChoice) {
  auto times = sized<octavo_fp8_times>();
  times.casts_of_weight = 1.0;
  std::fill_n(times.plain, 3, 100.0);
  std::fill_n(times.fp8, 3, 50.0);
  std::fill_n(times.cast, 3, 10.0);
  std::fill_n(times.cast_two, 3, 15.0);
  uint32_t passes = 9;
  ASSERT_EQ(octavo_fp8_fastest(&times, &passes), 0u);
  EXPECT_EQ(passes, 7u);
  times.fp8[1] = 200.0;
  ASSERT_EQ(octavo_fp8_fastest(&times, &passes), 0u);
  EXPECT_EQ(passes, 5u);
}

}  // namespace
}  // namespace test
