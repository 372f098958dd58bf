// Wrong arguments of the codecs, the norm and the names, as in bad_input_test.cc.
// SPDX-License-Identifier: MIT
#include "optimizers/norm_group.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/moment.h"
#include "tests/support/random.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace test {
namespace {

using octavo::DType;
using octavo::Moment;
using octavo::MomentSpec;
using octavo::StateFormat;
using octavo::Status;
using octavo::StatusCode;

void expect_invalid(const Status& status, const std::string& argument) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << argument << ": " << status.message();
  EXPECT_NE(status.message().find(argument), std::string::npos) << argument << " in: " << status.message();
}

TEST(BadMoment, Spec) {
  const MomentSpec good{Moment::first, StateFormat::int8, 0, 300, {}, 0};
  const auto spoiled = [&](auto change) {
    MomentSpec spec = good;
    change(spec);
    return octavo::layout(spec).status();
  };
  ASSERT_TRUE(octavo::layout(good).ok());
  expect_invalid(spoiled([](auto& s) { s.numel = -1; }), "numel");
  expect_invalid(spoiled([](auto& s) { s.block_size = 33; }), "block_size");
  expect_invalid(
      spoiled([](auto& s) { s.format = static_cast<StateFormat>(octavo::all_state_formats().size()); }),
      "format");
  expect_invalid(spoiled([](auto& s) { s.moment = static_cast<Moment>(2); }), "moment");
  expect_invalid(spoiled([](auto& s) { s.ndim = 9; }), "ndim");
  expect_invalid(spoiled([](auto& s) { s.ndim = 1, s.shape = {299}; }), "shape");
}

TEST(BadMoment, SpansOfTheWrongSize) {
  for (const StateFormat format : octavo::all_state_formats()) {
    const MomentSpec spec{Moment::first, format, 0, 301, {}, 0};
    const EncodedBuffers out = make_buffers(spec);
    const EncodedBuffers before = out;
    std::vector<float> values(301, 1.0f);
    const std::vector<float> values_before = values;
    const auto codes = out.code_span();
    const auto scales = out.scale_span();
    expect_invalid(octavo::encode(spec, std::span(values).first(300), codes, scales), "values");
    expect_invalid(octavo::encode(spec, values, codes.first(codes.size() - 1), scales), "codes");
    expect_invalid(octavo::decode(spec, codes, scales, std::span(values).first(300)), "values");
    expect_invalid(octavo::decode(spec, codes.first(codes.size() - 1), scales, values), "codes");
    expect_invalid(octavo::inspect(spec, codes.first(0), scales, {}).status(), "codes");
    expect_invalid(octavo::inspect(spec, codes, scales, std::span(values).first(7)).status(), "reference");
    if (!scales.empty()) {
      expect_invalid(octavo::encode(spec, values, codes, scales.first(1)), "scales");
      expect_invalid(octavo::decode(spec, codes, scales.first(1), values), "scales");
    }
    EXPECT_TRUE(std::ranges::equal(out.codes.bytes(), before.codes.bytes()));
    EXPECT_TRUE(std::ranges::equal(out.scales.bytes(), before.scales.bytes()));
    EXPECT_EQ(values, values_before);
  }
}

TEST(BadMoment, MisalignedCodes) {
  for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16}) {
    const MomentSpec spec{Moment::first, format, 0, 100, {}, 0};
    const auto bytes = static_cast<std::size_t>(octavo::layout(spec).value().codes_bytes);
    Buffer buffer(static_cast<std::int64_t>(bytes) + 8);
    std::vector<float> values(100, 1.0f);
    const std::span<std::byte> codes{buffer.data() + 1, bytes};
    expect_invalid(octavo::encode(spec, values, codes, {}), "codes");
    expect_invalid(octavo::decode(spec, codes, {}, values), "codes");
    EXPECT_EQ(values, std::vector<float>(100, 1.0f));
    const std::span<std::byte> good{buffer.data(), bytes};
    const std::span<float> shifted{reinterpret_cast<float*>(reinterpret_cast<std::byte*>(values.data()) + 1),
                                   100};
    expect_invalid(octavo::encode(spec, shifted, good, {}), "values");
    expect_invalid(octavo::decode(spec, good, {}, shifted), "values");
    expect_invalid(octavo::inspect(spec, good, {}, shifted).status(), "reference");
  }
}

