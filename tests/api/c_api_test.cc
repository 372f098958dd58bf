// The C ABI: the same bytes as the C++ API, struct sizes, null arguments, error strings per thread.
// SPDX-License-Identifier: MIT
#include "optimizers/norm_group.h"
#include "tests/support/buffers.h"
#include "tests/support/c_structs.h"
#include "tests/support/cases.h"
#include "tests/support/moment.h"
#include "tests/support/random.h"

#include <octavo/octavo.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>

namespace test {
namespace {

constexpr octavo_status kInvalid = 1;
constexpr octavo_status kUnsupported = 2;

TensorSet small_set(const OptimizerCase& optimizer, octavo::StateFormat format) {
  octavo::TensorSpec matrix =
      tensor_spec(30 * 40, octavo::DType::bf16, octavo::DType::f16, octavo::WeightStore::residual8, format);
  matrix.shape = {30, 40};
  matrix.ndim = 2;
  const octavo::TensorSpec vector = tensor_spec(77, octavo::DType::f32, octavo::DType::f32,
                                                octavo::WeightStore::nearest, octavo::StateFormat::fp32);
  const std::vector<octavo::TensorSpec> specs = {matrix, vector};
  return {optimizer.config, specs, 15};
}

// The structs that have grown since, as the first header had them.
struct FirstGroupConfig {
  uint32_t struct_size, algorithm, amsgrad, momentum;
};
struct FirstStepArgs {
  uint32_t struct_size, guard;
  int32_t threads;
  uint32_t nesterov, maximize, decay;
  int64_t step;
  uint64_t seed;
  double lr, beta1, beta2, eps, weight_decay, momentum, dampening, grad_factor;
  void* workspace;
  int64_t workspace_bytes;
};
struct FirstStepReport {
  uint32_t struct_size, skipped;
  int64_t nonfinite;
};

TEST(CApi, StepEqualsTheCppStep) {
  for (const OptimizerCase& optimizer : optimizers(true)) {
    for (const octavo::StateFormat format : octavo::all_state_formats()) {
      TensorSet cpp = small_set(optimizer, format);
      TensorSet c = cpp;
      const octavo_group_config config = c_config(optimizer.config);
      const std::vector<octavo_tensor> tensors = c_tensors(c);
      octavo_group* group = nullptr;
      ASSERT_EQ(octavo_group_create(&config, tensors.data(), 2, &group), 0u) << octavo_last_error();
      std::vector<double> workspace(static_cast<std::size_t>(octavo_group_workspace_bytes(group) / 8 + 2));
      for (int i = 1; i <= 3; ++i) {
        octavo_step_args args = c_step_args(step_args(optimizer, i));
        args.workspace = workspace.data();
        args.workspace_bytes = octavo_group_workspace_bytes(group);
        auto report = sized<octavo_step_report>();
        ASSERT_EQ(octavo_group_step(group, &args, &report), 0u) << octavo_last_error();
        EXPECT_EQ(report.skipped, 0u);
        ASSERT_TRUE(cpp.step(step_args(optimizer, i)).ok());
      }
      EXPECT_EQ(c.difference(cpp), "") << optimizer.name << " " << octavo::name(format);
      octavo_group_destroy(group);
    }
  }
  octavo_group_destroy(nullptr);
}

TEST(CApi, LayoutEqualsTheCppLayout) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const octavo::StateFormat format : octavo::all_state_formats()) {
      const TensorSet set = small_set(optimizer, format);
      const octavo_group_config config = c_config(optimizer.config);
      const octavo_tensor tensor = c_tensors(set)[0];
      auto got = sized<octavo_tensor_layout>();
      ASSERT_EQ(octavo_layout(&config, &tensor.spec, &got), 0u);
      const octavo::TensorLayout& expected = set.tensors()[0].layout;
      EXPECT_EQ(got.slots, expected.slots);
      EXPECT_EQ(got.residual_bytes, expected.residual_bytes);
      EXPECT_EQ(got.workspace_bytes, expected.workspace_bytes);
      for (std::size_t slot = 0; slot < 3; ++slot) {
        EXPECT_EQ(got.codes_bytes[slot], expected.slot[slot].codes_bytes);
        EXPECT_EQ(got.scales[slot], expected.slot[slot].scales);
      }
      EXPECT_EQ(got.struct_size, sizeof got);
    }
  }
}

