// SPDX-License-Identifier: MIT
#include "apps/octavo/speech_report.h"

#include "apps/octavo/common/hardware_json.h"
#include "apps/octavo/common/table.h"
#include "train/base/numbers.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <utility>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;
using octavo_train::SpeechMeasure;

double hours_of(const SpeechBench& bench, const SpeechMeasure& measure) {
  return static_cast<double>(bench.request.total_clips) / measure.clips_per_second / 3600;
}

std::string ms(double seconds) { return fixed(1e3 * seconds, 1); }

std::string key_of(std::string part) {
  for (char& c : part) c = c == ' ' ? '_' : c;
  return part + "_ms";
}

json row_json(const SpeechBench& bench, const SpeechBenchRow& row) {
  json out = {{"optimizer", row.optimizer}, {"checkpointing", row.checkpointing}, {"clips", row.clips}};
  if (!row.measure) {
    out["error"] = row.error;
    return out;
  }
  const SpeechMeasure& m = *row.measure;
  out["clips_per_second"] = m.clips_per_second;
  out["hours"] = hours_of(bench, m);
  out["step_ms"] = 1e3 * m.step_seconds;
  json parts;
  for (std::size_t i = 0; i < m.seconds.size(); ++i)
    parts[key_of(octavo_train::kStepParts.at(i))] = 1e3 * m.seconds.at(i);
  parts["rest_ms"] = 1e3 * m.rest();
  out["parts"] = parts;
  out["memory"] = {{"peak", m.peak},           {"weights", m.weights},   {"gradients", m.gradients},
                   {"states", m.states},       {"master", m.master},     {"activations", m.activations},
                   {"loss", m.loss_workspace}, {"reserved", m.reserved}, {"host", m.host}};
  if (m.fp8 > 0) out["fp8"] = {{"codes", m.fp8}, {"products", m.products}};
  out["loss"] = m.loss;
  out["skipped_steps"] = m.skipped;
  return out;
}

// Returns the columns that identify a row, followed by columns of numbers.
std::vector<Table::Column> columns_of(const std::vector<std::string>& numbers) {
  std::vector<Table::Column> out = {{"optimizer"}, {"checkpointing"}, {"clips", Table::Align::right}};
  for (const std::string& title : numbers) out.push_back({title, Table::Align::right});
  return out;
}

using Cells = std::vector<std::string>;

template <class CellsOf>
std::string table_of(const SpeechBench& bench, const std::vector<Table::Column>& columns, CellsOf cells_of) {
  Table table(columns);
  for (const SpeechBenchRow& row : bench.rows) {
    Cells cells = {row.optimizer, row.checkpointing, std::to_string(row.clips)};
    const Cells numbers = row.measure ? cells_of(*row.measure) : Cells{row.error};
    cells.insert(cells.end(), numbers.begin(), numbers.end());
    cells.resize(columns.size());
    table.add(std::move(cells));
  }
  return table.text();
}

std::string memory_text(const SpeechBench& bench) {
  const std::string hours =
      "hours for " + octavo_train::short_count(static_cast<double>(bench.request.total_clips));
  const bool offloads = bench.request.offload != "none";
  Cells titles = {"clips/s", "peak",   hours,         "weights", "gradients",
                  "states",  "master", "activations", "loss"};
  if (offloads) titles.emplace_back("host");
  const auto columns = columns_of(titles);
  return table_of(bench, columns, [&](const SpeechMeasure& m) {
    const auto bytes = [](std::int64_t count) {
      return octavo_train::bytes_text(static_cast<double>(count));
    };
    Cells cells = {fixed(m.clips_per_second, 1),
                   bytes(m.peak),
                   fixed(hours_of(bench, m), 1),
                   bytes(m.weights),
                   bytes(m.gradients),
                   bytes(m.states),
                   bytes(m.master),
                   bytes(m.activations),
                   bytes(m.loss_workspace)};
    if (offloads) cells.push_back(bytes(m.host));
    return cells;
  });
}

std::string time_text(const SpeechBench& bench) {
  Cells titles = {"ms"};
  titles.insert(titles.end(), octavo_train::kStepParts.begin(), octavo_train::kStepParts.end());
  titles.emplace_back("rest");
  return table_of(bench, columns_of(titles), [](const SpeechMeasure& m) {
    Cells out = {ms(m.step_seconds)};
    for (const double part : m.seconds) out.push_back(ms(part));
    out.push_back(ms(m.rest()));
    return out;
  });
}

// Shows only the matmuls of the first row: rows that differ only in the optimizer have the same matmuls.
std::string products_text(const SpeechBench& bench) {
  for (const SpeechBenchRow& row : bench.rows) {
    if (!row.measure || row.measure->products.empty()) continue;
    std::string out = fmt::format("\nproducts, of {} clips\n", row.clips);
    for (const std::string& line : row.measure->products) out += fmt::format("  {}\n", line);
    return out;
  }
  return {};
}

std::string warning_text(const SpeechBench& bench) {
  std::int64_t skipped = 0;
  for (const SpeechBenchRow& row : bench.rows) skipped += row.measure ? row.measure->skipped : 0;
  if (skipped == 0) return {};
  return fmt::format(
      "\nwarning: {} steps had gradients that are not finite, and their optimizer did nothing: do not trust "
      "its times\n",
      skipped);
}

}  // namespace

std::string speech_tables(const SpeechBench& bench) {
  const SpeechBenchRequest& request = bench.request;
  std::string out = fmt::format(
      "speech model {} ({}, {} parameters), clips of {} s with {} tokens, computing in {}, weights in {}, on "
      "{}",
      request.size, request.head, octavo_train::short_count(static_cast<double>(bench.parameters)),
      octavo_train::significant(request.seconds, 4), request.tokens, request.dtype, bench.weights,
      bench.device);
  if (request.fp8 != "off") out += fmt::format(", products in FP8 ({}, {})", request.fp8, request.fp8_select);
  if (request.offload != "none") out += ", offload " + request.offload;
  if (request.offload_gradients) out += ", gradients too";
  if (request.accumulation != 1) out += fmt::format(", {} micro-batches a step", request.accumulation);
  return out + "\n\n" + memory_text(bench) + "\nmilliseconds of a step\n" + time_text(bench) +
         products_text(bench) + warning_text(bench);
}

std::string speech_json(const SpeechBench& bench) {
  const SpeechBenchRequest& request = bench.request;
  json out = {{"size", request.size},
              {"head", request.head},
              {"parameters", bench.parameters},
              {"seconds", request.seconds},
              {"tokens", request.tokens},
              {"accumulation", request.accumulation},
              {"steps", request.steps},
              {"offload", request.offload},
              {"offload_gradients", request.offload_gradients},
              {"total_clips", request.total_clips},
              {"dtype", request.dtype},
              {"weights", bench.weights},
              {"device", bench.device}};
  out["cpu"] = cpu_json();
  json rows = json::array();
  for (const SpeechBenchRow& row : bench.rows) rows.push_back(row_json(bench, row));
  out["rows"] = rows;
  return out.dump(2) + "\n";
}

}  // namespace octavo::cli
