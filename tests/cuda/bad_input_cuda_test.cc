// Wrong pointers and devices: the message names the argument, and no byte changes. Without a GPU, creating a
// group reports why there is none.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "optimizers/norm_group.h"
#include "tests/cuda/device.h"

#include <gmock/gmock.h>

namespace test {
namespace {

using octavo::DType;
using octavo::GradNorm;
using octavo::StateFormat;
using octavo::Status;
using octavo::StatusCode;
using octavo::StepArgs;
using octavo::TensorArgs;
using octavo::TensorSpec;
using testing::HasSubstr;

TensorSet small_set() {
  std::vector<TensorSpec> specs(
      2, tensor_spec(100, DType::bf16, DType::bf16, octavo::WeightStore::residual8, StateFormat::int8));
  specs[1].numel = 300;
  return {{}, specs, 3};
}

void expect_invalid(const Status& status, const std::string& field, const std::string& what) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << field << ": " << status.message();
  EXPECT_THAT(status.message(), HasSubstr(field));
  EXPECT_THAT(status.message(), HasSubstr(what));
}

// Returns true if this process has opened a context on a device, without opening one.
bool has_context(int device) {
  using State = int (*)(int, unsigned*, int*);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  OCTAVO_CUDA(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000,
                                               cudaEnableDefault, &found));
#else
  OCTAVO_CUDA(cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &function, cudaEnableDefault, &found));
#endif
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(reinterpret_cast<State>(function)(device, &flags, &active), 0);
  return active != 0;
}

// A context uses half a gigabyte of its GPU, so a process with eight GPUs must not open eight.
TEST(DevicesCuda, OnlyTheGroupsDeviceIsOpened) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "needs two GPUs, got " << count;
  }
  if (has_context(count - 1)) GTEST_SKIP() << "the last GPU is in use: run this test alone (--gtest_filter)";
  octavo::GroupConfig config;
  config.device = kGpu;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(octavo::Group::create(config, {}).ok());
    EXPECT_TRUE(octavo::NormGroup::create(kGpu, {}).ok());
  }
  EXPECT_FALSE(has_context(count - 1));
}

TEST(NoGpuCuda, CreatingAGroupSaysWhy) {
  const octavo::GpuReport report = octavo::gpu_info();
  EXPECT_GT(report.runtime_version, 0) << "this build has a CUDA backend";
  if (!report.gpus.empty()) GTEST_SKIP() << "this machine has a GPU: " << report.gpus[0].name;
  EXPECT_THAT(report.note, HasSubstr("driver"));
  const TensorSet set = small_set();
  octavo::GroupConfig config;
  config.device = kGpu;
  for (const Status& status :
       {octavo::Group::create(config, set.args()).status(), octavo::Group::create(config, {}).status(),
        octavo::NormGroup::create(kGpu, {}).status()}) {
    EXPECT_EQ(status.code(), StatusCode::unsupported) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("device: got cuda:0"));
    EXPECT_THAT(status.message(), HasSubstr("driver"));
  }
  // A layout needs no GPU.
  EXPECT_TRUE(octavo::layout(config, set.tensors()[0].spec).ok());
}

class BadInputCuda : public GpuTest {};

TEST_F(BadInputCuda, HostPointersOfTensors) {
  const Stream stream;
  const TensorSet set = small_set();
  DeviceSet gpu(set, Placement::aligned, stream);
  const std::vector<TensorArgs> host = set.args();
  struct Case {
    const char* field;
    std::function<void(TensorArgs&, const TensorArgs&)> change;
  };
  const Case cases[] = {
      {"param", [](auto& t, const auto& h) { t.param = h.param; }},
      {"grad", [](auto& t, const auto& h) { t.grad = h.grad; }},
      {"residual", [](auto& t, const auto& h) { t.residual = h.residual; }},
      {"state[0].codes", [](auto& t, const auto& h) { t.state[0].codes = h.state[0].codes; }},
      {"state[1].scales", [](auto& t, const auto& h) { t.state[1].scales = h.state[1].scales; }},
  };
  for (const Case& c : cases) {
    std::vector<TensorArgs> args = gpu.args();
    c.change(args[1], host[1]);
    const std::string field = std::string("tensors[1].") + c.field;
    expect_invalid(octavo::Group::create(gpu.config(), args).status(), field, "host pointer");
    expect_invalid(gpu.group().rebind(args), field, "host pointer");
  }
  // Pinned memory is host memory, too.
  void* pinned = nullptr;
  OCTAVO_CUDA(cudaMallocHost(&pinned, 1024));
  std::vector<TensorArgs> args = gpu.args();
  args[0].grad = pinned;
  const Status status = octavo::Group::create(gpu.config(), args).status();
  (void)cudaFreeHost(pinned);
  expect_invalid(status, "tensors[0].grad", "host pointer");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "a check left an error behind";

  const std::vector<const void*> grads = {gpu.args()[0].grad, host[1].grad};
  expect_invalid(gpu.group().rebind_grads(grads), "grads[1]", "host pointer");
  // The old pointers remain.
  TensorSet expected = set;
  const OptimizerCase adamw = optimizers(false)[1];
  ASSERT_TRUE(gpu.step(step_args(adamw, 1)).ok());
  ASSERT_TRUE(expected.step(step_args(adamw, 1)).ok());
  EXPECT_EQ(gpu.difference(expected), "");
}