TEST(CApi, CodecsEqualTheCppOnes) {
  for (const octavo::StateFormat format : octavo::all_state_formats()) {
    const octavo::MomentSpec cpp{octavo::Moment::second, format, 0, 1001, {}, 0};
    auto spec = sized<octavo_moment_spec>();
    spec.moment = 1;
    spec.format = static_cast<uint32_t>(format);
    spec.numel = 1001;
    auto values = spread_values(1001, 3);
    make_second_moment(values);
    const EncodedBuffers expected = encode(cpp, values);
    const EncodedBuffers got = make_buffers(cpp);
    int64_t codes_bytes = -1, scales = -1;
    ASSERT_EQ(octavo_moment_layout(&spec, &codes_bytes, &scales), 0u);
    EXPECT_EQ(codes_bytes, got.codes.size());
    EXPECT_EQ(4 * scales, got.scales.size());
    ASSERT_EQ(octavo_encode(&spec, values.data(), got.codes.data(), got.scales.as<float>()), 0u)
        << octavo_last_error();
    EXPECT_TRUE(std::ranges::equal(got.codes.bytes(), expected.codes.bytes()));
    EXPECT_TRUE(std::ranges::equal(got.scales.bytes(), expected.scales.bytes()));
    std::vector<float> decoded(1001);
    ASSERT_EQ(octavo_decode(&spec, got.codes.data(), got.scales.as<float>(), decoded.data()), 0u);
    EXPECT_EQ(decoded, decode(cpp, expected));
    auto report = sized<octavo_moment_report>();
    ASSERT_EQ(octavo_inspect(&spec, got.codes.data(), got.scales.as<float>(), values.data(), &report), 0u);
    EXPECT_EQ(report.bytes, got.codes.size() + got.scales.size());
    octavo_moment_spec wide = spec;
    wide.format = 0;
    std::vector<float> converted(1001);
    ASSERT_EQ(
        octavo_convert(&spec, got.codes.data(), got.scales.as<float>(), &wide, converted.data(), nullptr),
        0u);
    EXPECT_EQ(converted, decoded);
  }
}

TEST(CApi, GradNormEqualsTheCppOne) {
  const auto values = spread_values(100001, 4);
  const octavo_grad_view view{values.data(), 0, 0, 100001};
  const octavo::GradView cpp_view{values.data(), octavo::DType::f32, 100001};
  std::vector<double> workspace(static_cast<std::size_t>(octavo_grad_norm_workspace(&view, 1)));
  EXPECT_EQ(octavo_grad_norm_workspace(&view, 1), octavo::grad_norm_workspace({&cpp_view, 1}));
  auto result = sized<octavo_grad_norm_result>();
  ASSERT_EQ(octavo_grad_norm(&view, 1, workspace.data(), static_cast<int64_t>(workspace.size()), 2, &result),
            0u);
  const auto expected = octavo::grad_norm({&cpp_view, 1}, workspace, 1).value();
  EXPECT_EQ(result.l2, expected.l2);
  EXPECT_EQ(result.max, expected.max);
  EXPECT_EQ(result.nonfinite, 0);
  EXPECT_EQ(octavo_clip_factor(3.0, 1.5, 0.5), octavo::clip_factor(3.0, 1.5, 0.5));
  EXPECT_LT(octavo_grad_norm_workspace(nullptr, 1), 0);
  EXPECT_LT(octavo_grad_norm_workspace(&view, -1), 0);
}

