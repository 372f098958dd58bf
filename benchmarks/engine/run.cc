// SPDX-License-Identifier: MIT
#include "benchmarks/engine/run.h"

#include "benchmarks/engine/check.h"
#include "benchmarks/engine/copy_speed.h"
#include "benchmarks/engine/norm.h"
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/progress.h"
#include "apps/octavo/common/table.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace octavo::cli {
namespace {

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

}  // namespace

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

}  // namespace octavo::cli
