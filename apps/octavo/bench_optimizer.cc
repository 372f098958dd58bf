// `octavo bench optimizer`: for each optimizer and state format, first a check of what it computes, then its
// time, beside the copy speed of the same device in the same run.
// SPDX-License-Identifier: MIT
#include "bench_check.h"
#include "bench_norm.h"
#include "bench_options.h"
#include "bench_report.h"
#include "cli.h"
#include "copy_speed.h"
#include "progress.h"
#include "table.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <utility>

namespace octavo::cli {
namespace {

constexpr int kCopiesOnCpu = 5, kCopiesOnGpu = 10;                 // at most, before and after each row
constexpr std::int64_t kWorkspaceMargin = std::int64_t{64} << 20;  // tables that a GPU keeps

constexpr const char* kFooter = R"(Examples:
  octavo bench optimizer --state fp32,8bit --numel 2^24
  octavo bench optimizer --shape gpt2 --param-dtype bf16 --store bf16+16
  octavo bench optimizer --device cuda --shape all --param-dtype bf16 --norm
  octavo bench optimizer --optimizer all --state all --dry-run --json

Bytes. "B/param" is what the optimizer keeps for a parameter: codes and scales of all moments,
exactly as layout() gives them, small tensors (below 4096 elements: fp32 states) included.
"moved" is what a step must read and write: the parameter, its states with their scales and its
residual both ways, the gradient once (twice with --guard). So AdamW with fp32 parameters moves
28 B with fp32 states and 16.06 B with 8-bit ones (16.03 for those who count the scales one way).
A format that needs a second pass over the tensor (4bit-rank1) is counted as if it made one.

Time. Two warm-up steps (ten on a GPU), then --repeat steps: median and minimum; GB/s is moved
bytes over the median. The copy ceiling is the better of two copies, 1 GiB each side (less where
memory is short), bytes read and written both counted: on the CPU memcpy and a loop of streaming
stores, by as many threads; on a GPU cudaMemcpyAsync and a kernel. Each is the median of up to
five copies (ten on a GPU) right before and as many right after the row's steps; on a GPU the
best of the run counts for every row.

On a GPU a step is timed by events around it on a stream of its own, steps queued one behind the
other. "guard ms" is the same with the guard on. "host us" is what one call costs the calling
thread (median of 200, nothing waits), "rebound us" what rebind_grads and the step after it do.

Checksum (with --json). A 64-bit FNV-1a hash of params, residuals and states after three steps
on fixed tensors (1, 31, 255, 256, 257, 4095, 4097, 100003, 64x96, 1024x1x9 and 16x3x5x7
elements) with seeded data, whatever --shape says. It depends on optimizer, format, dtypes,
store and block size alone: implementations, threads and devices must agree on it. A GPU is
compared with the CPU in every byte first; where they differ the row is an error, is not timed,
and the exit code is 1.)";

// The work of one invocation: rows are filled in place.
class Bench {
 public:
  Bench(const BenchFlags& flags, const BenchPlan& plan, BenchDevice& device)
      : flags_(flags), plan_(plan), device_(device) {
    for (const std::string& shape : plan.shapes) {
      const std::vector<TensorShape> tensors = tensor_list(shape, plan.flat_numel);
      BenchSection& section = sections_.emplace_back();
      section.shape = shape;
      for (const RunSpec& run : plan.runs)
        section.rows.push_back({run, footprint(run, tensor_specs(run, tensors, false)), {}, {}, {}});
      if (flags.norm) {
        const RunSpec run = without_states(plan.runs.front());
        section.norm = {footprint(run, tensor_specs(run, tensors, true)), {}, {}};
      }
    }
  }

  void check_results() {
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) {
      progress_.say("checking: " + label(plan_.runs[i]));
      const Check check = check_steps(device_, plan_.runs[i]);
      for (BenchSection& section : sections_) {
        section.rows[i].checksum = check.checksum;
        section.rows[i].error = check.error;
      }
    }
    if (!flags_.norm) return;
    progress_.say("checking: norm");
    const std::string error = check_norm(device_, plan_.runs.front());
    for (BenchSection& section : sections_) section.norm->error = error;
  }