TEST(CApi, DefaultsAreTheCppDefaults) {
  octavo_step_args args;
  std::memset(&args, 0xFF, sizeof args);
  octavo_step_args_init(&args);
  EXPECT_EQ(args.struct_size, sizeof args);
  EXPECT_EQ(args.lr, 1e-3);
  EXPECT_EQ(args.beta1, 0.9);
  EXPECT_EQ(args.beta2, 0.999);
  EXPECT_EQ(args.eps, 1e-8);
  EXPECT_EQ(args.grad_factor, 1.0);
  EXPECT_EQ(args.weight_decay, 0.0);
  EXPECT_EQ(args.step, 0);
  EXPECT_EQ(args.decay, 0u);
  EXPECT_EQ(args.workspace, nullptr);
  EXPECT_EQ(args.stream, nullptr);
  EXPECT_EQ(args.max_norm, 0.0);
  EXPECT_EQ(args.scalar_lr, nullptr);
  EXPECT_EQ(args.scalar_report, nullptr);
}

// A program compiled against the first header: its structs are shorter, and nothing beyond them may be
// touched.
TEST(CApi, CallersOfTheFirstHeaderStillWork) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set = small_set(adamw, octavo::StateFormat::int8);
  TensorSet expected = set;
  const Buffer config_bytes(sizeof(FirstGroupConfig));
  const Buffer args_bytes(sizeof(FirstStepArgs));
  const Buffer report_bytes(sizeof(FirstStepReport));

  *config_bytes.as<FirstGroupConfig>() = {sizeof(FirstGroupConfig), 1, 0, 1};
  const auto* config = config_bytes.as<octavo_group_config>();
  const std::vector<octavo_tensor> tensors = c_tensors(set);
  octavo_group* group = nullptr;
  ASSERT_EQ(octavo_group_create(config, tensors.data(), 2, &group), 0u) << octavo_last_error();
  auto layout = sized<octavo_tensor_layout>();
  EXPECT_EQ(octavo_layout(config, &tensors[0].spec, &layout), 0u) << octavo_last_error();

  // In parentheses this names the function, which such a program calls; today the name is a macro.
  (octavo_step_args_init)(args_bytes.as<octavo_step_args>());
  auto* args = args_bytes.as<FirstStepArgs>();
  EXPECT_EQ(args->struct_size, sizeof(FirstStepArgs));
  EXPECT_EQ(args->beta2, 0.999);
  EXPECT_EQ(args->grad_factor, 1.0);
  octavo::StepArgs cpp;
  args->step = cpp.step = 1;
  args->threads = cpp.threads = 1;
  args->guard = 1;
  args->lr = cpp.hyper.lr = 0.02;
  auto* report = report_bytes.as<FirstStepReport>();
  report->struct_size = sizeof *report;
  report->skipped = 7;
  ASSERT_EQ(
      octavo_group_step(group, args_bytes.as<octavo_step_args>(), report_bytes.as<octavo_step_report>()), 0u)
      << octavo_last_error();
  EXPECT_EQ(report->struct_size, sizeof *report);
  EXPECT_EQ(report->skipped, 0u);
  EXPECT_TRUE(config_bytes.surroundings_intact());
  EXPECT_TRUE(args_bytes.surroundings_intact());
  EXPECT_TRUE(report_bytes.surroundings_intact());
  ASSERT_TRUE(expected.step(cpp).ok());
  EXPECT_EQ(set.difference(expected), "");

  for (uint32_t* size : {&args->struct_size, &report->struct_size}) {  // less than the first version had
    --*size;
    EXPECT_EQ(
        octavo_group_step(group, args_bytes.as<octavo_step_args>(), report_bytes.as<octavo_step_report>()),
        kInvalid);
    ++*size;
  }
  octavo_group_destroy(group);
}

