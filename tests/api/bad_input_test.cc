// Wrong arguments: each gives invalid_argument with a message that names the argument, and no buffer changes.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/moment.h"

#include <octavo/describe.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

namespace test {
namespace {

using octavo::Algorithm;
using octavo::DType;
using octavo::GroupConfig;
using octavo::StateFormat;
using octavo::Status;
using octavo::StatusCode;
using octavo::StepArgs;
using octavo::TensorArgs;
using octavo::TensorSpec;
using octavo::WeightStore;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

void expect_invalid(const Status& status, const std::string& argument) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << argument << ": " << status.message();
  EXPECT_NE(status.message().find(argument), std::string::npos) << argument << " in: " << status.message();
}

template <class E>
E unknown() {
  return static_cast<E>(99);
}

void* shifted(void* pointer, std::ptrdiff_t bytes) { return static_cast<std::byte*>(pointer) + bytes; }
float* shifted_scale(float* pointer, std::ptrdiff_t bytes) {
  return static_cast<float*>(shifted(pointer, bytes));
}

TensorSpec base_spec(StateFormat format = StateFormat::int8) {
  return tensor_spec(1000, DType::bf16, DType::f32, WeightStore::residual16, format);
}

TEST(BadLayout, NamesTheArgument) {
  struct Case {
    const char* argument;
    std::function<void(GroupConfig&, TensorSpec&)> spoil;
  };
  const std::vector<Case> cases = {
      {"numel", [](auto&, auto& s) { s.numel = -1; }},
      {"numel", [](auto&, auto& s) { s.numel = kLargest; }},
      {"block_size", [](auto&, auto& s) { s.block_size = 100; }},
      {"block_size", [](auto&, auto& s) { s.block_size = 16; }},
      {"block_size", [](auto&, auto& s) { s.block_size = 8192; }},
      {"block_size", [](auto&, auto& s) { s.block_size = -32; }},
      {"block_size", [](auto&, auto& s) { s.block_size = std::numeric_limits<std::int64_t>::min(); }},
      {"format", [](auto&, auto& s) { s.format = unknown<StateFormat>(); }},
      {"param_dtype", [](auto&, auto& s) { s.param_dtype = unknown<DType>(); }},
      {"grad_dtype", [](auto&, auto& s) { s.grad_dtype = unknown<DType>(); }},
      {"store", [](auto&, auto& s) { s.store = unknown<WeightStore>(); }},
      {"algorithm", [](auto& c, auto&) { c.algorithm = unknown<Algorithm>(); }},
      {"store", [](auto&, auto& s) { s.param_dtype = DType::f32; }},
      {"store", [](auto&, auto& s) { s.param_dtype = DType::f16; }},
      {"store", [](auto&, auto& s) { s.store = WeightStore::stochastic, s.param_dtype = DType::f16; }},
      {"ndim", [](auto&, auto& s) { s.ndim = -1; }},
      {"ndim", [](auto&, auto& s) { s.ndim = octavo::kMaxDims + 1; }},
      {"shape",
       [](auto&, auto& s) {
         s.ndim = 2, s.shape = {10, 99};
       }},
      {"shape",
       [](auto&, auto& s) {
         s.ndim = 2, s.shape = {-10, -100};
       }},
      {"shape",
       [](auto&, auto& s) {
         s.ndim = 3, s.shape = {kLargest, kLargest, 1000};
       }},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    GroupConfig config;
    TensorSpec spec = base_spec();
    ASSERT_TRUE(octavo::layout(config, spec).ok());
    cases[i].spoil(config, spec);
    SCOPED_TRACE(i);
    expect_invalid(octavo::layout(config, spec).status(), cases[i].argument);
  }
}

struct TensorCase {
  const char* argument;
  std::function<void(TensorArgs&, TensorArgs&)> spoil;  // the tensor, and another of the group
};

void expect_create_fails(StateFormat format, const std::vector<TensorCase>& cases) {
  const GroupConfig config;
  const std::vector<TensorSpec> specs(2, base_spec(format));
  const TensorSet set(config, specs, 1);
  const TensorSet before = set;
  auto good = octavo::Group::create(config, set.args());
  ASSERT_TRUE(good.ok()) << good.status().message();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(std::string(octavo::name(format)) + " case " + std::to_string(i));
    std::vector<TensorArgs> args = set.args();
    cases[i].spoil(args[1], args[0]);
    expect_invalid(octavo::Group::create(config, args).status(), cases[i].argument);
    expect_invalid(good->rebind(args), cases[i].argument);
    StepArgs step;
    step.step = 1;
    expect_invalid(test::step(config, args, step).status(), cases[i].argument);
    ASSERT_EQ(set.difference(before), "");
  }
  StepArgs step;  // the group still has its old buffers
  step.step = 1;
  std::vector<std::byte> workspace(static_cast<std::size_t>(good->workspace_bytes()));
  step.workspace = workspace;
  EXPECT_TRUE(good->step(step).ok());
  EXPECT_NE(set.difference(before), "");
}

