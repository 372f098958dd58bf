// Streams and pointers: groups in parallel, nothing on the legacy stream, new gradients, tensors and
// workspaces.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "optimizers/norm_group.h"
#include "tests/cuda/device.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::StepArgs;
using octavo::TensorSpec;
using octavo::WeightStore;

TensorSet all_formats(const OptimizerCase& optimizer, std::uint64_t seed, std::int64_t numel) {
  std::vector<TensorSpec> specs;
  for (const StateFormat format : octavo::all_state_formats()) {
    specs.push_back(tensor_spec(numel, DType::bf16, DType::bf16, WeightStore::stochastic, format));
    give_shape(specs.back());
  }
  return {optimizer.config, specs, seed};
}

class StreamsCuda : public GpuTest {};

TEST_F(StreamsCuda, GroupsSideBySide) {
  const Stream one;
  const Stream two;
  const OptimizerCase adamw = optimizers(false)[1];
  const OptimizerCase lion = optimizers(false)[5];
  TensorSet cpu_one = all_formats(adamw, 3, 100000);
  TensorSet cpu_two = all_formats(lion, 4, 150000);
  DeviceSet gpu_one(cpu_one, Placement::aligned, one);
  DeviceSet gpu_two(cpu_two, Placement::as_host, two);
  (void)gpu_one.group();
  (void)gpu_two.group();
  std::thread other([&] {
    for (std::int64_t step = 1; step <= 10; ++step) EXPECT_TRUE(gpu_two.step(step_args(lion, step)).ok());
  });
  for (std::int64_t step = 1; step <= 10; ++step) EXPECT_TRUE(gpu_one.step(step_args(adamw, step)).ok());
  other.join();
  for (std::int64_t step = 1; step <= 10; ++step) {
    StepArgs args = step_args(adamw, step);
    args.threads = 0;
    ASSERT_TRUE(cpu_one.step(args).ok());
    args = step_args(lion, step);
    args.threads = 0;
    ASSERT_TRUE(cpu_two.step(args).ok());
  }
  EXPECT_EQ(gpu_one.difference(cpu_one), "");
  EXPECT_EQ(gpu_two.difference(cpu_two), "");
}

TEST_F(StreamsCuda, AnotherStreamAtEveryStep) {
  const Stream one;
  const Stream two;
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet cpu = all_formats(adamw, 3, 5000);
  DeviceSet gpu(cpu, Placement::aligned, one);
  octavo::Group& group = gpu.group();
  // The legacy stream (null) and the per-thread one as well.
  const cudaStream_t streams[] = {one, two, nullptr, cudaStreamPerThread, cudaStreamLegacy, two, one};
  for (std::int64_t step = 1; step <= 7; ++step) {
    StepArgs args = step_args(adamw, step);
    args.stream = streams[step - 1];
    args.workspace = gpu.workspace().span();
    const auto report = group.step(args);
    ASSERT_TRUE(report.ok()) << report.status().message();
    OCTAVO_CUDA(cudaStreamSynchronize(streams[step - 1]));
    ASSERT_TRUE(cpu.step(step_args(adamw, step)).ok());
  }
  EXPECT_EQ(gpu.difference(cpu), "");
}

// Blocks the legacy stream until it is released, or for ten seconds.
struct Gate {
  std::atomic<bool> open{false};
  std::atomic<bool> entered{false};
  std::atomic<bool> timed_out{false};

