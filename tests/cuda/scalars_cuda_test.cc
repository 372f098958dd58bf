// Tests scalars in the GPU's memory: the bytes, the counter and the report equal those of a CPU step with the
// same scalars in its own memory, and skipped steps write nothing.
// SPDX-License-Identifier: MIT
#include "optimizers/norm_group.h"
#include "tests/cuda/device.h"
#include "tests/reference/formats.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace test {
namespace {

using octavo::DType;
using octavo::GradNorm;
using octavo::StateFormat;
using octavo::StepArgs;
using octavo::StepReport;
using octavo::TensorSpec;
using octavo::WeightStore;

class ScalarsCuda : public GpuTest {};

// The caller's values on the device.
struct Values {
  float lr = 0.0123f;
  float loss_scale = 1.0f;
  float found_inf = 0.0f;
  std::int64_t step = 0;
  GradNorm norm{};
  StepReport report{true, true, -5};
};

enum Use : unsigned { kLr = 1, kStep = 2, kLossScale = 4, kFoundInf = 8, kNorm = 16, kReport = 32 };

octavo::StepScalars scalars(Values* at, unsigned use) {
  octavo::StepScalars s;
  if ((use & kLr) != 0) s.lr = &at->lr;
  if ((use & kStep) != 0) s.step = &at->step;
  if ((use & kLossScale) != 0) s.loss_scale = &at->loss_scale;
  if ((use & kFoundInf) != 0) s.found_inf = &at->found_inf;
  if ((use & kNorm) != 0) s.norm = &at->norm;
  if ((use & kReport) != 0) s.report = &at->report;
  return s;
}

TensorSet mixed_set(const OptimizerCase& optimizer, StateFormat format) {
  std::vector<TensorSpec> specs = {
      tensor_spec(64 * 30, DType::f32, DType::f32, WeightStore::nearest, format),
      tensor_spec(777, DType::bf16, DType::bf16, WeightStore::residual8, format),
      tensor_spec(1024, DType::f16, DType::f16, WeightStore::nearest, format),
      tensor_spec(1333, DType::bf16, DType::f32, WeightStore::stochastic, format)};
  give_shape(specs[0]);
  return {optimizer.config, specs, 77};
}

GradNorm norm_of(const TensorSet& set) {
  std::vector<octavo::GradView> views;
  for (const TensorBuffers& t : set.tensors())
    views.push_back({t.grad.data(), t.spec.grad_dtype, t.spec.numel});
  std::vector<double> workspace(usize(octavo::grad_norm_workspace(views)));
  return octavo::grad_norm(views, workspace, 1).value();
}

std::string text(const Values& v) {
  return "step " + std::to_string(v.step) + ", skipped " + std::to_string(v.report.skipped) + ", pending " +
         std::to_string(v.report.pending) + ", nonfinite " + std::to_string(v.report.nonfinite);
}

// The CPU and the GPU with the same scalars, each in its own memory.
class Pair {
 public:
  Pair(const TensorSet& start, Placement placement, cudaStream_t stream)
      : cpu(start), gpu(start, placement, stream), stream_(stream) {}

  // Runs one step and returns "" or the differences of the tensors, the counter and the report.
  std::string step(StepArgs args, unsigned use, const Values& values) {
    Values host = values;
    memory_.set(values, stream_);
    gpu.upload_grads(cpu);
    args.threads = 1;
    args.scalars = scalars(&host, use);
    const auto on_cpu = cpu.step(args);
    args.scalars = scalars(memory_.get(), use);
    const auto on_gpu = gpu.step(args);
    if (!on_cpu.ok() || !on_gpu.ok()) return on_cpu.status().message() + on_gpu.status().message();
    const Values device = memory_.value(stream_);
    std::string difference = gpu.difference(cpu);
    const auto same = [](const auto& a, const auto& b) { return std::memcmp(&a, &b, sizeof a) == 0; };
    if (device.step != host.step || device.report.skipped != host.report.skipped ||
        device.report.pending != host.report.pending || device.report.nonfinite != host.report.nonfinite)
      difference += "  got " + text(device) + "; expected " + text(host) + "\n";
    if (!same(device.lr, host.lr) || !same(device.loss_scale, host.loss_scale) ||
        !same(device.found_inf, host.found_inf) || !same(device.norm, host.norm))
      difference += "  a scalar that is only read was written\n";
    const bool may_skip = args.skip_nonfinite || (use & kFoundInf) != 0;
    if (on_gpu->pending != may_skip) difference += "  pending is not " + std::to_string(may_skip) + "\n";
    if (on_gpu->skipped) difference += "  skipped, before the device has said so\n";
    last = host;
    return difference;
  }