TEST(BadTensor, NullPointers) {
  expect_create_fails(StateFormat::int8, {{"param", [](auto& t, auto&) { t.param = nullptr; }},
                                          {"grad", [](auto& t, auto&) { t.grad = nullptr; }},
                                          {"residual", [](auto& t, auto&) { t.residual = nullptr; }},
                                          {"codes", [](auto& t, auto&) { t.state[0].codes = nullptr; }},
                                          {"codes", [](auto& t, auto&) { t.state[1].codes = nullptr; }},
                                          {"scales", [](auto& t, auto&) { t.state[0].scales = nullptr; }},
                                          {"scales", [](auto& t, auto&) { t.state[1].scales = nullptr; }}});
}

TEST(BadTensor, Misaligned) {
  const TensorCase common[] = {
      {"param", [](auto& t, auto&) { t.param = shifted(t.param, 1); }},
      {"grad", [](auto& t, auto&) { t.grad = static_cast<const std::byte*>(t.grad) + 2; }},
      {"residual", [](auto& t, auto&) { t.residual = shifted(t.residual, -1); }}};
  std::vector<TensorCase> cases(std::begin(common), std::end(common));
  cases.push_back(
      {"scales", [](auto& t, auto&) { t.state[0].scales = shifted_scale(t.state[0].scales, -2); }});
  cases.push_back(
      {"scales", [](auto& t, auto&) { t.state[1].scales = shifted_scale(t.state[1].scales, -1); }});
  expect_create_fails(StateFormat::int8, cases);
  cases.assign(std::begin(common), std::end(common));
  cases.push_back({"codes", [](auto& t, auto&) { t.state[0].codes = shifted(t.state[0].codes, 2); }});
  expect_create_fails(StateFormat::fp32, cases);
  cases.back() = {"codes", [](auto& t, auto&) { t.state[1].codes = shifted(t.state[1].codes, 1); }};
  expect_create_fails(StateFormat::bf16, cases);
}

TEST(BadTensor, Overlapping) {
  expect_create_fails(
      StateFormat::int8,
      {{"overlap", [](auto& t, auto& other) { t.param = other.param; }},
       {"overlap", [](auto& t, auto& other) { t.param = shifted(other.param, 1998); }},
       {"overlap", [](auto& t, auto&) { t.residual = t.param; }},
       {"overlap", [](auto& t, auto&) { t.state[1].codes = t.state[0].codes; }},
       {"overlap", [](auto& t, auto& other) { t.state[1].codes = shifted(other.state[1].codes, 999); }},
       {"overlap", [](auto& t, auto&) { t.state[1].scales = t.state[0].scales; }},
       {"overlap", [](auto& t, auto&) { t.state[0].codes = t.param; }},
       {"overlap", [](auto& t, auto&) { t.grad = t.state[0].scales; }},
       {"overlap", [](auto& t, auto& other) { t.grad = other.state[0].scales; }}});
}

TEST(BadTensor, Values) {
  expect_create_fails(StateFormat::int4,
                      {{"numel", [](auto& t, auto&) { t.spec.numel = -5; }},
                       {"block_size", [](auto& t, auto&) { t.spec.block_size = 48; }},
                       {"format", [](auto& t, auto&) { t.spec.format = unknown<StateFormat>(); }},
                       {"store", [](auto& t, auto&) { t.spec.store = unknown<WeightStore>(); }},
                       {"shape", [](auto& t, auto&) { t.spec.ndim = 1, t.spec.shape = {999}; }},
                       {"offset", [](auto& t, auto&) { t.offset = -1; }}});
}

TEST(BadTensor, EmptyTensorsNeedNoPointers) {
  const GroupConfig config;
  TensorArgs empty;
  empty.spec = base_spec();
  empty.spec.numel = 0;
  StepArgs step;
  step.step = 1;
  EXPECT_TRUE(test::step(config, {&empty, 1}, step).ok());
  EXPECT_TRUE(test::step(config, {}, step).ok());
}