// A size that no buffer here can have is refused before anything is allocated for it.
TEST(BadMoment, HugeSizesDoNotThrow) {
  const MomentSpec spec{Moment::first, StateFormat::int8, 0, std::int64_t{1} << 47, {}, 0};
  std::vector<std::byte> codes(16);
  std::vector<float> scales(1);
  EXPECT_NO_THROW(expect_invalid(octavo::inspect(spec, codes, scales, {}).status(), "codes"));
  EXPECT_NO_THROW(expect_invalid(octavo::decode(spec, codes, scales, scales), "values"));
}

TEST(BadMoment, ConvertBetweenDifferentMoments) {
  const MomentSpec from{Moment::first, StateFormat::int8, 0, 100, {}, 0};
  const EncodedBuffers source = make_buffers(from);
  const auto convert = [&](const MomentSpec& to) {
    const EncodedBuffers target = make_buffers(to);
    return octavo::convert(from, source.code_span(), source.scale_span(), to, target.code_span(),
                           target.scale_span());
  };
  EXPECT_TRUE(convert({Moment::first, StateFormat::int4, 0, 100, {}, 0}).ok());
  expect_invalid(convert({Moment::second, StateFormat::int4, 0, 100, {}, 0}), "moment");
  expect_invalid(convert({Moment::first, StateFormat::int4, 0, 99, {}, 0}), "numel");
}

TEST(BadGradNorm, NamesTheArgument) {
  Buffer data(400);
  std::vector<double> workspace(100);
  const octavo::GradView good{data.data(), DType::f32, 100};
  ASSERT_TRUE(octavo::grad_norm({&good, 1}, workspace, 1).ok());
  const auto norm = [&](octavo::GradView view, int threads = 1) {
    return octavo::grad_norm({&view, 1}, workspace, threads).status();
  };
  expect_invalid(norm({nullptr, DType::f32, 100}), "data");
  expect_invalid(norm({data.data() + 2, DType::f32, 99}), "data");
  expect_invalid(norm({data.data() + 1, DType::bf16, 99}), "data");
  expect_invalid(norm({data.data(), DType::f32, -1}), "numel");
  expect_invalid(norm({data.data(), static_cast<DType>(3), 100}), "dtype");
  expect_invalid(norm(good, -2), "threads");
  expect_invalid(octavo::grad_norm({&good, 1}, {}, 1).status(), "workspace");
  EXPECT_TRUE(norm({nullptr, DType::f32, 0}).ok());
}

TEST(Names, ParseIsTheInverseOfName) {
  for (const auto value : octavo::all_dtypes())
    EXPECT_EQ(octavo::parse_dtype(octavo::name(value)).value(), value);
  for (const auto value : octavo::all_state_formats()) {
    EXPECT_EQ(octavo::parse_state_format(octavo::name(value)).value(), value);
  }
  for (const auto value : octavo::all_weight_stores()) {
    EXPECT_EQ(octavo::parse_weight_store(octavo::name(value)).value(), value);
  }
  for (const auto value : octavo::all_algorithms())
    EXPECT_EQ(octavo::parse_algorithm(octavo::name(value)).value(), value);
  EXPECT_EQ(octavo::name(StateFormat::int8), "8bit");
  EXPECT_EQ(octavo::name(StateFormat::int4), "4bit");
  EXPECT_EQ(octavo::name(StateFormat::int4_rank1), "4bit-rank1");
  EXPECT_EQ(octavo::name(StateFormat::fp8_e4m3), "fp8");
  EXPECT_EQ(octavo::name(StateFormat::fp8_e5m2), "fp8-e5m2");
}

TEST(Names, UnknownOnesListTheKnown) {
  expect_invalid(octavo::parse_dtype("int32").status(), "int32");
  expect_invalid(octavo::parse_state_format("3bit").status(), "8bit");
  expect_invalid(octavo::parse_weight_store("").status(), "nearest");
  expect_invalid(octavo::parse_algorithm("muon").status(), "lion");
}

TEST(Implementation, UnknownOrUnsupportedIsAnError) {
  expect_invalid(octavo::force_implementation("mmx"), "mmx");
  EXPECT_TRUE(octavo::implementation().ok());  // the failed call changed nothing
  for (const octavo::Implementation& implementation : octavo::implementations()) {
    const Status status = octavo::force_implementation(implementation.name);
    EXPECT_EQ(status.code(), implementation.supported ? StatusCode::ok : StatusCode::unsupported);
    if (status.ok()) {
      EXPECT_EQ(octavo::implementation().value(), implementation.name);
    }
  }
  EXPECT_TRUE(octavo::force_implementation("").ok());
  EXPECT_EQ(octavo::implementations().back().name, "scalar");
}

