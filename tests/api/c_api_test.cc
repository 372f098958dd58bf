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
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

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

// A TensorSet under octavo_engine, on the CPU, with step counts and a workspace.
class CSet {
 public:
  explicit CSet(TensorSet tensors) : set(std::move(tensors)), counts(set.tensors().size()) {
    EXPECT_EQ(octavo_engine_create(static_cast<uint32_t>(set.config().algorithm), &engine), 0u);
    const std::vector<octavo_engine_tensor> list = describe();
    EXPECT_EQ(options({}), 0u) << octavo_last_error();
    EXPECT_EQ(octavo_engine_set(engine, handles.data(), list.data(), std::ssize(list)), 0u)
        << octavo_last_error();
  }
  ~CSet() { octavo_engine_destroy(engine); }
  CSet(const CSet&) = delete;
  CSet& operator=(const CSet&) = delete;

  std::vector<octavo_engine_tensor> describe() {
    std::vector<octavo_engine_tensor> list;
    handles.clear();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      handles.push_back(static_cast<uint32_t>(i));
      list.push_back(c_tensor(set.tensors()[i].args(), &counts[i]));
    }
    return list;
  }
  octavo_status options(const octavo::StepArgs& args) {
    const octavo_step_args c = c_step_args(args);
    return octavo_engine_set_group(engine, 0, switches_of(set.config()), &c, 0, 0);
  }
  octavo_status begin(const TensorSet& grads_of, bool with_norm = false) {
    std::vector<const void*> grads;
    std::vector<uint8_t> dtypes;
    for (const TensorBuffers& t : grads_of.tensors()) {
      grads.push_back(t.grad.data());
      dtypes.push_back(static_cast<uint8_t>(t.spec.grad_dtype));
    }
    const octavo_status status = octavo_engine_begin(engine, handles.data(), grads.data(), dtypes.data(),
                                                     std::ssize(handles), with_norm ? 1 : 0, nullptr);
    workspace = Buffer(octavo_engine_workspace_bytes(engine, 0, 0));
    device.workspace = workspace.data();
    device.workspace_bytes = workspace.size();
    return status;
  }
  octavo_engine_args args() {
    auto c = sized<octavo_engine_args>();
    c.threads = 1;
    c.devices = &device;
    c.device_count = 1;
    return c;
  }
  // One step as TensorSet::step takes it.
  octavo_status step(const octavo::StepArgs& cpp, octavo_step_report* report = nullptr) {
    EXPECT_EQ(options(cpp), 0u) << octavo_last_error();
    std::fill(counts.begin(), counts.end(), cpp.step - 1);
    EXPECT_EQ(begin(set), 0u) << octavo_last_error();
    octavo_engine_args c = args();
    c.grad_factor = cpp.grad_factor;
    return octavo_engine_step(engine, &c, report);
  }

  TensorSet set;
  std::vector<int64_t> counts;
  std::vector<uint32_t> handles;
  octavo_engine* engine = nullptr;
  octavo_engine_device device = sized<octavo_engine_device>();
  Buffer workspace;
};

TEST(CApi, StepEqualsTheCppStep) {
  for (const OptimizerCase& optimizer : optimizers(true)) {
    for (const octavo::StateFormat format : octavo::all_state_formats()) {
      TensorSet cpp = small_set(optimizer, format);
      CSet c(cpp);
      for (int i = 1; i <= 3; ++i) {
        auto report = sized<octavo_step_report>();
        ASSERT_EQ(c.step(step_args(optimizer, i), &report), 0u) << octavo_last_error();
        EXPECT_EQ(report.skipped, 0u);
        ASSERT_TRUE(cpp.step(step_args(optimizer, i)).ok());
      }
      EXPECT_EQ(c.set.difference(cpp), "") << optimizer.name << " " << octavo::name(format);
      EXPECT_TRUE(c.workspace.surroundings_intact());
    }
  }
  octavo_engine_destroy(nullptr);
}

TEST(CApi, LayoutEqualsTheCppLayout) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const octavo::StateFormat format : octavo::all_state_formats()) {
      const TensorSet set = small_set(optimizer, format);
      const octavo_tensor_spec spec = c_spec(set.tensors()[0].spec);
      const auto algorithm = static_cast<uint32_t>(optimizer.config.algorithm);
      auto got = sized<octavo_tensor_layout>();
      ASSERT_EQ(octavo_layout(algorithm, switches_of(optimizer.config), &spec, &got), 0u);
      const octavo::TensorLayout& expected = set.tensors()[0].layout;
      EXPECT_EQ(got.slots, expected.slots);
      EXPECT_EQ(got.residual_bytes, expected.residual_bytes);
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
  }
}