  static void CUDART_CB wait(void* self) {
    auto& gate = *static_cast<Gate*>(self);
    gate.entered = true;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!gate.open) {
      if (std::chrono::steady_clock::now() > end) {
        gate.timed_out = true;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

TEST_F(StreamsCuda, NothingRunsOnTheLegacyStream) {
  const Stream stream;
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet cpu = all_formats(adamw, 3, 5000);
  DeviceSet gpu(cpu, Placement::aligned, stream);
  auto norm = octavo::NormGroup::create(kGpu, gpu.grads());
  ASSERT_TRUE(norm.ok());
  const DeviceWorkspace workspace(norm->workspace_bytes());
  const OnDevice<octavo::GradNorm> result(octavo::GradNorm{}, stream);
  const OnDevice<std::int64_t> count(0, stream);
  const OnDevice<octavo::StepReport> report(octavo::StepReport{}, stream);
  const auto step = [&](bool with_norm) {
    StepArgs args = step_args(adamw, 1);
    args.skip_nonfinite = true;
    args.scalars.step = count.get();
    args.scalars.report = report.get();
    if (with_norm) {
      args.clip_grad_norm = 1.0;
      args.scalars.norm = result.get();
      if (!norm->run(workspace.span(), result.get(), stream).ok()) return false;
    }
    return gpu.step(args).ok();
  };
  // Kernels are loaded at their first launch, which may wait for the device, so they are launched before it
  // is blocked.
  ASSERT_TRUE(step(false) && step(true));
  stream.wait();
  const DeviceGrads other(cpu, Placement::as_host, stream);

  Gate gate;
  OCTAVO_CUDA(cudaLaunchHostFunc(cudaStreamLegacy, &Gate::wait, &gate));
  while (!gate.entered) std::this_thread::yield();
  bool good = step(false) && step(true);
  good = good && gpu.group().rebind_grads(other.pointers()).ok() && step(false) && step(true);
  cudaError_t state = cudaErrorNotReady;
  while (state == cudaErrorNotReady && !gate.timed_out) state = cudaStreamQuery(stream);
  const bool held = !gate.timed_out;
  gate.open = true;
  OCTAVO_CUDA(cudaDeviceSynchronize());
  EXPECT_TRUE(good);
  EXPECT_EQ(state, cudaSuccess) << cudaGetErrorString(state);
  EXPECT_TRUE(held) << "a step waited for the legacy stream";
  EXPECT_EQ(count.value(stream), 6);
}

class RebindCuda : public GpuTest {};

TEST_F(RebindCuda, NewGradientsTensorsAndWorkspaces) {
  const Stream stream;
  Tally tally;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const Placement placement : {Placement::aligned, Placement::as_host}) {
      TensorSet cpu = all_formats(optimizer, 3, 2048 + 5);
      TensorSet second = cpu;
      DeviceSet gpu(cpu, placement, stream);
      std::int64_t step = 1;
      std::string difference;
      std::vector<std::unique_ptr<DeviceGrads>> kept;
      const auto take_step = [&](const std::string& what, DeviceSet& device, TensorSet& host,
                                 std::span<std::byte> workspace, bool moved_grads) {
        StepArgs args = step_args(optimizer, step++);
        args.stream = stream;
        args.workspace = workspace;
        const auto report = gpu.group().step(args);
        if (!report.ok()) difference += what + ": " + report.status().message() + "\n";
        if (!host.step(args = step_args(optimizer, args.step)).ok()) difference += "CPU\n";
        if (moved_grads) device.upload_grads(host);  // for the comparison; the group does not read these
        if (const std::string d = device.difference(host); !d.empty()) difference += what + ":\n" + d;
      };
      (void)gpu.group();
      const std::span<std::byte> workspace = gpu.workspace().span();
      take_step("first", gpu, cpu, workspace, false);
      for (const Placement to :
           {Placement::aligned, Placement::as_host, Placement::as_host, Placement::aligned}) {
        fill(cpu, Grads::dense, static_cast<std::uint64_t>(step));
        kept.push_back(std::make_unique<DeviceGrads>(cpu, to, stream));
        const octavo::Status status = gpu.group().rebind_grads(kept.back()->pointers());
        if (!status.ok()) difference += status.message();
        take_step(to == Placement::aligned ? "aligned gradients" : "unaligned gradients", gpu, cpu, workspace,
                  true);
        take_step("the same gradients", gpu, cpu, workspace, false);
      }
      const DeviceWorkspace other(gpu.group().workspace_bytes());
      take_step("another workspace", gpu, cpu, other.span(), false);
      take_step("the first workspace", gpu, cpu, workspace, false);
      if (!other.surroundings_intact(stream)) difference += "bytes around the other workspace\n";

      DeviceSet device(second, placement == Placement::aligned ? Placement::as_host : Placement::aligned,
                       stream);
      const octavo::Status status = gpu.group().rebind(device.args());
      if (!status.ok()) difference += status.message();
      take_step("new tensors", device, second, workspace, false);
      take_step("new tensors again", device, second, workspace, false);
      if (const std::string d = gpu.difference(cpu); !d.empty()) difference += "the old tensors:\n" + d;
      tally.add(std::string(optimizer.name) + (placement == Placement::aligned ? ", aligned" : ", unaligned"),
                difference);
    }
  }
}

TEST_F(RebindCuda, TheGuardReadsTheNewGradients) {
  const Stream stream;
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet cpu = all_formats(adamw, 3, 3000);
  DeviceSet gpu(cpu, Placement::aligned, stream);
  TensorSet bad = cpu;
  bad.tensors()[2].grad.as<std::uint16_t>()[2999] = 0x7F80;  // infinity
  const DeviceGrads grads(bad, Placement::as_host, stream);
  const OnDevice<octavo::StepReport> report(octavo::StepReport{}, stream);
  StepArgs args = step_args(adamw, 1);
  args.skip_nonfinite = true;
  args.scalars.report = report.get();
  ASSERT_TRUE(gpu.step(args).ok());
  EXPECT_FALSE(report.value(stream).skipped);
  ASSERT_TRUE(gpu.group().rebind_grads(grads.pointers()).ok());
  ASSERT_TRUE(gpu.step(args).ok());
  EXPECT_TRUE(report.value(stream).skipped);
  EXPECT_EQ(report.value(stream).nonfinite, 1);
  ASSERT_TRUE(cpu.step(step_args(adamw, 1)).ok());
  EXPECT_EQ(gpu.difference(cpu), "");
}

}  // namespace
}  // namespace test
