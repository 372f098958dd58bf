// Formats the results of the optimizer benchmark as JSON and as a table; see report.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/report.h"

#include "benchmarks/engine/algorithm.h"
#include "cli/hardware_json.h"
#include "cli/table.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;

double per_param(std::int64_t bytes, const Footprint& of) {
  return static_cast<double>(bytes) / static_cast<double>(of.numel);
}

double gb_per_s(std::int64_t moved, const Timing& timing) {
  return 1e-6 * static_cast<double>(moved) / timing.ms_median;
}

double percent_of_copy(std::int64_t moved, const Timing& timing) {
  return 100.0 * gb_per_s(moved, timing) / timing.copy_gb_per_s;
}

bool on_gpu(const BenchRun& run) { return run.device.kind == DeviceKind::cuda; }

GpuInfo gpu_of(const BenchRun& run) { return run.gpus.gpus.at(static_cast<std::size_t>(run.device.index)); }

std::int64_t block_size(const RunSpec& run) {
  const std::int64_t preset = default_block_size(run.state);
  return preset > 0 && run.block_size > 0 ? run.block_size : preset;
}

// Adds the timing, with null for values that were not measured.
void add_timing(json& out, const BenchRun& common, std::int64_t moved, const std::optional<Timing>& timing,
                const std::string& error) {
  const auto timed = [&](auto value) { return timing ? json(value(*timing)) : json(); };
  out["ms_median"] = timed([](const Timing& t) { return t.ms_median; });
  out["ms_min"] = timed([](const Timing& t) { return t.ms_min; });
  out["gb_per_s"] = timed([&](const Timing& t) { return gb_per_s(moved, t); });
  out["copy_gb_per_s"] = timed([](const Timing& t) { return t.copy_gb_per_s; });
  out["copy_bytes"] = timed([&](const Timing&) { return common.copy_bytes; });
  out["percent_of_copy"] = timed([&](const Timing& t) { return percent_of_copy(moved, t); });
  out["error"] = error.empty() ? json() : json(error);
}

json row_json(const BenchRun& common, const BenchSection& section, const BenchRow& row) {
  json out = {{"optimizer", name(row.run.config.algorithm)},
              {"switches", switch_names(row.run.config)},
              {"state", name(row.run.state)},
              {"block_size", block_size(row.run)},
              {"param_dtype", name(row.run.param_dtype)},
              {"grad_dtype", name(row.run.grad_dtype)},
              {"grad_offset", row.run.grad_offset},
              {"store", name(row.run.store)},
              {"guard", row.run.guard},
              {"shape", section.shape},
              {"zeros", section.zeros},
              {"device", device_name(common.device)},
              {"implementation", on_gpu(common) ? "cuda" : common.implementation},
              {"threads", on_gpu(common) ? json() : json(common.threads)},
              {"numel", row.bytes.numel},
              {"tensors", row.bytes.tensors},
              {"state_bytes_per_param", per_param(row.bytes.state_bytes, row.bytes)},
              {"moved_bytes_per_param", per_param(row.bytes.moved_bytes, row.bytes)},
              {"checksum", row.checksum}};
  add_timing(out, common, row.bytes.moved_bytes, row.timing, row.error);
  out["touched"] = row.timing ? json(row.timing->touched) : json();
  out["ever_touched"] = row.timing ? json(row.timing->ever_touched) : json();
  if (!on_gpu(common)) return out;
  const auto also = [&](auto part) {
    return row.timing && (*row.timing).*part ? json(*((*row.timing).*part)) : json();
  };
  out["ms_guard"] = also(&Timing::ms_guard);
  out["ms_clip"] = also(&Timing::ms_clip);
  const auto host = [&](auto part) {
    return row.timing && row.timing->host ? json((*row.timing->host).*part) : json();
  };
  out["host_us"] = host(&HostTiming::step_us);
  out["host_us_rebind_grads"] = host(&HostTiming::rebind_grads_us);
  out["host_us_after_rebind"] = host(&HostTiming::rebound_step_us);
  return out;
}

json norm_json(const BenchRun& common, const BenchSection& section) {
  const NormRow& norm = *section.norm;
  json out = {{"shape", section.shape},
              {"zeros", section.zeros},
              {"grad_dtype", name(section.rows.front().run.grad_dtype)},
              {"device", device_name(common.device)},
              {"numel", norm.bytes.numel},
              {"tensors", norm.bytes.tensors},
              {"moved_bytes_per_param", per_param(norm.bytes.grad_bytes, norm.bytes)}};
  add_timing(out, common, norm.bytes.grad_bytes, norm.timing, norm.error);
  return out;
}

// Describes the device and the copy speed: one value, or the range over the rows.
std::string headline(const BenchRun& run, const std::vector<BenchSection>& sections) {
  std::string out;
  if (on_gpu(run)) {
    const GpuInfo gpu = gpu_of(run);
    const json cuda = cuda_json(run.gpus);
    out = gpu.name + " (" + device_name(run.device) + "), compute capability " + compute_capability(gpu) +
          ", " + std::to_string(gpu.multiprocessors) + " SMs, CUDA " + cuda["runtime"].get<std::string>();
  } else {
    out = cpu_info().model + ", " + run.implementation + ", " + std::to_string(run.threads) +
          (run.threads == 1 ? " thread" : " threads");
  }
  std::vector<double> copies;
  for (const BenchSection& section : sections)
    for (const BenchRow& row : section.rows)
      if (row.timing) copies.push_back(row.timing->copy_gb_per_s);
  if (!copies.empty()) {
    const auto [least, most] = std::minmax_element(copies.begin(), copies.end());
    const std::string low = fixed(*least, 1), high = fixed(*most, 1);
    out += ", copy " + low + (low == high ? "" : " to " + high) + " GB/s (" + human_bytes(run.copy_bytes) +
           " each side)";
  }
  return out + '\n';
}