TEST(CApi, DefaultsAreTheCppDefaults) {
  octavo_step_args args;
  std::memset(&args, 0xFF, sizeof args);
  EXPECT_EQ(octavo_step_args_init(&args), kInvalid);
  EXPECT_TRUE(std::isnan(args.lr));
  args.struct_size = sizeof args;
  ASSERT_EQ(octavo_step_args_init(&args), 0u);
  EXPECT_EQ(args.struct_size, sizeof args);
  EXPECT_EQ(args.lr, 1e-3);
  EXPECT_EQ(args.beta1, 0.9);
  EXPECT_EQ(args.beta2, 0.999);
  EXPECT_EQ(args.eps, 1e-8);
  EXPECT_EQ(args.weight_decay, 0.0);
  EXPECT_EQ(args.decay, 0u);
  EXPECT_EQ(args.clip_grad_norm, 0.0);
  EXPECT_EQ(args.scalar_lr, nullptr);
  for (const double own : args.own) EXPECT_EQ(own, 0.0);
}

TEST(CApi, ScalarsEqualTheCppOnes) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (const float found_inf : {0.0f, 1.0f}) {
    TensorSet cpp = small_set(adamw, octavo::StateFormat::int4);
    CSet c(cpp);
    struct Memory {
      float lr = 0.02f, loss_scale = 768.0f, found_inf = 0.0f;
      int64_t step = 6;
      octavo::GradNorm norm{10.0, 3.0, 2};
      octavo::StepReport report{true, true, 99};
    } memory;
    memory.found_inf = found_inf;
    octavo::StepArgs args = step_args(adamw, 0);
    args.clip_grad_norm = 0.001;
    args.scalars = {&memory.lr,        &memory.step, &memory.loss_scale,
                    &memory.found_inf, &memory.norm, &memory.report};
    const auto expected = cpp.step(args);
    ASSERT_TRUE(expected.ok()) << expected.status().message();

    ASSERT_EQ(c.options(args), 0u) << octavo_last_error();
    const octavo_device_norm norm{10.0, 3.0, 2};
    octavo_device_norm given = norm;
    octavo_device_report seen{1, 1, {}, 99};
    c.device.loss_scale = &memory.loss_scale;
    c.device.found_inf = &memory.found_inf;
    c.device.norm = &given;
    c.device.report = &seen;
    std::fill(c.counts.begin(), c.counts.end(), 6);
    ASSERT_EQ(c.begin(c.set), 0u) << octavo_last_error();
    octavo_engine_args run = c.args();
    auto report = sized<octavo_step_report>();
    report.pending = 7;
    ASSERT_EQ(octavo_engine_step(c.engine, &run, &report), 0u) << octavo_last_error();
    EXPECT_EQ(c.set.difference(cpp), "");
    for (const int64_t count : c.counts) EXPECT_EQ(count, memory.step);
    EXPECT_EQ(memory.step, found_inf == 0.0f ? 7 : 6);
    EXPECT_EQ(report.skipped, expected->skipped ? 1u : 0u);
    EXPECT_EQ(report.skipped, found_inf == 0.0f ? 0u : 1u);
    EXPECT_EQ(report.pending, 0u);
    EXPECT_EQ(seen.skipped, report.skipped);
    EXPECT_EQ(seen.pending, 0);
    EXPECT_EQ(seen.nonfinite, 0);

    run.skip_nonfinite = 1;  // the count of the norm decides
    const std::vector<int64_t> counts = c.counts;
    ASSERT_EQ(c.begin(c.set), 0u) << octavo_last_error();
    ASSERT_EQ(octavo_engine_step(c.engine, &run, &report), 0u) << octavo_last_error();
    EXPECT_EQ(report.skipped, 1u);
    EXPECT_EQ(report.nonfinite, 2);
    EXPECT_EQ(seen.nonfinite, 2);
    EXPECT_EQ(c.set.difference(cpp), "");
    EXPECT_EQ(c.counts, counts);
    EXPECT_EQ(given.l2, norm.l2);
  }
}