TEST(CApi, ScalarsEqualTheCppOnes) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (const float found_inf : {0.0f, 1.0f}) {
    TensorSet cpp = small_set(adamw, octavo::StateFormat::int4);
    TensorSet c = cpp;
    struct Memory {
      float lr = 0.02f, loss_scale = 768.0f, found_inf = 0.0f;
      int64_t step = 6;
      octavo::GradNorm norm{10.0, 3.0, 2};
      octavo::StepReport report{true, true, 99};
    };
    Memory memory[2];
    const auto args_over = [&](Memory& m) {
      m.found_inf = found_inf;
      octavo::StepArgs args = step_args(adamw, 0);
      args.max_norm = 0.001;
      args.scalars = {&m.lr, &m.step, &m.loss_scale, &m.found_inf, &m.norm, &m.report};
      return args;
    };
    const auto expected = cpp.step(args_over(memory[0]));
    ASSERT_TRUE(expected.ok()) << expected.status().message();
    const octavo_group_config config = c_config(adamw.config);
    const std::vector<octavo_tensor> tensors = c_tensors(c);
    octavo_group* group = nullptr;
    ASSERT_EQ(octavo_group_create(&config, tensors.data(), 2, &group), 0u) << octavo_last_error();
    octavo_step_args args = c_step_args(args_over(memory[1]));
    octavo_device_report seen{1, 1, {}, 99};
    args.scalar_report = &seen;
    auto report = sized<octavo_step_report>();
    report.pending = 7;
    ASSERT_EQ(octavo_group_step(group, &args, &report), 0u) << octavo_last_error();
    EXPECT_EQ(c.difference(cpp), "");
    EXPECT_EQ(memory[1].step, memory[0].step);
    EXPECT_EQ(memory[1].step, found_inf == 0.0f ? 7 : 6);
    EXPECT_EQ(report.skipped, expected->skipped ? 1u : 0u);
    EXPECT_EQ(report.skipped, found_inf == 0.0f ? 0u : 1u);
    EXPECT_EQ(report.pending, 0u);
    EXPECT_EQ(seen.skipped, report.skipped);
    EXPECT_EQ(seen.pending, 0);
    EXPECT_EQ(seen.nonfinite, 0);

    args.guard = 1;  // the count of the norm decides
    ASSERT_EQ(octavo_group_step(group, &args, &report), 0u) << octavo_last_error();
    EXPECT_EQ(report.skipped, 1u);
    EXPECT_EQ(report.nonfinite, 2);
    EXPECT_EQ(seen.nonfinite, 2);
    EXPECT_EQ(c.difference(cpp), "");
    octavo_group_destroy(group);
  }
}

TEST(CApi, RebindGradsIsTheCppOne) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set = small_set(adamw, octavo::StateFormat::int8);
  TensorSet other = set;
  other.fill_grads(123);
  const octavo_group_config config = c_config(adamw.config);
  const std::vector<octavo_tensor> tensors = c_tensors(set);
  octavo_group* group = nullptr;
  ASSERT_EQ(octavo_group_create(&config, tensors.data(), 2, &group), 0u) << octavo_last_error();
  const void* const grads[] = {other.tensors()[0].grad.data(), other.tensors()[1].grad.data()};
  EXPECT_EQ(octavo_group_rebind_grads(group, grads, 1), kInvalid);
  ASSERT_EQ(octavo_group_rebind_grads(group, grads, 2), 0u) << octavo_last_error();
  const octavo_step_args args = c_step_args(step_args(adamw, 1));
  ASSERT_EQ(octavo_group_step(group, &args, nullptr), 0u) << octavo_last_error();
  octavo_group_destroy(group);
  ASSERT_TRUE(other.step(step_args(adamw, 1)).ok());
  EXPECT_EQ(set.difference(other), "");
}

TEST(CApi, NormEqualsGradNorm) {
  const auto values = spread_values(100001, 4);
  const auto others = spread_values(5000, 5);
  const octavo_grad_view views[] = {{values.data(), 0, 0, 100001}, {others.data(), 0, 0, 5000}};
  octavo_norm* norm = nullptr;
  ASSERT_EQ(octavo_norm_create(0, 0, views, 1, &norm), 0u) << octavo_last_error();
  for (const int64_t count : {1, 2}) {
    ASSERT_EQ(octavo_norm_rebind(norm, views, count), 0u) << octavo_last_error();
    const Buffer workspace(octavo_norm_workspace_bytes(norm));
    octavo_device_norm got{-1.0, -1.0, -1};
    ASSERT_EQ(octavo_norm_run(norm, workspace.data(), workspace.size(), &got, nullptr, 2), 0u)
        << octavo_last_error();
    std::vector<double> sums(static_cast<std::size_t>(octavo_grad_norm_workspace(views, count)));
    auto expected = sized<octavo_grad_norm_result>();
    ASSERT_EQ(octavo_grad_norm(views, count, sums.data(), static_cast<int64_t>(sums.size()), 1, &expected),
              0u);
    EXPECT_EQ(got.l2, expected.l2);
    EXPECT_EQ(got.max, expected.max);
    EXPECT_EQ(got.nonfinite, 0);
    EXPECT_TRUE(workspace.surroundings_intact());
  }
  octavo_norm_destroy(norm);
  octavo_norm_destroy(nullptr);
}