// The environment is read once per process, so each case has a process of its own.
TEST(ImplementationDeathTest, TheEnvironmentIsObeyedOrRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto choose = [](const char* name) {
    setenv("OCTAVO_FORCE_IMPL", name, 1);
    const auto chosen = octavo::implementation();
    octavo::StepArgs args;
    args.step = 1;
    const bool steps = step({}, {}, args).ok();
    if (chosen.ok())
      std::fprintf(stderr, "using %s, steps %d\n", std::string(*chosen).c_str(), steps ? 1 : 0);
    if (!chosen.ok())
      std::fprintf(stderr, "%s; steps %d\n", chosen.status().message().c_str(), steps ? 1 : 0);
    std::exit(chosen.ok() ? 0 : 3);
  };
  EXPECT_EXIT(choose("scalar"), testing::ExitedWithCode(0), "using scalar, steps 1");
  EXPECT_EXIT(choose("avx9000"), testing::ExitedWithCode(3), "OCTAVO_FORCE_IMPL.*avx9000.*scalar.*steps 0");
}

TEST(Threads, DefaultIsPositiveAndChecked) {
  const int threads = octavo::default_threads();
  EXPECT_GE(threads, 1);
  expect_invalid(octavo::set_default_threads(-1), "threads");
  EXPECT_EQ(octavo::default_threads(), threads);
  EXPECT_TRUE(octavo::set_default_threads(3).ok());
  EXPECT_EQ(octavo::default_threads(), 3);
  EXPECT_TRUE(octavo::set_default_threads(threads).ok());
}

// What the documentation promises for Adam's two moments, in bytes per parameter.
TEST(Layout, BytesPerParameter) {
  const auto bytes = [](StateFormat format) {
    octavo::TensorSpec spec;
    spec.numel = 1 << 20;
    spec.format = format;
    return static_cast<double>(octavo::layout(octavo::GroupConfig{}, spec).value().state_bytes()) / (1 << 20);
  };
  EXPECT_EQ(bytes(StateFormat::fp32), 8.0);
  EXPECT_EQ(bytes(StateFormat::bf16), 4.0);
  EXPECT_EQ(bytes(StateFormat::int8), 2.0 + 8.0 / 256);
  EXPECT_EQ(bytes(StateFormat::int4), 1.0 + 8.0 / 128);
  EXPECT_EQ(bytes(StateFormat::fp8_e4m3), 2.0 + 8.0 / 256);
  EXPECT_EQ(bytes(StateFormat::fp8_e5m2), 2.0 + 8.0 / 256);
  EXPECT_EQ(bytes(StateFormat::int4_int8), 1.5 + 8.0 / 128);
}

TEST(FormatFor, SmallParametersAreNotQuantized) {
  for (const StateFormat wanted : octavo::all_state_formats()) {
    const bool blocks = octavo::default_block_size(wanted) > 0;
    EXPECT_EQ(octavo::format_for(wanted, 4095).value(), blocks ? StateFormat::fp32 : wanted);
    EXPECT_EQ(octavo::format_for(wanted, 4096).value(), wanted);
    EXPECT_EQ(octavo::format_for(wanted, 10, 5).value(), wanted);
    EXPECT_EQ(octavo::format_for(wanted, 0, 0).value(), wanted);
  }
}

TEST(FormatFor, ScalesOfTheWholeParameterCannotBeSharded) {
  const auto bad = octavo::format_for(StateFormat::int4_rank1, 5000, 4096, true);
  EXPECT_EQ(bad.status().message(),
            "[format_for] a sharded parameter cannot have '4bit-rank1' states: use '4bit'");
  EXPECT_EQ(octavo::format_for(StateFormat::int4_rank1, 50, 4096, true).value(), StateFormat::fp32);
  EXPECT_EQ(octavo::format_for(StateFormat::int4, 5000, 4096, true).value(), StateFormat::int4);
  EXPECT_FALSE(octavo::format_for(StateFormat::int4, -1).ok());
  EXPECT_FALSE(octavo::format_for(static_cast<StateFormat>(99), 1).ok());
}

}  // namespace
}  // namespace test