TEST(CApi, AStepReadsTheGradientsOfItsBegin) {
  const OptimizerCase adamw = optimizers(false)[1];
  CSet c(small_set(adamw, octavo::StateFormat::int8));
  TensorSet other = c.set;
  other.fill_grads(123);
  ASSERT_EQ(c.options(step_args(adamw, 1)), 0u);
  ASSERT_EQ(c.begin(c.set), 0u) << octavo_last_error();
  ASSERT_EQ(c.begin(other), 0u) << octavo_last_error();
  const octavo_engine_args args = c.args();
  ASSERT_EQ(octavo_engine_step(c.engine, &args, nullptr), 0u) << octavo_last_error();
  ASSERT_TRUE(other.step(step_args(adamw, 1)).ok());
  EXPECT_EQ(c.set.difference(other), "");
}

TEST(CApi, NormEqualsGradNorm) {
  const OptimizerCase adamw = optimizers(false)[1];
  const std::vector<octavo::TensorSpec> specs = {
      tensor_spec(100001, octavo::DType::f32, octavo::DType::f32, octavo::WeightStore::nearest,
                  octavo::StateFormat::fp32),
      tensor_spec(5000, octavo::DType::f32, octavo::DType::bf16, octavo::WeightStore::nearest,
                  octavo::StateFormat::fp32)};
  for (const std::size_t count : {1u, 2u}) {
    CSet c({adamw.config, std::span(specs).first(count), 4});
    ASSERT_EQ(c.begin(c.set, true), 0u) << octavo_last_error();
    octavo_device_norm got{-1.0, -1.0, -1};
    auto part = sized<octavo_engine_norm_part>();
    part.out = c.device.norm = &got;
    octavo_engine_args args = c.args();
    args.threads = 2;
    ASSERT_EQ(octavo_engine_norm(c.engine, &args, &part, 1, nullptr, nullptr), 0u) << octavo_last_error();
    std::vector<octavo::GradView> views;
    for (const TensorBuffers& t : c.set.tensors())
      views.push_back({t.grad.data(), t.spec.grad_dtype, t.spec.numel});
    std::vector<double> sums(static_cast<std::size_t>(octavo::grad_norm_workspace(views)));
    const octavo::GradNorm expected = octavo::grad_norm(views, sums).value();
    EXPECT_EQ(got.l2, expected.l2);
    EXPECT_EQ(got.max, expected.max);
    EXPECT_EQ(got.nonfinite, 0);
    EXPECT_TRUE(c.workspace.surroundings_intact());
  }
}

TEST(CApi, ADeviceThatIsNotThere) {
  if (octavo::gpu_info().runtime_version != 0) GTEST_SKIP() << "this build has a CUDA backend";
  CSet c(small_set(optimizers(false)[1], octavo::StateFormat::int8));
  octavo_engine_tensor tensor = c.describe()[0];
  tensor.param_device_kind = tensor.state_device_kind = 1;
  tensor.param_device_index = tensor.state_device_index = 3;
  EXPECT_EQ(octavo_engine_set(c.engine, c.handles.data(), &tensor, 1), kUnsupported);
  EXPECT_THAT(octavo_last_error(),
              testing::HasSubstr("device: got cuda:3, but this build has no CUDA backend; configure with "
                                 "-DOCTAVO_CUDA=ON"));
}