TEST(CApi, ADeviceThatIsNotThere) {
  if (octavo::gpu_info().runtime_version != 0) GTEST_SKIP() << "this build has a CUDA backend";
  const OptimizerCase adamw = optimizers(false)[1];
  const TensorSet set = small_set(adamw, octavo::StateFormat::int8);
  octavo_group_config config = c_config(adamw.config);
  config.device_kind = 1;
  config.device_index = 3;
  octavo_group* group = nullptr;
  EXPECT_EQ(octavo_group_create(&config, c_tensors(set).data(), 2, &group), kUnsupported);
  EXPECT_STREQ(octavo_last_error(),
               "[adamw] device: got cuda:3, but this build has no CUDA backend; configure with "
               "-DOCTAVO_CUDA=ON");
  EXPECT_EQ(group, nullptr);
  octavo_norm* norm = nullptr;
  EXPECT_EQ(octavo_norm_create(1, 0, nullptr, 0, &norm), kUnsupported);
  EXPECT_EQ(norm, nullptr);
}

TEST(CApi, NullArgumentsAreErrors) {
  const OptimizerCase adamw = optimizers(false)[1];
  const TensorSet set = small_set(adamw, octavo::StateFormat::int8);
  const octavo_group_config config = c_config(adamw.config);
  const std::vector<octavo_tensor> tensors = c_tensors(set);
  auto layout = sized<octavo_tensor_layout>();
  auto moment = sized<octavo_moment_spec>();
  moment.numel = 10;
  moment.format = 2;
  octavo_group* group = nullptr;
  uint32_t number = 0;
  int64_t size = 0;
  float values[10] = {}, scale = 0.0f;
  char codes[10] = {};
  auto report = sized<octavo_moment_report>();
  const auto invalid = [](octavo_status status, const char* argument) {
    EXPECT_EQ(status, kInvalid) << argument;
    EXPECT_NE(std::string(octavo_last_error()).find(argument), std::string::npos) << octavo_last_error();
  };
  invalid(octavo_layout(nullptr, &tensors[0].spec, &layout), "config");
  invalid(octavo_layout(&config, nullptr, &layout), "spec");
  invalid(octavo_layout(&config, &tensors[0].spec, nullptr), "out");
  invalid(octavo_group_create(nullptr, tensors.data(), 2, &group), "config");
  invalid(octavo_group_create(&config, nullptr, 2, &group), "tensors");
  invalid(octavo_group_create(&config, tensors.data(), -1, &group), "count");
  invalid(octavo_group_create(&config, tensors.data(), 2, nullptr), "out");
  EXPECT_EQ(group, nullptr);
  invalid(octavo_group_rebind(nullptr, tensors.data(), 2), "group");
  const octavo_step_args args = c_step_args(step_args(adamw, 1));
  invalid(octavo_group_step(nullptr, &args, nullptr), "group");
  ASSERT_EQ(octavo_group_create(&config, tensors.data(), 2, &group), 0u);
  invalid(octavo_group_step(group, nullptr, nullptr), "args");
  invalid(octavo_group_rebind_grads(group, nullptr, 2), "grads");
  EXPECT_EQ(octavo_group_step(group, &args, nullptr), 0u) << "the report may be null";
  octavo_group_destroy(group);
  invalid(octavo_parse(nullptr, "8bit", &number), "kind");
  invalid(octavo_parse("state", nullptr, &number), "name");
  invalid(octavo_parse("state", "8bit", nullptr), "out");
  invalid(octavo_moment_layout(nullptr, &size, &size), "spec");
  invalid(octavo_moment_layout(&moment, nullptr, &size), "codes_bytes");
  invalid(octavo_moment_layout(&moment, &size, nullptr), "scales");
  invalid(octavo_encode(nullptr, values, codes, &scale), "spec");
  invalid(octavo_encode(&moment, nullptr, codes, &scale), "values");
  invalid(octavo_encode(&moment, values, nullptr, &scale), "codes");
  invalid(octavo_encode(&moment, values, codes, nullptr), "scales");
  invalid(octavo_decode(&moment, nullptr, &scale, values), "codes");
  invalid(octavo_decode(&moment, codes, nullptr, values), "scales");
  invalid(octavo_decode(&moment, codes, &scale, nullptr), "values");
  invalid(octavo_convert(&moment, codes, &scale, nullptr, codes, &scale), "to");
  invalid(octavo_inspect(&moment, nullptr, &scale, nullptr, &report), "codes");
  invalid(octavo_inspect(&moment, codes, &scale, nullptr, nullptr), "out");
  invalid(octavo_grad_norm(nullptr, 1, nullptr, 0, 1, nullptr), "grads");
  invalid(octavo_group_rebind_grads(nullptr, nullptr, 0), "group");
  octavo_norm* norm = nullptr;
  octavo_device_norm result{};
  invalid(octavo_norm_create(0, 0, nullptr, 1, &norm), "grads");
  invalid(octavo_norm_create(0, 0, nullptr, -1, &norm), "count");
  invalid(octavo_norm_create(0, 0, nullptr, 0, nullptr), "out");
  invalid(octavo_norm_rebind(nullptr, nullptr, 0), "norm");
  invalid(octavo_norm_run(nullptr, nullptr, 0, &result, nullptr, 1), "norm");
  ASSERT_EQ(octavo_norm_create(0, 0, nullptr, 0, &norm), 0u) << octavo_last_error();
  invalid(octavo_norm_run(norm, nullptr, 0, nullptr, nullptr, 1), "out");
  invalid(octavo_norm_run(norm, nullptr, -1, &result, nullptr, 1), "workspace_bytes");
  octavo_norm_destroy(norm);
  EXPECT_EQ(octavo_norm_workspace_bytes(nullptr), 0);
  EXPECT_EQ(octavo_group_workspace_bytes(nullptr), 0);
  octavo_step_args_init(nullptr);
}

