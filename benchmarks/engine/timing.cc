// Times steps, norms and copies; see timing.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/timing.h"

#include "benchmarks/engine/data.h"
#include "cli/cli.h"
#include "cli/table.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

namespace octavo::cli {
namespace {

constexpr std::int64_t kWanted = std::int64_t{1} << 30;

// Smaller copies would measure the caches instead of the memory.
std::int64_t least(const BenchDevice& device) { return std::int64_t{1} << (device.on_gpu() ? 28 : 26); }

constexpr int kWarmUpsCpu = 2;
constexpr int kWarmUpsGpu = 5;
// Steps before the warm-ups on a GPU, where filling is cheap; each step has new gradients.
constexpr int kSettleGpu = 5;
// Used if the rows with a gradient change from step to step: after 300 idle steps a first moment has decayed
// below 2^-50. A CPU would need minutes for 300 steps.
constexpr int kSettleRowsCpu = 20;
constexpr int kSettleRowsGpu = 300;
// Calls whose host time is measured. A device's queue holds about 1000 launches, and a full queue blocks the
// caller, so the queue is drained after every batch.
constexpr int kBatches = 20;
constexpr int kCallsPerBatch = 10;

int warm_ups(const BenchDevice& device) { return device.on_gpu() ? kWarmUpsGpu : kWarmUpsCpu; }

double us_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

HostTiming time_host(BenchDevice& device, Workload& workload) {
  std::vector<double> plain, rebind, rebound;
  for (int batch = 0; batch < kBatches; ++batch) {
    device.wait();
    for (int i = 0; i < kCallsPerBatch; ++i) plain.push_back(us_of([&] { workload.step(false); }));
    device.wait();
    for (int i = 0; i < kCallsPerBatch; ++i) {
      rebind.push_back(us_of([&] { workload.move_grads(); }));
      rebound.push_back(us_of([&] { workload.step(false); }));
    }
  }
  device.wait();
  return {median(plain), median(rebind), median(rebound)};
}

Timing summary(const std::vector<double>& milliseconds) {
  Timing out;
  out.ms_median = median(milliseconds);
  out.ms_min = *std::min_element(milliseconds.begin(), milliseconds.end());
  return out;
}

// Runs the warm-ups and, immediately after them, the timed calls.
std::vector<double> time_calls(BenchDevice& device, int repeat, const std::function<void()>& work) {
  for (int i = 0; i < warm_ups(device); ++i) work();
  return device.time_ms(repeat, work);
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

CopyMeter::CopyMeter(BenchDevice& device) : device_(device) {
  const std::int64_t available = device.free_memory();
  std::int64_t bytes = kWanted;
  while (bytes > available / 5 * 2) bytes /= 2;
  if (bytes < least(device))
    throw Failure(kExitFailure, "the copy ceiling needs " + human_bytes(least(device) * 5 / 2) +
                                    " of free memory, " + human_bytes(available) +
                                    " are free; --dry-run needs none");
  if (bytes < kWanted)
    note_ = "copied " + human_bytes(bytes) + " instead of " + human_bytes(kWanted) + " each side: only " +
            human_bytes(available) + " of memory are free";
  from_ = device.allocate(bytes);
  to_ = device.allocate(bytes);
  device.fill(from_.data(), DType::f32, stream_of(0, 0), kWeightShift, bytes / 4);
}

CopySamples CopyMeter::sample(int repeat) {
  const auto by = [&](CopyWay way) {
    return device_.time_ms(repeat, [&] { device_.copy(way, to_.data(), from_.data(), from_.size); });
  };
  CopySamples out;
  out.library = by(CopyWay::library);
  out.streaming = by(CopyWay::streaming);
  return out;
}

double CopyMeter::gb_per_s(const CopySamples& before, const CopySamples& after) const {
  const auto both = [](std::vector<double> a, const std::vector<double>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return median(std::move(a));
  };
  const double ms = std::min(both(before.library, after.library), both(before.streaming, after.streaming));
  return 2e-6 * static_cast<double>(bytes()) / ms;
}

int settle_steps(const BenchDevice& device, const GradRows& rows) {
  if (rows.change()) return device.on_gpu() ? kSettleRowsGpu : kSettleRowsCpu;
  return device.on_gpu() ? kSettleGpu : 0;
}

Timing time_steps(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors,
                  const Repeats& repeats) {
  Workload workload(device, run, tensors, tensor_specs(run, tensors.shapes, false));
  const int settle = repeats.settle.value_or(settle_steps(device, workload.rows()));
  for (int step = 1; step <= settle; ++step) {
    workload.fill_grads(step);
    workload.step();
  }
  Timing out = summary(time_calls(device, repeats.timed, [&] { workload.step(); }));
  if (run.guard) workload.check_taken();
  out.touched = workload.touched();
  out.ever_touched = workload.ever_touched();
  if (!device.on_gpu()) return out;
  out.ms_guard = median(time_calls(device, repeats.timed, [&] { workload.step(true); }));
  workload.check_taken();
  out.ms_clip = median(time_calls(device, repeats.timed, [&] { workload.clip_and_step(); }));
  workload.check_taken();
  out.host = time_host(device, workload);  // last, because moved gradients touch other rows
  return out;
}

Timing time_norm(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors, int repeat) {
  NormWorkload workload(device, run, tensors);
  return summary(time_calls(device, repeat, [&] { workload.step(); }));
}

}  // namespace octavo::cli
