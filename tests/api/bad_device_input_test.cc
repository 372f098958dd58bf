// Wrong devices, scalars, streams, norms and new gradients: the whole message of each, and no buffer changes.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "optimizers/norm_group.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <cmath>
#include <functional>
#include <limits>

namespace test {
namespace {

using octavo::Device;
using octavo::DeviceKind;
using octavo::DType;
using octavo::GradNorm;
using octavo::GradView;
using octavo::GroupConfig;
using octavo::Status;
using octavo::StatusCode;
using octavo::StepArgs;
using octavo::TensorSpec;

void expect_error(const Status& status, const std::string& message,
                  StatusCode code = StatusCode::invalid_argument) {
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(status.message(), message);
}

// `pointer` moved by one byte: a misaligned address, which is never read.
template <class T>
T* off_by_one(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + 1);
}

TensorSet small_set() {
  const std::vector<TensorSpec> specs(
      2, tensor_spec(100, DType::f32, DType::bf16, octavo::WeightStore::nearest, octavo::StateFormat::int8));
  return {{}, specs, 3};
}

TEST(BadDevice, NamesTheArgument) {
  struct Case {
    Device device;
    const char* message;
  };
  const Case cases[] = {
      {{static_cast<DeviceKind>(7), 0}, "device.kind: got 7, expected 0 (cpu) or 1 (cuda)"},
      {{DeviceKind::cpu, -1}, "device.index: got -1, expected at least 0"},
      {{DeviceKind::cuda, -2}, "device.index: got -2, expected at least 0"},
      {{DeviceKind::cpu, 1}, "device.index: got 1 for the CPU, expected 0 (there is one)"},
  };
  const TensorSet set = small_set();
  for (const Case& c : cases) {
    GroupConfig config;
    config.device = c.device;
    const std::string message = std::string("[adamw] ") + c.message;
    expect_error(octavo::layout(config, set.tensors()[0].spec).status(), message);
    expect_error(octavo::Group::create(config, set.args()).status(), message);
    expect_error(octavo::NormGroup::create(c.device, {}).status(), std::string("[grad_norm] ") + c.message);
  }
}

TEST(BadDevice, CudaInABuildWithoutIt) {
  if (octavo::gpu_info().runtime_version != 0) GTEST_SKIP() << "this build has a CUDA backend";
  const TensorSet set = small_set();
  const Device device{DeviceKind::cuda, 0};
  GroupConfig config;
  config.device = device;
  const std::string message =
      " device: got cuda:0, but this build has no CUDA backend; configure with -DOCTAVO_CUDA=ON";
  EXPECT_TRUE(octavo::layout(config, set.tensors()[0].spec).ok());
  expect_error(octavo::Group::create(config, set.args()).status(), "[adamw]" + message,
               StatusCode::unsupported);
  expect_error(octavo::NormGroup::create(device, {}).status(), "[grad_norm]" + message,
               StatusCode::unsupported);
}

TEST(BadScalars, NamesTheArgument) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  static float number = 1.0f;
  static std::int64_t step = 5;
  static GradNorm norm;
  static octavo::StepReport report{false, false, 11};
  struct Case {
    const char* message;
    std::function<void(StepArgs&)> spoil;
  };
  const std::vector<Case> cases = {
      {"step: got 0, expected 1 for the first step", [](auto& a) { a.step = 0; }},
      {"lr: got -1, expected a finite number of at least 0",
       [](auto& a) {
         a.hyper.lr = -1.0;
         a.scalars.step = &step;  // only scalars.lr excuses lr
       }},
      {"step: got 0, expected 1 for the first step",
       [](auto& a) {
         a.step = 0;
         a.scalars.lr = &number;
       }},
      {"clip_grad_norm: got -1, expected a finite number of at least 0",
       [](auto& a) {
         a.clip_grad_norm = -1.0;
         a.scalars.norm = &norm;
       }},
      {"clip_grad_norm: got nan, expected a finite number of at least 0",
       [](auto& a) {
         a.clip_grad_norm = std::nan("");
         a.scalars.norm = &norm;
       }},
      {"clip_grad_norm: got inf, expected a finite number of at least 0",
       [](auto& a) { a.clip_grad_norm = kInf; }},
      {"clip_grad_norm: got 0.5, expected 0 where scalars.norm is null; give it the norm of the gradients "
       "(NormGroup), or clip with grad_factor (clip_factor)",
       [](auto& a) { a.clip_grad_norm = 0.5; }},
      {"scalars.lr: got an address that is not a multiple of 4, its alignment",
       [](auto& a) { a.scalars.lr = off_by_one(&number); }},
      {"scalars.step: got an address that is not a multiple of 8, its alignment",
       [](auto& a) { a.scalars.step = off_by_one(&step); }},
      {"scalars.loss_scale: got an address that is not a multiple of 4, its alignment",
       [](auto& a) { a.scalars.loss_scale = off_by_one(&number); }},
      {"scalars.found_inf: got an address that is not a multiple of 4, its alignment",
       [](auto& a) { a.scalars.found_inf = off_by_one(&number); }},
      {"scalars.norm: got an address that is not a multiple of 8, its alignment",
       [](auto& a) { a.scalars.norm = off_by_one(&norm); }},
      {"scalars.report: got an address that is not a multiple of 8, its alignment",
       [](auto& a) { a.scalars.report = off_by_one(&report); }},
      {"stream: got a stream, expected null (the work is on the CPU)",
       [](auto& a) {
         a.stream = &number;
         a.scalars.step = &step;
         a.scalars.report = &report;
       }},
  };
  TensorSet set = small_set();
  const TensorSet before = set;
  for (const Case& c : cases) {
    StepArgs args;
    args.step = 1;
    c.spoil(args);
    expect_error(set.step(args).status(), std::string("[adamw] ") + c.message);
    ASSERT_EQ(set.difference(before), "") << c.message;
  }
  EXPECT_EQ(step, 5);
  EXPECT_EQ(report.nonfinite, 11);
}