bool has_option(Algorithm algorithm, std::string_view name) {
  for (const octavo::Option& option : octavo::describe(algorithm)->options) {
    if (option.name == name) return true;
  }
  return false;
}
// Whether any algorithm has it: else it is an argument of the step.
bool is_option(std::string_view name) {
  return std::ranges::any_of(octavo::all_algorithms(), [&](Algorithm a) { return has_option(a, name); });
}

TEST(BadStep, NamesTheArgument) {
  struct Case {
    const char* argument;
    std::function<void(StepArgs&)> spoil;
  };
  const std::vector<Case> cases = {
      {"step", [](auto& a) { a.step = 0; }},
      {"step", [](auto& a) { a.step = -7; }},
      {"lr", [](auto& a) { a.hyper.lr = kNan; }},
      {"lr", [](auto& a) { a.hyper.lr = kInf; }},
      {"lr", [](auto& a) { a.hyper.lr = -1e-3; }},
      {"lr", [](auto& a) { a.hyper.lr = 1e300; }},
      {"beta1", [](auto& a) { a.hyper.beta1 = kNan; }},
      {"beta1", [](auto& a) { a.hyper.beta1 = 1.0; }},
      {"beta1", [](auto& a) { a.hyper.beta1 = -0.1; }},
      {"beta2", [](auto& a) { a.hyper.beta2 = kNan; }},
      {"beta2", [](auto& a) { a.hyper.beta2 = 1.5; }},
      {"eps", [](auto& a) { a.hyper.eps = kNan; }},
      {"eps", [](auto& a) { a.hyper.eps = -1e-8; }},
      {"weight_decay", [](auto& a) { a.hyper.weight_decay = kNan; }},
      {"weight_decay", [](auto& a) { a.hyper.weight_decay = -0.1; }},
      {"weight_decay", [](auto& a) { a.hyper.weight_decay = kInf; }},
      {"momentum", [](auto& a) { a.hyper.momentum = kNan; }},
      {"dampening", [](auto& a) { a.hyper.dampening = kNan; }},
      {"grad_factor", [](auto& a) { a.grad_factor = kNan; }},
      {"grad_factor", [](auto& a) { a.grad_factor = kInf; }},
      {"threads", [](auto& a) { a.threads = -1; }},
  };
  for (const OptimizerCase& optimizer : optimizers(false)) {
    const TensorSpec spec = base_spec();
    TensorSet set(optimizer.config, {&spec, 1}, 1);
    const TensorSet before = set;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::string argument = cases[i].argument;
      if (is_option(argument) && !has_option(optimizer.config.algorithm, argument)) continue;
      StepArgs args = step_args(optimizer, 1);
      cases[i].spoil(args);
      SCOPED_TRACE(std::string(optimizer.name) + " case " + std::to_string(i));
      expect_invalid(set.step(args).status(), argument);
      ASSERT_EQ(set.difference(before), "");
    }
    for (const octavo::Option& option : octavo::describe(optimizer.config.algorithm)->options) {
      if (option.at < 0 || option.range == octavo::Range::flag) continue;
      SCOPED_TRACE(std::string(optimizer.name) + " " + std::string(option.name));
      StepArgs args = step_args(optimizer, 1);
      octavo::set(args.hyper, option, kNan);
      expect_invalid(set.step(args).status(), std::string(option.name) + ": got nan");
      ASSERT_EQ(set.difference(before), "");
    }
  }
}

TEST(BadStep, WorkspaceTooSmall) {
  TensorSpec spec = base_spec(StateFormat::int4_rank1);
  spec.shape = {10, 100};
  spec.ndim = 2;
  TensorSet set({}, {&spec, 1}, 1);
  const TensorSet before = set;
  auto group = octavo::Group::create(set.config(), set.args());
  ASSERT_TRUE(group.ok());
  if (group->workspace_bytes() == 0) GTEST_SKIP() << "no format needs a workspace";
  Buffer workspace(group->workspace_bytes() + 64);
  StepArgs args;
  args.step = 1;
  args.workspace = {workspace.data(), static_cast<std::size_t>(group->workspace_bytes()) - 1};
  expect_invalid(group->step(args).status(), "workspace");
  args.workspace = {workspace.data() + 1, static_cast<std::size_t>(group->workspace_bytes())};
  expect_invalid(group->step(args).status(), "workspace");
  EXPECT_EQ(set.difference(before), "");
}

}  // namespace
}  // namespace test
