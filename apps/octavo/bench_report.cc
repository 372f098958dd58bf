// JSON, table and progress lines of the optimizer benchmark; see bench_report.h.
// SPDX-License-Identifier: MIT
#include "bench_report.h"

#include "table.h"

#include <octavo/backend.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;

double per_param(std::int64_t bytes, const Footprint& of) {
  return static_cast<double>(bytes) / static_cast<double>(of.numel);
}

// REQUIRES: row.timing.
double gb_per_s(const BenchRow& row) {
  return 1e-6 * static_cast<double>(row.bytes.moved_bytes) / row.timing->ms_median;
}

double percent_of_copy(const BenchRow& row) { return 100.0 * gb_per_s(row) / row.timing->copy_gb_per_s; }

std::int64_t block_size(const RunSpec& run) {
  const std::int64_t preset = default_block_size(run.state);
  return preset > 0 && run.block_size > 0 ? run.block_size : preset;
}

json row_json(const BenchRun& common, const BenchRow& row) {
  json out = {{"optimizer", name(row.run.config.algorithm)},
              {"amsgrad", row.run.config.amsgrad},
              {"state", name(row.run.state)},
              {"block_size", block_size(row.run)},
              {"param_dtype", name(row.run.param_dtype)},
              {"grad_dtype", name(row.run.grad_dtype)},
              {"store", name(row.run.store)},
              {"guard", row.run.guard},
              {"shape", common.shape},
              {"device", common.device},
              {"implementation", common.implementation},
              {"threads", common.threads},
              {"numel", row.bytes.numel},
              {"tensors", row.bytes.tensors},
              {"state_bytes_per_param", per_param(row.bytes.state_bytes, row.bytes)},
              {"moved_bytes_per_param", per_param(row.bytes.moved_bytes, row.bytes)},
              {"checksum", row.checksum}};
  const auto timed = [&](auto value) { return row.timing ? json(value(*row.timing)) : json(); };
  out["ms_median"] = timed([](const Timing& t) { return t.ms_median; });
  out["ms_min"] = timed([](const Timing& t) { return t.ms_min; });
  out["gb_per_s"] = timed([&](const Timing&) { return gb_per_s(row); });
  out["copy_gb_per_s"] = timed([](const Timing& t) { return t.copy_gb_per_s; });
  out["copy_bytes"] = timed([&](const Timing&) { return common.copy_bytes; });
  out["percent_of_copy"] = timed([&](const Timing&) { return percent_of_copy(row); });
  return out;
}

// The CPU, what runs on it, and the copy speed: one value, or the range over the rows.
std::string headline(const BenchRun& run, const std::vector<BenchRow>& rows) {
  std::string out = cpu_info().model + ", " + run.implementation + ", " + std::to_string(run.threads) +
                    (run.threads == 1 ? " thread" : " threads");
  if (rows.front().timing) {
    const auto slower = [](const BenchRow& a, const BenchRow& b) {
      return a.timing->copy_gb_per_s < b.timing->copy_gb_per_s;
    };
    const auto [least, most] = std::minmax_element(rows.begin(), rows.end(), slower);
    const std::string low = fixed(least->timing->copy_gb_per_s, 1),
                      high = fixed(most->timing->copy_gb_per_s, 1);
    out += ", copy " + low + (low == high ? "" : " to " + high) + " GB/s (" + human_bytes(run.copy_bytes) +
           " each side)";
  }
  return out + '\n';
}

}  // namespace

nlohmann::ordered_json cpu_json() {
  const CpuInfo cpu = cpu_info();
  return {{"model", cpu.model}, {"cores", cpu.cores}, {"features", cpu.features}};
}

std::string json_report(const BenchRun& run, const std::vector<BenchRow>& rows) {
  json out = {{"version", version()}, {"cpu", cpu_json()}, {"rows", json::array()}};
  for (const BenchRow& row : rows) out["rows"].push_back(row_json(run, row));
  return out.dump(2) + '\n';
}

std::string table_report(const BenchRun& run, const std::vector<BenchRow>& rows) {
  if (rows.empty()) return {};
  const RunSpec& first = rows.front().run;
  std::string out = headline(run, rows);
  out += run.shape + ": " + grouped(rows.front().bytes.tensors) +
         (rows.front().bytes.tensors == 1 ? " tensor, " : " tensors, ") + grouped(rows.front().bytes.numel) +
         " parameters; params " + std::string(name(first.param_dtype)) + " (" +
         std::string(name(first.store)) + "), grads " + std::string(name(first.grad_dtype)) +
         (first.guard ? ", guard on" : "") + "\n\n";
  constexpr auto kRight = Table::Align::right;
  Table table({{"optimizer"},
               {"state"},
               {"B/param", kRight},
               {"moved B/param", kRight},
               {"ms", kRight},
               {"GB/s", kRight},
               {"% of copy", kRight}});
  for (const BenchRow& row : rows) {
    const bool timed = row.timing.has_value();
    table.add({std::string(name(row.run.config.algorithm)) + (row.run.config.amsgrad ? " amsgrad" : ""),
               std::string(name(row.run.state)), fixed(per_param(row.bytes.state_bytes, row.bytes), 2),
               fixed(per_param(row.bytes.moved_bytes, row.bytes), 2),
               timed ? fixed(row.timing->ms_median, 2) : "-", timed ? fixed(gb_per_s(row), 1) : "-",
               timed ? fixed(percent_of_copy(row), 0) : "-"});
  }
  return out + table.text();
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}
Progress::~Progress() { clear(); }

void Progress::clear() {
  if (terminal_) std::cerr << "\r\033[K" << std::flush;
}

void Progress::say(std::string_view what) {
  clear();
  std::cerr << what;
  if (terminal_)
    std::cerr << std::flush;
  else
    std::cerr << '\n';
}

void Progress::note(std::string_view what) {
  clear();
  std::cerr << what << '\n';
}

}  // namespace octavo::cli