  // Times every row between copies; the bytes of one copy.
  std::int64_t time_rows() {
    progress_.say("timing: copy");
    CopyMeter meter(device_);
    if (!meter.note().empty()) progress_.note(meter.note());
    check_memory();
    const int copies = device_.on_gpu() ? kCopiesOnGpu : std::min(plan_.repeat, kCopiesOnCpu);
    (void)meter.sample(1);
    CopySamples before = meter.sample(copies);
    const auto time = [&](auto& row, const std::string& what, auto work) {
      if (!row.error.empty()) return;
      progress_.say("timing: " + what);
      try {
        row.timing = work();
      } catch (const Failure& failure) {
        row.error = failure.what();
        return;
      }
      CopySamples after = meter.sample(copies);
      row.timing->copy_gb_per_s = meter.gb_per_s(before, after);
      before = std::move(after);
    };
    for (BenchSection& section : sections_) {
      const std::vector<TensorShape> tensors = tensor_list(section.shape, plan_.flat_numel);
      for (BenchRow& row : section.rows)
        time(row, section.shape + ' ' + label(row.run),
             [&] { return time_steps(device_, row.run, tensors, plan_.repeat); });
      if (section.norm)
        time(*section.norm, section.shape + " norm",
             [&] { return time_norm(device_, plan_.runs.front(), tensors, plan_.repeat); });
    }
    if (device_.on_gpu()) share_ceiling();
    return meter.bytes();
  }

  [[nodiscard]] std::vector<BenchSection> take_sections() { return std::move(sections_); }

 private:
  // A GPU's ceiling is the same for all rows: the best copy of the run. (A CPU's drifts with its neighbours.)
  void share_ceiling() {
    double best = 0.0;
    const auto each = [&](auto&& f) {
      for (BenchSection& section : sections_) {
        for (BenchRow& row : section.rows)
          if (row.timing) f(*row.timing);
        if (section.norm && section.norm->timing) f(*section.norm->timing);
      }
    };
    each([&](const Timing& timing) { best = std::max(best, timing.copy_gb_per_s); });
    each([&](Timing& timing) { timing.copy_gb_per_s = best; });
  }

  void check_memory() const {
    const std::int64_t free = device_.free_memory();
    for (const BenchSection& section : sections_) {
      for (const BenchRow& row : section.rows) {
        const std::int64_t needed = row.bytes.memory_bytes + (device_.on_gpu() ? kWorkspaceMargin : 0);
        if (needed > free)
          throw Failure(kExitFailure, section.shape + ' ' + label(row.run) + " needs " + human_bytes(needed) +
                                          " of memory on " + device_name(device_.device()) + " and " +
                                          human_bytes(free) +
                                          " are free; use a smaller --shape or --numel, or --dry-run");
      }
    }
  }

  const BenchFlags& flags_;
  const BenchPlan& plan_;
  BenchDevice& device_;
  Progress progress_;
  std::vector<BenchSection> sections_;
};

// "2 of 8 rows failed: adamw 8bit: …", or nothing.
std::string errors_of(const std::vector<BenchSection>& sections) {
  std::size_t rows = 0, failed = 0;
  std::string first;
  const auto count = [&](const std::string& what, const std::string& error) {
    ++rows;
    if (!error.empty() && failed++ == 0) first = what + ": " + error;
  };
  for (const BenchSection& section : sections) {
    for (const BenchRow& row : section.rows) count(section.shape + ' ' + label(row.run), row.error);
    if (section.norm) count(section.shape + " norm", section.norm->error);
  }
  if (failed == 0) return {};
  return std::to_string(failed) + " of " + std::to_string(rows) + " rows failed: " + first;
}

void bench_optimizer(const BenchFlags& flags) {
  const BenchPlan plan = plan_bench(flags);
  BenchRun common{plan.device, gpu_info(), std::string(take(implementation())), plan.runs.front().threads, 0};
  const std::unique_ptr<BenchDevice> device = make_device(plan.device, common.threads);
  std::vector<BenchSection> sections;
  {
    Bench bench(flags, plan, *device);
    bench.check_results();
    if (!flags.dry_run) common.copy_bytes = bench.time_rows();
    sections = bench.take_sections();
  }
  std::cout << (flags.json ? json_report(common, sections) : table_report(common, sections));
  if (const std::string errors = errors_of(sections); !errors.empty()) throw Failure(kExitFailure, errors);
}

}  // namespace

void add_bench_optimizer(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("optimizer", "Time the optimizer step for each state format");
  auto flags = std::make_shared<BenchFlags>();
  add_bench_options(*command, *flags);
  command->footer(kFooter);
  command->callback([flags] { bench_optimizer(*flags); });
}

}  // namespace octavo::cli
