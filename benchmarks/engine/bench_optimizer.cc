// Implements `octavo bench optimizer`: checks the results of each optimizer and state format, then times the
// step and compares it with the copy speed of the same device in the same run. A fixed problem is checked
// before anything is timed: its checksum is printed, and a GPU must agree with the CPU in every byte.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/commands.h"
#include "benchmarks/engine/data.h"
#include "benchmarks/engine/options.h"
#include "benchmarks/engine/report.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/table.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <iostream>
#include <memory>
#include <utility>

namespace octavo::cli {
namespace {

struct Check {
  std::string checksum;  // 16 hex digits
  std::string error;  // how the GPU's results differ from the CPU's, or why there are no results; else empty
};

constexpr int kSteps = 3;
constexpr double kZeros = 0.5;
// Row length of 1-d tensors, if rows have no gradient; rows cross quantization blocks.
constexpr std::int64_t kRow = 48;

std::vector<TensorShape> fixed_shapes() {
  std::vector<TensorShape> shapes;
  for (const std::int64_t numel : {1, 31, 255, 256, 257, 4095, 4097, 100003})
    shapes.push_back(TensorShape("flat", {numel}));
  shapes.push_back(TensorShape("2d", {64, 96}));
  shapes.push_back(TensorShape("3d", {1024, 1, 9}));
  shapes.push_back(TensorShape("4d", {16, 3, 5, 7}));
  for (TensorShape& shape : shapes)
    if (shape.ndim == 1) shape.row = kRow;
  return shapes;
}

std::vector<Workload::Piece> results(BenchDevice& device, const RunSpec& run, double zeros) {
  const BenchTensors tensors{fixed_shapes(), zeros};
  Workload workload(device, run, tensors, tensor_specs(run, tensors.shapes, true));
  for (int step = 1; step <= kSteps; ++step) {
    workload.fill_grads(step);
    workload.step();
  }
  if (run.guard) workload.check_taken();
  return workload.read();
}

std::string checksum(const std::vector<Workload::Piece>& pieces) {
  std::uint64_t hash = kHashStart;
  for (const Workload::Piece& piece : pieces) hash = fnv1a(hash, piece.bytes);
  return hex16(hash);
}

std::string hex(std::byte value) {
  std::array<char, 5> text{};
  std::snprintf(text.data(), text.size(), "0x%02x", std::to_integer<unsigned>(value));
  return text.data();
}

// Returns the first piece that differs and its first differing byte, or an empty string if all are equal.
std::string difference(const std::vector<Workload::Piece>& cpu, const std::vector<Workload::Piece>& gpu) {
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    const auto &a = cpu[i].bytes, &b = gpu[i].bytes;
    std::size_t count = 0, first = 0;
    for (std::size_t at = 0; at < a.size(); ++at)
      if (a[at] != b[at] && count++ == 0) first = at;
    if (count > 0)
      return "GPU and CPU differ in " + cpu[i].what + ": " + std::to_string(count) + " of " +
             std::to_string(a.size()) + " bytes, first byte " + std::to_string(first) + " (CPU " +
             hex(a[first]) + ", GPU " + hex(b[first]) + ")";
  }
  return {};
}

// Runs three steps on a fixed list of tensors: sizes 1, 31, 255, 256, 257, 4095, 4097, 100003 in one
// dimension, and 64x96, 1024x1x9, 16x3x5x7; all in the run's state format. The checksum (FNV-1a over each
// tensor's param, residual, codes and scales) depends only on optimizer, format, dtypes, store and block
// size. It does not depend on the device, the implementation, threads, guard, or what is timed. With
// `zero_rows` a GPU is compared once more, on the same tensors with half of their rows without a gradient;
// the checksum does not change.
Check check_steps(BenchDevice& device, const RunSpec& run, bool zero_rows) {
  const std::unique_ptr<BenchDevice> host = make_host_device(run.threads);
  const std::vector<Workload::Piece> expected = results(*host, run, 0.0);
  Check out{checksum(expected), {}};
  if (!device.on_gpu()) return out;
  try {
    out.error = difference(expected, results(device, run, 0.0));
    if (out.error.empty() && zero_rows) {
      out.error = difference(results(*host, run, kZeros), results(device, run, kZeros));
      if (!out.error.empty()) out.error = "with rows without a gradient: " + out.error;
    }
  } catch (const Failure& failure) {
    out.error = failure.what();
  }
  return out;
}

// Compares the gradient norm of the same tensors. Returns an empty string, or how the GPU's norm differs from
// the CPU's.
std::string check_norm(BenchDevice& device, const RunSpec& run) {
  if (!device.on_gpu()) return {};
  const std::unique_ptr<BenchDevice> host = make_host_device(run.threads);
  const BenchTensors tensors{fixed_shapes(), 0.0};
  try {
    const octavo_device_norm cpu = NormWorkload(*host, run, tensors).result(),
                             gpu = NormWorkload(device, run, tensors).result();
    const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
    if (bits(cpu.l2) == bits(gpu.l2) && bits(cpu.max) == bits(gpu.max) && cpu.nonfinite == gpu.nonfinite)
      return {};
    return "GPU and CPU differ in the norm: l2 " + std::to_string(gpu.l2) + " and " + std::to_string(cpu.l2) +
           ", max " + std::to_string(gpu.max) + " and " + std::to_string(cpu.max) + ", non-finite " +
           std::to_string(gpu.nonfinite) + " and " + std::to_string(cpu.nonfinite);
  } catch (const Failure& failure) {
    return failure.what();
  }
}

constexpr int kCopiesOnCpu = 5, kCopiesOnGpu = 10;                 // the maximum before and after each row
constexpr std::int64_t kWorkspaceMargin = std::int64_t{64} << 20;  // for tables that a GPU keeps

// Runs one invocation; rows are filled in place.
class Bench {
 public:
  Bench(const BenchFlags& flags, const BenchOptions& plan, BenchDevice& device)
      : flags_(flags), plan_(plan), device_(device) {
    for (const std::string& shape : plan.shapes)
      for (const double zeros : plan.zeros) add_section(shape, zeros);
  }