TEST(CApi, NullArgumentsAreErrors) {
  CSet c(small_set(optimizers(false)[1], octavo::StateFormat::int8));
  const std::vector<octavo_engine_tensor> tensors = c.describe();
  const octavo_tensor_spec spec = c_spec(c.set.tensors()[0].spec);
  auto layout = sized<octavo_tensor_layout>();
  auto moment = sized<octavo_moment_spec>();
  moment.numel = 10;
  moment.format = 2;
  uint32_t number = 0;
  int64_t size = 0;
  float values[10] = {}, scale = 0.0f;
  char codes[10] = {};
  const auto invalid = [](octavo_status status, const char* argument) {
    EXPECT_EQ(status, kInvalid) << argument;
    EXPECT_NE(std::string(octavo_last_error()).find(argument), std::string::npos) << octavo_last_error();
  };
  const uint32_t* const handles = c.handles.data();
  invalid(octavo_layout(1, 0, nullptr, &layout), "spec");
  invalid(octavo_layout(1, 0, &spec, nullptr), "out");
  invalid(octavo_engine_create(1, nullptr), "out");
  invalid(octavo_engine_set_group(nullptr, 0, 0, nullptr, 0, 0), "engine");
  invalid(octavo_engine_set_group(c.engine, 0, 0, nullptr, 0, 0), "options");
  invalid(octavo_engine_set(nullptr, handles, tensors.data(), 2), "engine");
  invalid(octavo_engine_set(c.engine, nullptr, tensors.data(), 2), "handles");
  invalid(octavo_engine_set(c.engine, handles, nullptr, 2), "tensors");
  invalid(octavo_engine_set(c.engine, handles, tensors.data(), -1), "count");
  ASSERT_EQ(c.begin(c.set), 0u) << "the plan may be null";
  invalid(octavo_engine_begin(c.engine, handles, nullptr, nullptr, 2, 0, nullptr), "grads");
  octavo_engine_args args = c.args();
  octavo_device_norm result{};
  auto part = sized<octavo_engine_norm_part>();
  part.out = &result;
  invalid(octavo_engine_norm(nullptr, &args, &part, 1, nullptr, nullptr), "engine");
  invalid(octavo_engine_norm(c.engine, &args, nullptr, 1, nullptr, nullptr), "parts");
  invalid(octavo_engine_norm(c.engine, &args, &part, -1, nullptr, nullptr), "count");
  invalid(octavo_engine_step(nullptr, &args, nullptr), "engine");
  invalid(octavo_engine_step(c.engine, nullptr, nullptr), "args");
  args.devices = nullptr;
  invalid(octavo_engine_step(c.engine, &args, nullptr), "devices");
  c.device.workspace_bytes = -1;
  args.devices = &c.device;
  invalid(octavo_engine_step(c.engine, &args, nullptr), "workspace_bytes");
  c.device.workspace_bytes = c.workspace.size();
  EXPECT_EQ(octavo_engine_step(c.engine, &args, nullptr), 0u) << "the report may be null";
  EXPECT_EQ(octavo_engine_workspace_bytes(nullptr, 0, 0), 0);
  invalid(octavo_step_args_init(nullptr), "args");
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
}

TEST(CApi, StructSizes) {
  const OptimizerCase adamw = optimizers(false)[1];
  CSet c(small_set(adamw, octavo::StateFormat::int8));
  const TensorSet before = c.set;
  std::vector<octavo_engine_tensor> tensors = c.describe();
  const octavo_tensor_spec spec = c_spec(c.set.tensors()[0].spec);
  // Neither shorter nor longer structs are read or written.
  struct Longer {
    octavo_tensor_layout layout;
    uint64_t later[4];
  };
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, sizeof(octavo_tensor_layout) - 8,
                                 sizeof(octavo_tensor_layout) + 8, std::size_t{0xFFFFFFFF}}) {
    Longer longer{};
    longer.layout.struct_size = static_cast<uint32_t>(size);
    const Longer kept = longer;
    EXPECT_EQ(octavo_layout(1, 0, &spec, &longer.layout), kInvalid) << size;
    EXPECT_THAT(octavo_last_error(),
                testing::HasSubstr("out.struct_size: got " + std::to_string(size) + ", expected sizeof, " +
                                   std::to_string(sizeof(octavo_tensor_layout))));
    EXPECT_EQ(std::memcmp(&longer, &kept, sizeof longer), 0);
  }
  for (const std::size_t size : {std::size_t{8}, sizeof(octavo_engine_tensor) + 8}) {
    tensors[1].struct_size = static_cast<uint32_t>(size);
    EXPECT_EQ(octavo_engine_set(c.engine, c.handles.data(), tensors.data(), 2), kInvalid);
    EXPECT_THAT(octavo_last_error(), testing::HasSubstr("tensors.struct_size: got " + std::to_string(size)));
  }
  ASSERT_EQ(c.begin(c.set), 0u);
  const octavo_engine_args args = c.args();
  octavo_step_report report{};  // no struct_size: the step must not be applied
  EXPECT_EQ(octavo_engine_step(c.engine, &args, &report), kInvalid);
  EXPECT_EQ(c.set.difference(before), "");
  EXPECT_EQ(c.counts, std::vector<int64_t>(c.counts.size()));
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
}

}  // namespace
}  // namespace test