  TensorSet cpu;
  DeviceSet gpu;
  Values last;

 private:
  cudaStream_t stream_;
  OnDevice<Values> memory_;
};

struct Case {
  const char* name;
  unsigned use;
  double clip_grad_norm;
  float loss_scale;
};

TEST_F(ScalarsCuda, EqualTheCpu) {
  const Stream stream;
  Tally tally;
  const Case cases[] = {
      {"lr", kLr, 0.0, 1.0f},
      {"step", kStep, 0.0, 1.0f},
      {"loss_scale 1024", kLossScale, 0.0, 1024.0f},
      {"loss_scale 1000.3", kLossScale, 0.0, 1000.3f},
      {"loss_scale 0", kLossScale, 0.0, 0.0f},
      {"norm, clipped", kNorm | kLossScale | kReport, 1e-5, 1001.7f},
      {"norm, not clipped", kNorm | kReport, 1e5, 1.0f},
      {"all", kLr | kStep | kLossScale | kFoundInf | kNorm | kReport, 0.1, 0.0625f},
  };
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      for (const Case& c : cases) {
        Pair pair(mixed_set(optimizer, format),
                  ++combination % 3 == 0 ? Placement::as_host : Placement::aligned, stream);
        const TensorSet before = pair.cpu;
        std::string difference;
        Values values;
        values.loss_scale = c.loss_scale;
        for (std::int64_t step = 1; step <= 3 && difference.empty(); ++step) {
          fill(pair.cpu, step == 2 ? Grads::mixed : Grads::dense, static_cast<std::uint64_t>(step));
          values.norm = norm_of(pair.cpu);
          StepArgs args = step_args(optimizer, step);
          if ((c.use & kLr) != 0) args.hyper.lr = std::nan("");  // must not be read
          if ((c.use & kStep) != 0) args.step = -1;
          args.grad_factor = 0.3;
          args.clip_grad_norm = c.clip_grad_norm;
          difference = pair.step(args, c.use, values);
          values.step = pair.last.step;
        }
        if (difference.empty() && pair.cpu.difference(before).empty()) difference = "no step was taken";
        tally.add(std::string(optimizer.name) + ", " + std::string(octavo::name(format)) + ", " + c.name,
                  difference);
      }
    }
  }
}

TEST_F(ScalarsCuda, FoundInfSkips) {
  const Stream stream;
  Tally tally;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : {StateFormat::int4_rank1, StateFormat::int8}) {
      for (const float found : {0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, NAN, INFINITY}) {
        Pair pair(mixed_set(optimizer, format), Placement::aligned, stream);
        const TensorSet before = pair.cpu;
        Values values;
        values.found_inf = found;
        values.step = 8;
        std::string difference = pair.step(step_args(optimizer, 0), kFoundInf | kStep | kReport, values);
        // This is also checked against the meaning of a skipped step, not only against the CPU.
        const bool skipped = found != 0.0f;
        if (pair.cpu.difference(before).empty() != skipped || pair.last.step != (skipped ? 8 : 9))
          difference += "  the CPU is wrong";
        tally.add(std::string(optimizer.name) + ", found_inf " + std::to_string(found), difference);
      }
    }
  }
}

TEST_F(ScalarsCuda, TheGuardSkipsAndCounts) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      Pair pair(mixed_set(optimizer, format),
                ++combination % 2 == 0 ? Placement::as_host : Placement::aligned, stream);
      StepArgs args = step_args(optimizer, 1);
      args.skip_nonfinite = true;
      Values values;
      std::string difference = pair.step(args, kReport | kStep, values);
      const TensorSet before = pair.cpu;
      values.step = 1;
      auto& tensors = pair.cpu.tensors();
      tensors[0].grad.as<float>()[1919] = NAN;
      tensors[1].grad.as<std::uint16_t>()[776] = 0xFF80;  // -infinity
      tensors[2].grad.as<std::uint16_t>()[0] = 0x7C00;    // infinity
      tensors[3].grad.as<float>()[0] = 2e19f;             // its square is not finite
      difference += pair.step(args, kReport | kStep, values);
      if (!pair.last.report.skipped || pair.last.report.nonfinite != 4 || pair.last.step != 1)
        difference += "  the CPU is wrong: " + text(pair.last) + "\n";
      // Runs without a report or a counter as well.
      difference += pair.step(args, 0, values);
      // Gradients count after the division by the loss scale: one more, or one less.
      values.loss_scale = 1e-30f;
      difference += pair.step(args, kReport | kLossScale, values);
      values.loss_scale = 4.0f;
      difference += pair.step(args, kReport | kLossScale, values);
      if (pair.last.report.nonfinite != 3) difference += "  the CPU is wrong: " + text(pair.last) + "\n";
      if (!pair.cpu.difference(before).empty()) difference += "  the CPU took a step\n";
      tally.add(std::string(optimizer.name) + ", " + std::string(octavo::name(format)), difference);
    }
  }
}