TEST(BadGrads, NamesTheArgument) {
  const TensorSet set = small_set();
  auto group = octavo::Group::create({}, set.args());
  ASSERT_TRUE(group.ok());
  const std::byte* good = set.tensors()[0].grad.data();
  const std::vector<const void*> three(3, good), null = {good, nullptr}, odd = {good, good + 1};
  expect_error(group->rebind_grads(three),
               "[adamw] grads: got 3 addresses, expected 2, one per tensor; use rebind to change the tensors "
               "themselves");
  expect_error(group->rebind_grads(null), "[adamw] grads[1]: got null, expected a buffer of 200 bytes");
  expect_error(group->rebind_grads(odd),
               "[adamw] grads[1]: got an address that is not a multiple of 2, its alignment");
}

TEST(BadNorm, NamesTheArgument) {
  const Buffer data(4 * 5000);
  const GradView view{data.data(), DType::f32, 5000};
  expect_error(octavo::NormGroup::create({}, std::vector<GradView>{view, {nullptr, DType::bf16, 4}}).status(),
               "[grad_norm] grads[1].data: got null, expected a buffer of 8 bytes");
  auto group = octavo::NormGroup::create({}, {&view, 1});
  ASSERT_TRUE(group.ok());
  const auto needed = static_cast<std::size_t>(group->workspace_bytes());
  ASSERT_GT(needed, 0u);
  const std::string bytes = std::to_string(needed);
  const Buffer workspace(static_cast<std::int64_t>(needed) + 16);
  const std::span<std::byte> room(workspace.data(), needed);
  GradNorm out{-1.0, -1.0, -1};
  expect_error(group->run(room.first(needed - 1), &out),
               "[grad_norm] workspace: got " + std::to_string(needed - 1) + " bytes, expected " + bytes +
                   " (NormGroup::workspace_bytes)");
  expect_error(group->run({workspace.data() + 8, needed}, &out),
               "[grad_norm] workspace: got an address that is not a multiple of 16, its alignment");
  expect_error(group->run({data.data() + 16, needed}, &out),
               "[grad_norm] workspace: overlaps grads[0].data; it must not share memory with a gradient");
  expect_error(group->run(room, nullptr), "[grad_norm] out: got null, expected a buffer of 24 bytes");
  expect_error(group->run(room, off_by_one(&out)),
               "[grad_norm] out: got an address that is not a multiple of 8, its alignment");
  expect_error(group->run(room, data.as<GradNorm>()),
               "[grad_norm] out: overlaps grads[0].data; it must not share memory with a gradient");
  expect_error(group->run(room, workspace.as<GradNorm>()),
               "[grad_norm] out: overlaps workspace; it must not share memory with it");
  expect_error(group->run(room, &out, &out),
               "[grad_norm] stream: got a stream, expected null (the work is on the CPU)");
  expect_error(group->run(room, &out, nullptr, -1), "[grad_norm] threads: got -1, expected 0 to 4096");
  EXPECT_EQ(out.nonfinite, -1);
  EXPECT_TRUE(group->run(room, &out).ok());
  EXPECT_EQ(out.l2, 0.0);
}

}  // namespace
}  // namespace test
