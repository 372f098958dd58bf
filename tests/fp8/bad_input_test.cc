// Casts, scale updates and matmuls reject invalid arguments with name, value and limit, and write nothing.
// SPDX-License-Identifier: MIT
#include "tests/fp8/matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <octavo/backend.h>

#include <array>
#include <cmath>
#include <string>
#include <tuple>

namespace test {
namespace {

using fp8::CastArgs;
using fp8::MatmulArgs;
using octavo::Status;
using octavo::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

void expect_refused(const Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
  EXPECT_THAT(status.message(), HasSubstr("[fp8] " + message));
}

struct CastCall {
  std::array<float, 6> from{1, 2, 3, 4, 5, 6};
  std::array<std::uint8_t, 256> codes{}, transposed{};
  float scale = 1.0f, inverse = 7.0f, transposed_inverse = 7.0f, amax = 0.0f;
  std::array<float, 3> sums{};

  CastArgs args() {
    CastArgs args;
    args.from = from.data();
    args.rows = 2;
    args.columns = 3;
    args.by_rows = {fp8::Element::e4m3, codes.data(), &inverse, &scale};
    args.transposed = {fp8::Element::e4m3, transposed.data(), &transposed_inverse, &scale};
    args.amax = &amax;
    return args;
  }
};

template <class Change>
void refuse_cast(const std::string& message, Change&& change) {
  CastCall call;
  CastArgs args = call.args();
  change(call, args);
  expect_refused(fp8::cast(args), message);
  EXPECT_EQ(call.codes[0], 0);
  EXPECT_EQ(call.transposed[0], 0);
  EXPECT_EQ(call.inverse, 7.0f);
}

TEST(Fp8BadInput, Casts) {
  CastCall good;
  ASSERT_TRUE(fp8::cast(good.args()).ok());
  refuse_cast("rows: got -1, expected at least 0", [](CastCall&, CastArgs& a) { a.rows = -1; });
  refuse_cast("columns: got -3", [](CastCall&, CastArgs& a) { a.columns = -3; });
  refuse_cast("columns: got 281474976710656, expected groups * rows * columns of at most 2^48",
              [](CastCall&, CastArgs& a) { a.columns = std::int64_t{1} << 48; });
  refuse_cast("rows: got 9223372036854775807, expected at most 2^48",
              [](CastCall&, CastArgs& a) { a.rows = INT64_MAX; });
  refuse_cast("dtype: got 9", [](CastCall&, CastArgs& a) { a.dtype = static_cast<octavo::DType>(9); });
  refuse_cast("recipe: got 4", [](CastCall&, CastArgs& a) { a.recipe = static_cast<fp8::Recipe>(4); });
  refuse_cast("operand: got 3, expected one of 0 (x), 1 (w), 2 (dy)",
              [](CastCall&, CastArgs& a) { a.operand = static_cast<fp8::Operand>(3); });
  refuse_cast("activation: got 4",
              [](CastCall&, CastArgs& a) { a.activation = static_cast<fp8::Activation>(4); });
  refuse_cast("transposed.element: got 2, expected one of 0 (e4m3), 1 (e5m2)",
              [](CastCall&, CastArgs& a) { a.transposed.element = static_cast<fp8::Element>(2); });
  refuse_cast("bias_grad: got a buffer together with the activation silu", [](CastCall& c, CastArgs& a) {
    a.bias_grad = c.sums.data();
    a.activation = fp8::Activation::silu;
  });
  refuse_cast("by_rows.data: got null, like transposed.data",
              [](CastCall&, CastArgs& a) { a.by_rows.data = a.transposed.data = nullptr; });
  refuse_cast("from: got null, expected a buffer of 24 bytes",
              [](CastCall&, CastArgs& a) { a.from = nullptr; });
  refuse_cast("by_rows.inverse: got null", [](CastCall&, CastArgs& a) { a.by_rows.inverse = nullptr; });
  refuse_cast("transposed.scale: got null", [](CastCall&, CastArgs& a) { a.transposed.scale = nullptr; });
  refuse_cast("from: got an address that is not a multiple of 4",
              [](CastCall& c, CastArgs& a) { a.from = reinterpret_cast<const char*>(c.from.data()) + 1; });
  refuse_cast("transposed.data: overlaps by_rows.data",
              [](CastCall& c, CastArgs& a) { a.transposed.data = c.codes.data() + 255; });
  refuse_cast("amax: overlaps by_rows.scale", [](CastCall& c, CastArgs& a) { a.amax = &c.scale; });
  for (const float scale : {0.0f, -1.0f, static_cast<float>(INFINITY), static_cast<float>(NAN)}) {
    refuse_cast("by_rows.scale: got ", [&](CastCall& c, CastArgs&) { c.scale = scale; });
  }
  refuse_cast("threads: got -1", [](CastCall&, CastArgs& a) { a.threads = -1; });
  refuse_cast("stream: got a stream", [](CastCall& c, CastArgs& a) { a.stream = &c; });
  refuse_cast("device.index: got 1 for the CPU", [](CastCall&, CastArgs& a) { a.device.index = 1; });
}

TEST(Fp8BadInput, AMatrixWithoutElementsIsNotTouched) {
  CastCall call;
  CastArgs args = call.args();
  args.rows = 0;
  args.from = nullptr;
  EXPECT_TRUE(fp8::cast(args).ok());
  EXPECT_EQ(call.inverse, 7.0f);
}

TEST(Fp8BadInput, AGpuDoesNotTakeTheHostsMemory) {
  CastCall call;
  CastArgs cast = call.args();
  cast.device = {octavo::DeviceKind::cuda, 0};
  EXPECT_FALSE(fp8::cast(cast).ok());
  EXPECT_EQ(call.inverse, 7.0f);
}

TEST(Fp8BadInput, TheCpuHasNoFp8Units) {
  const Status status = fp8::supported(octavo::Device{});
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_THAT(status.message(), HasSubstr("device: got cpu, expected a GPU of compute capability 8.9"));
  EXPECT_FALSE(fp8::supported(octavo::Device{octavo::DeviceKind::cuda, 99}).ok());
}

TEST(Fp8BadInput, ScalesOfRowsAndBlocksNeedHopper) {
  octavo::GpuInfo gpu;
  gpu.name = "a card", gpu.usable = true, gpu.fp8_hardware = true;
  for (const auto& [major, minor, hopper] :
       {std::tuple(8, 9, false), std::tuple(9, 0, true), std::tuple(12, 0, false)}) {
    gpu.compute_major = major, gpu.compute_minor = minor;
    for (const auto recipe : {fp8::Recipe::delayed, fp8::Recipe::current})
      EXPECT_TRUE(fp8::supported(gpu, recipe).ok());
    for (const auto recipe : {fp8::Recipe::rowwise, fp8::Recipe::block})
      EXPECT_EQ(fp8::supported(gpu, recipe).ok(), hopper);
  }
  EXPECT_THAT(fp8::supported(gpu, fp8::Recipe::block).message(),
              AllOf(HasSubstr("a card, compute capability 12.0"), HasSubstr("scales of block"),
                    HasSubstr("the recipe delayed or current")));
  gpu.compute_major = 8, gpu.compute_minor = 6, gpu.fp8_hardware = false;
  EXPECT_THAT(fp8::supported(gpu).message(), HasSubstr("compute capability 8.6), expected a GPU of"));
}

TEST(Fp8BadInput, ScaleUpdates) {
  const std::array<float, 8> before = {1.0f, 1.0f, 2.0f, 3.0f, 1.0f, 1.0f, 2.0f, 3.0f};
  const auto refused = [&](const std::string& message, auto&& change) {
    std::array<float, 8> states = before;
    fp8::ScaleUpdate update;
    update.states = states.data();
    update.tensors = 2;
    update.length = 2;
    change(update);
    expect_refused(fp8::update_scales(update), message);
    EXPECT_EQ(states, before);
  };
  refused("amax_history_len: got 0, expected 1 to 65536", [](fp8::ScaleUpdate& u) { u.length = 0; });
  refused("margin: got 17", [](fp8::ScaleUpdate& u) { u.margin = 17; });
  refused("amax_compute_algo: got 5", [](fp8::ScaleUpdate& u) { u.algo = static_cast<fp8::AmaxAlgo>(5); });
  refused("tensors: got -1, expected 0 to", [](fp8::ScaleUpdate& u) { u.tensors = -1; });
  refused("states: got null, expected a buffer of 32 bytes", [](fp8::ScaleUpdate& u) { u.states = nullptr; });
}

struct MatmulCall {
  std::array<std::uint8_t, 256> a{}, b{};
  std::array<float, 16> scales{};
  std::array<float, 256> to{};