// The tensors end anywhere, begin anywhere, and have blocks larger than a tile.
TEST_F(ScalarsCuda, TheGuardCountsEveryElementOnce) {
  const Stream stream;
  Tally tally;
  const OptimizerCase optimizer = optimizers(false).front();
  for (const DType dtype : octavo::all_dtypes()) {
    for (const std::int64_t block : {0, 2048}) {
      std::vector<TensorSpec> specs;
      for (const std::int64_t numel : {1, 7, 8, 9, 511, 513, 4095, 4097, 9001, 20480, 33333, 2})
        specs.push_back(tensor_spec(numel, dtype, dtype, WeightStore::nearest, StateFormat::int8, block));
      for (const Placement placement : {Placement::aligned, Placement::as_host, Placement::mixed}) {
        Pair pair(TensorSet(optimizer.config, specs, 5), placement, stream);
        StepArgs args = step_args(optimizer, 1);
        args.skip_nonfinite = true;
        args.grad_factor = 0.7;
        Values values;
        values.loss_scale = 3.0f;
        // The ends of each tensor and of its tiles, then everything.
        std::int64_t expected = 0;
        for (TensorBuffers& t : pair.cpu.tensors()) {
          for (std::int64_t at = 0; at < t.spec.numel; at += at % 512 == 0 ? 511 : 1) {
            reference::store_nearest(dtype, t.grad.data(), at, NAN);
            ++expected;
          }
        }
        std::string difference = pair.step(args, kReport | kLossScale, values);
        if (pair.last.report.nonfinite != expected) difference += "  the CPU is wrong: " + text(pair.last);
        expected = 0;
        for (TensorBuffers& t : pair.cpu.tensors()) {
          for (std::int64_t at = 0; at < t.spec.numel; ++at)
            reference::store_nearest(dtype, t.grad.data(), at, INFINITY);
          expected += t.spec.numel;
        }
        difference += pair.step(args, kReport | kLossScale, values);
        if (pair.last.report.nonfinite != expected) difference += "  the CPU is wrong: " + text(pair.last);
        tally.add(std::string(octavo::name(dtype)) + ", blocks of " + std::to_string(block), difference);
      }
    }
  }
}

// With a norm, its count decides and the gradients are not read, even if they disagree.
TEST_F(ScalarsCuda, GuardTakesTheCountOfTheNorm) {
  const Stream stream;
  Tally tally;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    Pair pair(mixed_set(optimizer, StateFormat::int8), Placement::aligned, stream);
    StepArgs args = step_args(optimizer, 0);
    args.skip_nonfinite = true;
    args.clip_grad_norm = 1.0;
    Values values;
    values.step = 2;
    values.norm = {1.0, 1.0, 3};
    std::string difference = pair.step(args, kNorm | kStep | kReport, values);
    if (!pair.last.report.skipped || pair.last.report.nonfinite != 3) difference += "  the CPU is wrong\n";
    values.norm = {1.0, 1.0, 0};
    pair.cpu.tensors()[0].grad.as<float>()[0] = NAN;
    difference += pair.step(args, kNorm | kStep | kReport, values);
    if (pair.last.step != 3) difference += "  the CPU is wrong\n";
    for (const double l2 : {0.0, std::nan(""), HUGE_VAL}) {
      values.norm = {l2, l2, 0};
      difference += pair.step(args, kNorm | kStep | kReport, values);
    }
    tally.add(optimizer.name, difference);
  }
}

TEST_F(ScalarsCuda, LearningRatesOutOfTheOrdinary) {
  const Stream stream;
  Tally tally;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : {StateFormat::fp32, StateFormat::int8, StateFormat::int4_rank1}) {
      for (const float lr : {0.0f, -0.0f, 1e-45f, 1e30f, INFINITY, NAN, -1.0f}) {
        Pair pair(mixed_set(optimizer, format), Placement::aligned, stream);
        fill(pair.cpu, Grads::dense, 1);
        Values values;
        values.lr = lr;
        values.step = 999999;
        tally.add(std::string(optimizer.name) + ", lr " + std::to_string(lr),
                  pair.step(step_args(optimizer, 1), kLr | kStep, values));
      }
    }
  }
}

}  // namespace
}  // namespace test