// A caller compiled against a later header, whose spec has grown: its tensors lie further apart.
TEST(CApi, TensorsOfALongerSpec) {
  struct LongerTensor {
    octavo_tensor_spec spec;
    uint64_t later[3];
    std::array<std::byte, sizeof(octavo_tensor) - sizeof(octavo_tensor_spec)> rest;
  };
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set = small_set(adamw, octavo::StateFormat::int8);
  TensorSet expected = set;
  const octavo_group_config config = c_config(adamw.config);
  std::vector<LongerTensor> tensors;
  for (const octavo_tensor& t : c_tensors(set)) {
    LongerTensor& to = tensors.emplace_back(LongerTensor{t.spec, {7, 8, 9}, {}});
    to.spec.struct_size = sizeof(octavo_tensor_spec) + sizeof to.later;
    std::memcpy(to.rest.data(), &t.param, to.rest.size());
  }
  const auto* given = reinterpret_cast<const octavo_tensor*>(tensors.data());
  const auto count = static_cast<int64_t>(tensors.size());
  octavo_group* group = nullptr;
  ASSERT_EQ(octavo_group_create(&config, given, count, &group), 0u) << octavo_last_error();
  const octavo_step_args args = c_step_args(step_args(adamw, 1));
  auto report = sized<octavo_step_report>();
  ASSERT_EQ(octavo_group_step(group, &args, &report), 0u) << octavo_last_error();
  octavo_group_destroy(group);
  ASSERT_TRUE(expected.step(step_args(adamw, 1)).ok());
  EXPECT_EQ(set.difference(expected), "");

  tensors[1].spec.struct_size += 8;
  EXPECT_EQ(octavo_group_create(&config, given, count, &group), kInvalid);
  EXPECT_THAT(octavo_last_error(),
              testing::HasSubstr("tensors[1].spec.struct_size: got 136, expected that of tensors[0], 128"));
  tensors[0].spec.struct_size += 4;
  EXPECT_EQ(octavo_group_create(&config, given, count, &group), kInvalid);
  EXPECT_THAT(octavo_last_error(), testing::HasSubstr("tensor.spec.struct_size: got 132"));
}