  MatmulArgs args() {
    MatmulArgs args;
    args.a = args.b = {fp8::Element::e4m3, fp8::Tiling::tensor, 16, 16, a.data(), scales.data()};
    args.b.data = b.data();
    args.to = to.data();
    args.dtype = octavo::DType::f32;
    return args;
  }
};

template <class Change>
void refuse_matmul(const std::string& message, Change&& change) {
  MatmulCall call;
  call.to.fill(7.0f);
  MatmulArgs args = call.args();
  change(call, args);
  expect_refused(fp8::matmul(args), message);
  EXPECT_EQ(call.to[0], 7.0f);
}

TEST(Fp8BadInput, Matmuls) {
  MatmulCall good;
  ASSERT_TRUE(fp8::matmul(good.args()).ok());
  refuse_matmul("a.rows: got 15, expected a multiple of 16",
                [](MatmulCall&, MatmulArgs& a) { a.a.rows = 15; });
  refuse_matmul("b.rows: got 8, expected a multiple of 16", [](MatmulCall&, MatmulArgs& a) { a.b.rows = 8; });
  refuse_matmul("a.inner: got 17, expected a multiple of 16",
                [](MatmulCall&, MatmulArgs& a) { a.a.inner = 17; });
  refuse_matmul("b.inner: got -16", [](MatmulCall&, MatmulArgs& a) { a.b.inner = -16; });
  refuse_matmul("b.rows: got 1099511627776",
                [](MatmulCall&, MatmulArgs& a) { a.b.rows = std::int64_t{1} << 40; });
  refuse_matmul("b.inner: got 32, expected 16, that of a",
                [](MatmulCall&, MatmulArgs& a) { a.b.inner = 32; });
  refuse_matmul("dtype: got 3", [](MatmulCall&, MatmulArgs& a) { a.dtype = static_cast<octavo::DType>(3); });
  refuse_matmul("b.element: got e5m2 like a.element",
                [](MatmulCall&, MatmulArgs& a) { a.a.element = a.b.element = fp8::Element::e5m2; });
  refuse_matmul("a.element: got 2",
                [](MatmulCall&, MatmulArgs& a) { a.a.element = static_cast<fp8::Element>(2); });
  refuse_matmul("b.tiling: got row with an a.tiling of tensor",
                [](MatmulCall&, MatmulArgs& a) { a.b.tiling = fp8::Tiling::row; });
  refuse_matmul("b.tiling: got tile_128x128 with an a.tiling of tile_128x128",
                [](MatmulCall&, MatmulArgs& a) { a.a.tiling = a.b.tiling = fp8::Tiling::tile_128x128; });
  refuse_matmul("b.tiling: got tensor with an a.tiling of tile_1x128",
                [](MatmulCall&, MatmulArgs& a) { a.a.tiling = fp8::Tiling::tile_1x128; });
  refuse_matmul("a.tiling: got 4",
                [](MatmulCall&, MatmulArgs& a) { a.a.tiling = static_cast<fp8::Tiling>(4); });
  refuse_matmul("a.data: got null, expected a buffer of 256 bytes",
                [](MatmulCall&, MatmulArgs& a) { a.a.data = nullptr; });
  refuse_matmul("b.inverse: got null", [](MatmulCall&, MatmulArgs& a) { a.b.inverse = nullptr; });
  refuse_matmul("to: got null, expected a buffer of 1024 bytes",
                [](MatmulCall&, MatmulArgs& a) { a.to = nullptr; });
  refuse_matmul("to: overlaps b.inverse", [](MatmulCall& c, MatmulArgs& a) { a.b.inverse = &c.to[3]; });
  refuse_matmul("threads: got 5000", [](MatmulCall&, MatmulArgs& a) { a.threads = 5000; });
}

}  // namespace
}  // namespace test