// Returns the share of elements in rows that the timed step touched; empty if it touched all rows.
std::string touched_text(const BenchSection& section) {
  for (const BenchRow& row : section.rows) {
    if (!row.timing || row.timing->touched == 1.0) continue;
    return "elements in rows with a gradient: " + fixed(100.0 * row.timing->touched, 1) +
           "% in the timed step, " + fixed(100.0 * row.timing->ever_touched, 1) + "% in any before\n";
  }
  return {};
}

std::string section_title(const BenchSection& section) {
  const Footprint& bytes = section.rows.front().bytes;
  const RunSpec& first = section.rows.front().run;
  return section.label() + ": " + grouped(bytes.tensors) + (bytes.tensors == 1 ? " tensor, " : " tensors, ") +
         grouped(bytes.numel) + " parameters; params " + std::string(name(first.param_dtype)) + " (" +
         std::string(name(first.store)) + "), grads " + std::string(name(first.grad_dtype)) +
         (first.grad_offset > 0 ? " at an offset of " + std::to_string(first.grad_offset) : "") +
         (first.guard ? ", guard on" : "") + '\n' + touched_text(section) + '\n';
}

// Returns the cells ms, GB/s and % of copy.
std::vector<std::string> timing_cells(bool gpu, std::int64_t moved, const std::optional<Timing>& timing,
                                      const std::string& error) {
  if (!error.empty()) return {"error", "-", "-"};
  if (!timing) return {"-", "-", "-"};
  return {fixed(timing->ms_median, gpu ? 3 : 2), fixed(gb_per_s(moved, *timing), 1),
          fixed(percent_of_copy(moved, *timing), gpu ? 1 : 0)};
}

std::string section_text(bool gpu, const BenchSection& section) {
  constexpr auto kRight = Table::Align::right;
  std::vector<Table::Column> columns = {
      {"optimizer"},  {"state"},        {"B/param", kRight},  {"moved B/param", kRight},
      {"ms", kRight}, {"GB/s", kRight}, {"% of copy", kRight}};
  if (gpu)
    for (const char* title : {"guard ms", "clip ms", "host us", "rebound us"})
      columns.push_back({title, kRight});
  Table table(columns);
  std::string errors;
  const auto add = [&](std::vector<std::string> cells, const std::vector<std::string>& measured,
                       const std::optional<Timing>& timing) {
    cells.insert(cells.end(), measured.begin(), measured.end());
    if (gpu) {
      const bool host = timing && timing->host;
      cells.push_back(timing && timing->ms_guard ? fixed(*timing->ms_guard, 3) : "-");
      cells.push_back(timing && timing->ms_clip ? fixed(*timing->ms_clip, 3) : "-");
      cells.push_back(host ? fixed(timing->host->step_us, 1) : "-");
      cells.push_back(host ? fixed(timing->host->rebind_grads_us + timing->host->rebound_step_us, 1) : "-");
    }
    table.add(cells);
  };
  for (const BenchRow& row : section.rows) {
    add({algorithm_label(row.run.config), std::string(name(row.run.state)),
         fixed(per_param(row.bytes.state_bytes, row.bytes), 2),
         fixed(per_param(row.bytes.moved_bytes, row.bytes), 2)},
        timing_cells(gpu, row.bytes.moved_bytes, row.timing, row.error), row.timing);
    if (!row.error.empty()) errors += label(row.run) + ": " + row.error + '\n';
  }
  if (const auto& norm = section.norm) {
    add({"norm", "-", "-", fixed(per_param(norm->bytes.grad_bytes, norm->bytes), 2)},
        timing_cells(gpu, norm->bytes.grad_bytes, norm->timing, norm->error), norm->timing);
    if (!norm->error.empty()) errors += "norm: " + norm->error + '\n';
  }
  return section_title(section) + table.text() + errors;
}

}  // namespace

std::string BenchSection::label() const {
  if (zeros == 0.0) return shape;
  return shape + ", zeros " + json(zeros).dump();
}

std::string label(const RunSpec& run) {
  return algorithm_label(run.config) + ' ' + std::string(name(run.state));
}

std::string json_report(const BenchRun& run, const std::vector<BenchSection>& sections) {
  json out = {{"version", version()}, {"cpu", cpu_json()}};
  if (on_gpu(run)) {
    out["gpu"] = gpu_json(gpu_of(run));
    out["cuda"] = cuda_json(run.gpus);
  }
  out["rows"] = json::array();
  for (const BenchSection& section : sections) {
    for (const BenchRow& row : section.rows) out["rows"].push_back(row_json(run, section, row));
    if (section.norm) out["norms"].push_back(norm_json(run, section));
  }
  return out.dump(2) + '\n';
}

std::string table_report(const BenchRun& run, const std::vector<BenchSection>& sections) {
  std::string out = headline(run, sections);
  for (const BenchSection& section : sections) {
    if (&section != &sections.front()) out += '\n';
    out += section_text(on_gpu(run), section);
  }
  return out;
}

}  // namespace octavo::cli
