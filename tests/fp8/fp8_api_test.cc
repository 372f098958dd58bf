// FP8's C functions: the numbers of the C++ ones, and what they refuse.
// SPDX-License-Identifier: MIT
#include "tests/fp8/layers.h"
#include "tests/support/c_structs.h"

#include <octavo/octavo.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  c.turned_weight = layer.turned_weight ? 1 : 0;
  return c;
}

// A whole layer through the C ABI, one step of delayed scaling included.
TEST(Fp8Api, EqualsPlainCastsAndProducts) {
  constexpr std::int64_t kLength = 4, kState = fp8::state_floats(kLength);
  for (const fp8::Recipe recipe : kRecipes) {
    const LayerTensors tensors({2, 32, 48, 64, false, true, true});
    const fp8::Settings settings{fp8::Format::hybrid, recipe, kLength};
    const octavo_fp8_layer layer = c_layer(tensors.layer, settings);
    EXPECT_STREQ(octavo_fp8_why_not(&layer), "");
    std::vector<float> states(static_cast<std::size_t>(3 * kState));
    std::array<Buffer, 3> codes, turned;
    for (uint32_t i = 0; i < 3; ++i) {
      states[static_cast<std::size_t>(i * kState)] = states[static_cast<std::size_t>(i * kState + 1)] = 1.0f;
      codes[i] = Buffer(octavo_fp8_codes_bytes(&layer, i, 0));
      turned[i] = Buffer(octavo_fp8_codes_bytes(&layer, i, 1));
    }
    for (const int step : {0, 1}) {  // the first one gathers maxima
      for (uint32_t i = 0; i < 3; ++i) {
        const Buffer from = tensors.memory(static_cast<Operand>(i));
        auto args = sized<octavo_fp8_cast_args>();
        args.operand = i;
        args.dtype = static_cast<uint32_t>(DType::bf16);
        args.from = from.data();
        args.codes = codes[i].size() > 0 ? codes[i].data() : nullptr;
        args.turned = turned[i].size() > 0 ? turned[i].data() : nullptr;
        args.scales = states.data() + i * kState;
        args.history = args.scales + 2;
        ASSERT_EQ(octavo_fp8_cast(&layer, &args), 0u) << octavo_last_error();
        EXPECT_EQ(*args.history, recipe == fp8::Recipe::delayed ? kMost : 0.0f);
      }
      if (step == 1) break;
      auto update = sized<octavo_fp8_scale_args>();
      update.states = states.data();
      update.tensors = 3;
      update.length = kLength;
      ASSERT_EQ(octavo_fp8_update_scales(&update), 0u) << octavo_last_error();
      EXPECT_EQ(states[1], recipe == fp8::Recipe::delayed ? scales_of_most()[1] : 1.0f);
    }
    for (uint32_t pass = 0; pass < 3; ++pass) {
      const fp8::Uses uses = fp8::uses(settings.format, static_cast<Pass>(pass));
      const auto buffer = [&](const fp8::Use& use) {
        return (use.turned ? turned : codes)[static_cast<std::size_t>(use.operand)].data();
      };
      int64_t sizes[3] = {};
      ASSERT_EQ(octavo_fp8_result(&layer, pass, sizes), 0u);
      const Buffer to(4 * sizes[0] * sizes[1] * sizes[2]);
      auto args = sized<octavo_fp8_product_args>();
      args.pass = pass;
      args.a = buffer(uses.a);
      args.b = buffer(uses.b);
      args.to = to.data();
      ASSERT_EQ(octavo_fp8_product(&layer, &args), 0u) << octavo_last_error();
      const std::vector<Dense> expected = plain_pass(tensors, settings, static_cast<Pass>(pass), DType::f32);
      ASSERT_EQ(std::ssize(expected), sizes[0]);
      for (std::size_t g = 0; g < expected.size(); ++g) {
        for (std::int64_t i = 0; i < expected[g].rows; ++i) {
          for (std::int64_t j = 0; j < expected[g].columns; ++j) {
            const std::int64_t row = pass == 2 ? j : i, column = pass == 2 ? i : j;
            const std::int64_t at = (static_cast<std::int64_t>(g) * sizes[1] + row) * sizes[2] + column;
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
  EXPECT_EQ(octavo_fp8_workspace_bytes(0, 0), 0);
  EXPECT_GT(octavo_fp8_workspace_bytes(1, 0), 0);
}

// On a GPU the sums of tiles of 128 rows lie in the caller's memory, then those of 32 of them, and so on.
TEST(Fp8Api, TheWorkspaceOfACastHoldsTheSumsOfTiles) {
  const auto bytes = [](uint32_t device, std::int64_t tokens) {
    octavo_fp8_layer layer = c_layer({1, tokens, 48, 64}, {});
    layer.device_kind = device;
    return octavo_fp8_cast_workspace_bytes(&layer);
  };
  EXPECT_EQ(bytes(0, 16384), 0);
  EXPECT_EQ(bytes(1, 0), 0);
  EXPECT_EQ(bytes(1, 128), 4 * 64);
  EXPECT_EQ(bytes(1, 129), 4 * 64 * (2 + 1));
  EXPECT_EQ(bytes(1, 16384), 4 * 64 * (128 + 4 + 1));
  EXPECT_EQ(octavo_fp8_cast_workspace_bytes(nullptr), -1);
}

// On a GPU bias_grad needs a workspace: tests/cuda/fp8_host_test.cc.
TEST(Fp8Api, ACastOnTheCpuNeedsNoWorkspace) {
  const LayerTensors tensors({1, 16, 16, 16});
  const octavo_fp8_layer layer = c_layer(tensors.layer, {fp8::Format::hybrid, fp8::Recipe::current});
  const Buffer from = tensors.memory(Operand::dy);
  const Buffer codes(octavo_fp8_codes_bytes(&layer, 2, 0)), turned(octavo_fp8_codes_bytes(&layer, 2, 1));
  std::vector<float> sums(16, -1.0f);
  auto args = sized<octavo_fp8_cast_args>();
  args.operand = 2;
  args.dtype = static_cast<uint32_t>(DType::bf16);
  args.from = from.data();
  args.codes = codes.data();
  args.turned = turned.data();
  args.bias_grad = sums.data();
  EXPECT_EQ(octavo_fp8_cast(&layer, &args), 0u) << octavo_last_error();
  EXPECT_NE(sums[0], -1.0f);
  --args.struct_size;
  EXPECT_EQ(octavo_fp8_cast(&layer, &args), 1u);
}

TEST(Fp8Api, Refuses) {
  const fp8::Layer good{1, 37, 48, 32};
  const auto refused = [](octavo_status status, const std::string& message) {
    EXPECT_EQ(status, 1u) << message;
    EXPECT_THAT(octavo_last_error(), HasSubstr(message));
  };
  const octavo_fp8_layer layer = c_layer(good, {});
  octavo_fp8_layer other = layer;
  int64_t sizes[3] = {};
  refused(octavo_fp8_result(nullptr, 0, sizes), "layer: got null");
  refused(octavo_fp8_result(&layer, 3, sizes), "pass: got 3, expected 0 to 2");
  refused(octavo_fp8_result(&layer, 0, nullptr), "sizes: got null");
  other.passes = 8;
  refused(octavo_fp8_result(&other, 0, sizes), "layer.passes: got 8, expected 0 to 7");
  other = layer;
  other.struct_size = 4;
  refused(octavo_fp8_result(&other, 0, sizes), "layer.struct_size: got 4");
  EXPECT_EQ(octavo_fp8_why_not(&other), nullptr);
  other = layer;
  other.inputs = 47;
  EXPECT_STREQ(octavo_fp8_why_not(&other), "inputs: got 47, expected a multiple of 16");
  EXPECT_EQ(octavo_fp8_codes_bytes(&other, 0, 0), -1);
  EXPECT_THAT(octavo_last_error(), HasSubstr("layer.inputs: got 47"));
  other.inputs = INT64_MAX;
  EXPECT_EQ(octavo_fp8_codes_bytes(&other, 0, 0), -1);
  EXPECT_EQ(octavo_fp8_codes_bytes(&layer, 3, 0), -1);
  EXPECT_THAT(octavo_last_error(), HasSubstr("operand: got 3"));
  other = layer;
  other.recipe = 4;
  refused(octavo_fp8_cast(&other, nullptr), "recipe: got 4");
  refused(octavo_fp8_cast(&layer, nullptr), "args: got null");
  refused(octavo_fp8_product(&layer, nullptr), "args: got null");
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