  void check_results() {
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) {
      progress_.say("checking: " + label(plan_.runs[i]));
      const Check check = check_steps(device_, plan_.runs[i], zero_rows());
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

  // Times every row between copies. Returns the size of one copy in bytes.
  std::int64_t time_rows() {
    // Checks before the copies, which take seconds, and again after them, because they use memory, too.
    check_memory();
    progress_.say("timing: copy");
    CopyMeter meter(device_);
    if (!meter.note().empty()) progress_.note(meter.note());
    check_memory();
    const int copies = device_.on_gpu() ? kCopiesOnGpu : std::min(plan_.repeats.timed, kCopiesOnCpu);
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
      const BenchTensors tensors = tensors_of(section);
      for (BenchRow& row : section.rows)
        time(row, section.label() + ' ' + label(row.run),
             [&] { return time_steps(device_, row.run, tensors, plan_.repeats); });
      if (section.norm)
        time(*section.norm, section.label() + " norm",
             [&] { return time_norm(device_, plan_.runs.front(), tensors, plan_.repeats.timed); });
    }
    if (device_.on_gpu()) share_ceiling();
    return meter.bytes();
  }

  [[nodiscard]] std::vector<BenchSection> take_sections() { return std::move(sections_); }

 private:
  void add_section(const std::string& shape, double zeros) {
    BenchSection& section = sections_.emplace_back();
    section.shape = shape;
    section.zeros = zeros;
    const std::vector<TensorShape> tensors = tensors_of(section).shapes;
    for (const RunSpec& run : plan_.runs)
      section.rows.push_back({run, footprint(run, tensor_specs(run, tensors, false)), {}, {}, {}});
    if (flags_.norm) {
      const RunSpec run = without_states(plan_.runs.front());
      section.norm = {footprint(run, tensor_specs(run, tensors, true)), {}, {}};
    }
  }

  [[nodiscard]] BenchTensors tensors_of(const BenchSection& section) const {
    return {tensor_list(section.shape, plan_.flat_numel), section.zeros};
  }

  // Returns whether any tensor of any section has rows without a gradient.
  [[nodiscard]] bool zero_rows() const {
    return std::ranges::any_of(sections_, [&](const BenchSection& section) {
      return std::ranges::any_of(tensors_of(section).shapes, [&](const TensorShape& tensor) {
        return row_rule(tensor, section.zeros).rows > 0;
      });
    });
  }

  // Uses the best copy of the run as the ceiling of all rows: on a GPU the ceiling is constant. (A CPU's
  // varies with the load of other processes.)
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
          throw Failure(kExitFailure, section.label() + ' ' + label(row.run) + " needs " +
                                          human_bytes(needed) + " of memory on " +
                                          device_name(device_.device()) + " and " + human_bytes(free) +
                                          " are free; use a smaller --shape or --numel, or --dry-run");
      }
    }
  }

  const BenchFlags& flags_;
  const BenchOptions& plan_;
  BenchDevice& device_;
  Progress progress_;
  std::vector<BenchSection> sections_;
};

struct BenchResult {
  BenchRun run;
  std::vector<BenchSection> sections;
};

// Throws a Failure if nothing can be measured. The error of a single row is stored in its section.
BenchResult run_bench(const BenchFlags& flags) {
  const BenchOptions plan = plan_bench(flags);
  BenchRun common{plan.device, list_gpus(), std::string(take(implementation())), plan.runs.front().threads,
                  0};
  const std::unique_ptr<BenchDevice> device = make_device(plan.device, common.threads);
  if (plan.device.kind == DeviceKind::cuda) {
    const int index = plan.device.index;
    common.gpus.gpus.at(static_cast<std::size_t>(index)) = take(gpu_info(index));
  }
  Bench bench(flags, plan, *device);
  bench.check_results();
  if (!flags.dry_run) common.copy_bytes = bench.time_rows();
  return {std::move(common), bench.take_sections()};
}