TEST(CApi, StructSizes) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set = small_set(adamw, octavo::StateFormat::int8);
  const TensorSet before = set;
  octavo_group_config config = c_config(adamw.config);
  std::vector<octavo_tensor> tensors = c_tensors(set);
  octavo_group* group = nullptr;
  for (const uint32_t size : {0u, 3u, static_cast<uint32_t>(sizeof(FirstGroupConfig)) - 1, 0xFFFFFFFFu}) {
    config.struct_size = size;
    EXPECT_EQ(octavo_group_create(&config, tensors.data(), 2, &group), kInvalid) << size;
    EXPECT_NE(std::string(octavo_last_error()).find("struct_size"), std::string::npos);
  }
  config.struct_size = sizeof config;
  tensors[1].spec.struct_size = 8;
  EXPECT_EQ(octavo_group_create(&config, tensors.data(), 2, &group), kInvalid);
  tensors[1].spec.struct_size = sizeof(octavo_tensor_spec);

  // A caller compiled against a later header passes a longer struct: what is known is read, the rest is left
  // alone.
  struct Longer {
    octavo_tensor_layout known;
    uint64_t later[4];
  };
  Longer longer{};
  longer.known.struct_size = sizeof longer;
  std::fill(std::begin(longer.later), std::end(longer.later), 7u);
  ASSERT_EQ(octavo_layout(&config, &tensors[0].spec, &longer.known), 0u) << octavo_last_error();
  EXPECT_EQ(longer.known.slots, 2);
  EXPECT_EQ(longer.known.struct_size, sizeof longer);
  for (const uint64_t value : longer.later) EXPECT_EQ(value, 7u);

  ASSERT_EQ(octavo_group_create(&config, tensors.data(), 2, &group), 0u);
  octavo_step_args args = c_step_args(step_args(adamw, 1));
  octavo_step_report report{};  // no struct_size: the step must not be taken
  EXPECT_EQ(octavo_group_step(group, &args, &report), kInvalid);
  EXPECT_EQ(set.difference(before), "");
  octavo_group_destroy(group);
}

TEST(CApi, ErrorsBelongToTheThread) {
  uint32_t number = 77;
  ASSERT_EQ(octavo_parse("state", "5bit", &number), kInvalid);
  EXPECT_EQ(number, 77u);
  const std::string mine = octavo_last_error();
  EXPECT_NE(mine.find("5bit"), std::string::npos);
  std::thread([&] {
    EXPECT_STREQ(octavo_last_error(), "");
    EXPECT_EQ(octavo_parse("color", "8bit", &number), kInvalid);
    EXPECT_NE(std::string(octavo_last_error()).find("color"), std::string::npos);
  }).join();
  EXPECT_EQ(octavo_last_error(), mine);
  EXPECT_EQ(octavo_parse("state", "4bit", &number), 0u);
  EXPECT_EQ(number, 3u);
  EXPECT_EQ(octavo_parse("dtype", "bf16", &number), 0u);
  EXPECT_EQ(number, 1u);
}

TEST(CApi, VersionAndImplementation) {
  EXPECT_EQ(octavo_abi_version(), static_cast<uint32_t>(OCTAVO_ABI_VERSION));
  EXPECT_EQ(octavo_version_string(), octavo::version());
  for (const std::string& name : supported_implementations()) {
    ASSERT_EQ(octavo_force_implementation(name.c_str()), 0u);
    EXPECT_EQ(octavo_implementation(), name);
  }
  EXPECT_EQ(octavo_force_implementation("abacus"), kInvalid);
  EXPECT_EQ(octavo_force_implementation(""), 0u);
  EXPECT_EQ(octavo_set_default_threads(-5), kInvalid);
  EXPECT_GE(octavo_default_threads(), 1);
}

}  // namespace
}  // namespace test