TEST_F(BadInputCuda, HostPointersOfAStep) {
  const Stream stream;
  const TensorSet set = small_set();
  DeviceSet gpu(set, Placement::aligned, stream);
  octavo::Group& group = gpu.group();
  const OptimizerCase adamw = optimizers(false)[1];
  const Buffer memory(group.workspace_bytes());
  StepArgs args = step_args(adamw, 1);
  args.stream = stream;
  args.workspace = {memory.data(), usize(memory.size())};
  expect_invalid(group.step(args).status(), "workspace", "host pointer");
  args.workspace = gpu.workspace().span();
  args.workspace = args.workspace.first(args.workspace.size() - 1);
  expect_invalid(group.step(args).status(), "workspace", "bytes, expected");
  args.workspace = {};
  expect_invalid(group.step(args).status(), "workspace", "bytes, expected");

  struct Case {
    const char* field;
    std::function<void(octavo::StepScalars&)> change;
  };
  float number = 1.0f;
  std::int64_t count = 0;
  GradNorm norm{};
  octavo::StepReport report{};
  const Case cases[] = {
      {"scalars.lr", [&](auto& s) { s.lr = &number; }},
      {"scalars.step", [&](auto& s) { s.step = &count; }},
      {"scalars.loss_scale", [&](auto& s) { s.loss_scale = &number; }},
      {"scalars.found_inf", [&](auto& s) { s.found_inf = &number; }},
      {"scalars.norm", [&](auto& s) { s.norm = &norm; }},
      {"scalars.report", [&](auto& s) { s.report = &report; }},
  };
  args.workspace = gpu.workspace().span();
  for (const Case& c : cases) {
    args.scalars = {};
    c.change(args.scalars);
    expect_invalid(group.step(args).status(), c.field, "host pointer");
    expect_invalid(group.step(args).status(), c.field,
                   "host pointer");  // an error from before is not mistaken for one of the check
  }
  stream.wait();
  EXPECT_EQ(gpu.difference(set), "") << "a failed step wrote something";
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "a check left an error behind";
}

TEST_F(BadInputCuda, HostPointersOfANorm) {
  const Stream stream;
  const TensorSet set = small_set();
  DeviceSet gpu(set, Placement::aligned, stream);
  std::vector<octavo::GradView> views = gpu.grads();
  auto group = octavo::NormGroup::create(kGpu, views);
  ASSERT_TRUE(group.ok());
  views[1].data = set.tensors()[1].grad.data();
  expect_invalid(octavo::NormGroup::create(kGpu, views).status(), "grads[1].data", "host pointer");
  const Buffer memory(group->workspace_bytes());
  const DeviceWorkspace workspace(group->workspace_bytes());
  const OnDevice<GradNorm> out(GradNorm{}, stream);
  GradNorm host{};
  expect_invalid(group->run({memory.data(), usize(memory.size())}, out.get(), stream), "workspace",
                 "host pointer");
  expect_invalid(group->run(workspace.span(), &host, stream), "out", "host pointer");
  expect_invalid(group->run(workspace.span().first(workspace.span().size() - 1), out.get(), stream),
                 "workspace", "bytes, expected");
  EXPECT_TRUE(group->run(workspace.span(), out.get(), stream).ok());
  stream.wait();
}

TEST_F(BadInputCuda, ADeviceThatIsNotThere) {
  const auto count = static_cast<int>(octavo::gpu_info().gpus.size());
  for (const int index : {count, count + 7, 1000000}) {
    octavo::GroupConfig config;
    config.device = {octavo::DeviceKind::cuda, index};
    const std::string device = "device: got cuda:" + std::to_string(index);
    expect_invalid(octavo::Group::create(config, {}).status(), device, "expected cuda:0");
    expect_invalid(octavo::NormGroup::create(config.device, {}).status(), device, "expected cuda:0");
  }
}

}  // namespace
}  // namespace test