// Returns "2 of 8 rows failed: flat name 8bit: …", or an empty string.
std::string errors_of(const std::vector<BenchSection>& sections) {
  std::size_t rows = 0, failed = 0;
  std::string first;
  const auto count = [&](const std::string& what, const std::string& error) {
    ++rows;
    if (!error.empty() && failed++ == 0) first = what + ": " + error;
  };
  for (const BenchSection& section : sections) {
    for (const BenchRow& row : section.rows) count(section.label() + ' ' + label(row.run), row.error);
    if (section.norm) count(section.label() + " norm", section.norm->error);
  }
  if (failed == 0) return {};
  return std::to_string(failed) + " of " + std::to_string(rows) + " rows failed: " + first;
}

constexpr const char* kExamples = R"(Examples:
  octavo bench optimizer --state fp32,8bit --numel 2^24
  octavo bench optimizer --shape gpt2 --param-dtype bf16 --store bf16+16
  octavo bench optimizer --device cuda --shape flat,gpt2,parakeet --param-dtype bf16 --norm
  octavo bench optimizer --device cuda --numel 51200K --zeros 0,0.5,0.9,0.99 --param-dtype bf16
  octavo bench optimizer --optimizer all --state all --dry-run --json

Optimizers run with their defaults and a weight decay of 0.01. An optimizer without moments unless
momentum is set runs with momentum 0.9. --switch adds options that add moments.

Bytes. "B/param" is the optimizer's state per parameter: codes and scales of all moments, exactly as
layout() computes them, including small tensors (below 4096 elements), whose states are fp32.
"moved B/param" is what a step must read and write: parameter, states with scales, and residual are
read and written, the gradient is read once (twice with --guard). Two moments with fp32 parameters
move 28 B in fp32 and 16.06 B in 8 bits (16.03 if the scales are counted once). An optimizer that
measures a tensor before its update reads all of these once more. A format that needs a second pass
over the tensor (4bit-rank1) is counted as one pass.

Time. Two warm-up steps (ten on a GPU, five of them set by --settle), then --repeat steps: median and
minimum. GB/s is the moved bytes divided by the median. The copy ceiling is the faster of two copies
of 1 GiB each side (less if memory is short), counting bytes read and written: on the CPU memcpy and
a loop of streaming stores with the same number of threads; on a GPU cudaMemcpyAsync and a kernel.
Each copy is the median of up to five copies (ten on a GPU) immediately before and after the row's
steps. On a GPU the best copy of the run is the ceiling of every row. The copy is of memory: small
tensors, which stay in caches, exceed 100%.

On a GPU, events time each step on a separate stream, and steps are queued without waiting. "guard
ms" is the time with the guard on. "clip ms" is the gradient norm and a step with the guard on,
clipped by that norm. "host us" is the calling thread's time in one call (median of 200, without
waiting). "rebound us" is the time of rebind_grads and the step after it.

Rows. --zeros lists shares of rows that never have a gradient: their gradient is exactly zero at
every step, and so are their moments (unless the optimizer adds its decay to the gradient). A row is
an index of a tensor's first dimension; flat has rows of 1024 elements; a model's vectors have no
rows. In gpt2-embedding a step draws 512 tokens by Zipf's law. In moe it draws 24 experts with
replacement, and an eighth of the experts is never drawn. The steps before the timed ones (--settle)
leave some rows dense, some decayed and some zero. lora is the first step of adapters: B is zero, and
therefore A's gradient is zero too. A line above the table has the share of all elements in rows with
a gradient ("touched" and "ever_touched" with --json). All bytes count as moved. A GPU is compared
with the CPU on such rows, too.

Checksum (with --json). A 64-bit FNV-1a hash of params, residuals and states after three steps on
fixed tensors (1, 31, 255, 256, 257, 4095, 4097, 100003, 64x96, 1024x1x9 and 16x3x5x7 elements) with
seeded data, independent of --shape. It depends only on optimizer, format, dtypes, store, block size
and --switch: implementations, threads and devices must agree on it. A GPU is first compared with the
CPU in every byte. If they differ, the row is an error and is not timed, and the exit code is 1.)";

void bench_optimizer(const BenchFlags& flags) {
  const BenchResult result = run_bench(flags);
  std::cout << (flags.json ? json_report(result.run, result.sections)
                           : table_report(result.run, result.sections));
  if (const std::string errors = errors_of(result.sections); !errors.empty())
    throw Failure(kExitFailure, errors);
}

}  // namespace

void add_bench_optimizer(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("optimizer", "Time the optimizer step for each state format");
  auto flags = std::make_shared<BenchFlags>();
  add_bench_options(*command, *flags);
  command->footer(kExamples);
  command->callback([flags] { bench_optimizer(*flags); });
}

}  // namespace octavo::cli
