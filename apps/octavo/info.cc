// Implements `octavo info`: shows what this build and this machine support. Every list and table is generated
// from the library's own lists.
// SPDX-License-Identifier: MIT
#include "apps/octavo/subcommands.h"
#include "apps/octavo/trainer_program.h"
#include "benchmarks/engine/algorithm.h"
#include "cli/cli.h"
#include "cli/hardware_json.h"
#include "cli/table.h"
#include "train/config/environment.h"

#include <octavo/describe.h>
#include <octavo/layout.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kNames = 9;  // columns before a value: "CPU      "

// Returns the state bytes per parameter of a large tensor, or nothing if the library does not support the
// combination.
std::optional<double> bytes_per_param(Algorithm algorithm, StateFormat format) {
  const GroupConfig config = usual_config(algorithm);
  TensorSpec spec;
  spec.numel = std::int64_t{1} << 24;
  spec.shape = {std::int64_t{1} << 12, std::int64_t{1} << 12};
  spec.ndim = 2;
  spec.format = format;
  const Result<TensorLayout> needs = layout(config, spec);
  if (!needs.ok()) return std::nullopt;
  return static_cast<double>(needs->state_bytes()) / static_cast<double>(spec.numel);
}

// Returns the backends that run every algorithm on this machine: the CPU, and CUDA if a GPU is usable.
std::vector<std::string> backends(const GpuReport& gpus) {
  std::vector<std::string> out;
  if (!implementations().empty()) out.emplace_back("cpu");
  if (std::any_of(gpus.gpus.begin(), gpus.gpus.end(), [](const GpuInfo& gpu) { return gpu.usable; }))
    out.emplace_back("cuda");
  return out;
}

template <class T>
json names(std::span<const T> values) {
  json out = json::array();
  for (const T value : values) out.push_back(name(value));
  return out;
}

json trainer_json() {
  const TrainerProgram trainer = find_trainer();
  json out = {{"available", trainer.problem.empty()}, {"libtorch", nullptr}, {"note", trainer.problem}};
  if (!trainer.libtorch_version.empty()) {
    out["libtorch"] = {{"version", trainer.libtorch_version},
                       {"build", trainer.libtorch_cuda ? "cuda" : "cpu"},
                       {"path", trainer.libtorch_folder},
                       {"allocator", octavo_train::trainer_allocator().text()}};
  }
  return out;
}

json moments_json(Algorithm algorithm, std::uint32_t switches) {
  json out = json::array();
  for (const Slot& slot : slots(algorithm, switches)) {
    out.push_back({{"name", slot.name}, {"moment", slot.moment == Moment::first ? "first" : "second"}});
  }
  return out;
}

// Returns the algorithm's name, moments, switches and options.
json algorithm_json(const AlgorithmInfo& info) {
  const std::uint32_t usual = usual_config(info.number).switches;
  json out = {{"name", info.name},
              {"title", info.title},
              {"weight_decay", info.decay == Decay::coupled ? "coupled" : "decoupled"},
              {"passes", passes(info.number, usual)},
              {"moments", moments_json(info.number, usual)},
              {"switches", json::object()},
              {"options", json::object()}};
  for (const Option& option : info.options) {
    const bool flag = option.range == Range::flag;
    out["options"][std::string(option.name)] = flag ? json(option.value != 0.0) : json(option.value);
    const int bit = switch_bit(info.number, option.name);
    if (bit >= 0) out["switches"][std::string(option.name)] = moments_json(info.number, 1U << bit);
  }
  return out;
}

json gather() {
  const std::string_view chosen = take(implementation());
  const GpuReport gpus = gpu_info();
  const std::vector<std::string> where = backends(gpus);
  json out = {{"version", version()},
              {"cpu", cpu_json()},
              {"threads", default_threads()},
              {"gpus", json::array()},
              {"gpu_note", gpus.note},
              {"cuda", cuda_json(gpus)},
              {"trainer", trainer_json()},
              {"implementations", json::array()},
              {"backends", where},
              {"optimizers", names(all_algorithms())},
              {"states", names(all_state_formats())},
              {"stores", names(all_weight_stores())},
              {"dtypes", names(all_dtypes())},
              {"support", json::array()},
              {"algorithms", json::array()}};
  for (const GpuInfo& gpu : gpus.gpus) out["gpus"].push_back(gpu_json(gpu));
  for (const Implementation& each : implementations()) {
    out["implementations"].push_back({{"name", each.name},
                                      {"description", each.description},
                                      {"supported", each.supported},
                                      {"chosen", each.name == chosen}});
  }
  for (const AlgorithmInfo& each : algorithms()) out["algorithms"].push_back(algorithm_json(each));
  for (const Algorithm algorithm : all_algorithms()) {
    for (const StateFormat format : all_state_formats()) {
      const std::optional<double> bytes = bytes_per_param(algorithm, format);
      out["support"].push_back({{"optimizer", name(algorithm)},
                                {"state", name(format)},
                                {"backends", bytes ? json(where) : json::array()},
                                {"bytes_per_param", bytes ? json(*bytes) : json()}});
    }
  }
  return out;
}

std::vector<std::string> strings(const json& list) { return list; }

// Formats a table with optimizers as rows and state formats as columns. Cells hold the state bytes per
// parameter.
std::string support_table(const json& info) {
  std::vector<Table::Column> columns = {{"optimizer"}};
  for (const auto& state : info["states"]) columns.push_back({state.get<std::string>(), Table::Align::right});
  Table table(columns);
  auto cell = info["support"].begin();
  for (const auto& optimizer : info["optimizers"]) {
    std::vector<std::string> cells = {optimizer.get<std::string>()};
    for (std::size_t i = 0; i < info["states"].size(); ++i, ++cell) {
      const bool offered = !(*cell)["backends"].empty();
      cells.push_back(offered ? fixed((*cell)["bytes_per_param"], 2) : "-");
    }
    table.add(cells);
  }
  return table.text(output_width());
}

// Returns a table with one row for each element of `algorithms`.
std::string algorithm_table(const json& algorithms) {
  Table table({{"optimizer"}, {"moments"}});
  const auto names_of = [](const json& moments) {
    std::vector<std::string> out;
    for (const auto& moment : moments) out.push_back(moment["name"]);
    return joined(out);
  };
  for (const auto& each : algorithms) {
    std::vector<std::string> with, options;
    for (const auto& [name, moments] : each["switches"].items()) {
      if (moments != each["moments"]) with.push_back("  with " + name + ": " + names_of(moments));
    }
    for (const auto& [name, value] : each["options"].items()) options.push_back(name + ' ' + value.dump());
    table.add({each["name"], names_of(each["moments"])});
    for (const std::string& line : with) table.add({"", line});
    table.add({"", "  options: " + joined(options)});
  }
  return table.text(output_width());
}

// Returns one line per GPU, or the reason why there is none, and the versions of CUDA.
std::string gpu_text(const json& info) {
  std::string out;
  for (const auto& gpu : info["gpus"]) {
    out += "GPU      " + gpu["name"].get<std::string>() + ", compute capability " +
           gpu["compute_capability"].get<std::string>() + ", " + gpu["multiprocessors"].dump() + " SMs, " +
           human_bytes(gpu["memory_bytes"]) + ", fp8 conversion in " +
           gpu["fp8_conversion"].get<std::string>() + ", " +
           (gpu["usable"].get<bool>() ? "usable" : "not usable: " + gpu["note"].get<std::string>()) + '\n';
  }
  if (info["gpus"].empty()) out += "GPU      none: " + info["gpu_note"].get<std::string>() + '\n';
  if (const json& cuda = info["cuda"]; !cuda.is_null()) {
    out += "CUDA     runtime " + cuda["runtime"].get<std::string>() + ", driver " +
           (cuda["driver"].is_null() ? "none" : "for up to " + cuda["driver"].get<std::string>()) + '\n';
  }
  return out;
}

// Returns which LibTorch `octavo train` uses, or why it cannot run.
std::string trainer_text(const json& trainer) {
  if (!trainer["available"].get<bool>()) return "trainer  none: " + trainer["note"].get<std::string>() + '\n';
  const json& libtorch = trainer["libtorch"];
  const bool cuda = libtorch["build"] == "cuda";
  return "trainer  LibTorch " + libtorch["version"].get<std::string>() + ", " + (cuda ? "CUDA" : "CPU") +
         " build, " + libtorch["path"].get<std::string>() + '\n' +
         (cuda ? "         " + octavo_train::allocator_line(octavo_train::trainer_allocator()) + '\n' : "");
}

std::string text(const json& info) {
  const json& cpu = info["cpu"];
  std::string out = "octavo " + info["version"].get<std::string>() + "\n\n";
  out += "CPU      " + cpu["model"].get<std::string>() + ", " + cpu["cores"].dump() + " cores, " +
         info["threads"].dump() + " threads\n";
  out += "         " + joined(strings(cpu["features"]), " ") + '\n';
  out += gpu_text(info);
  out += trainer_text(info["trainer"]);
  out += "stores   " + joined(strings(info["stores"])) + '\n';
  out += "dtypes   " + joined(strings(info["dtypes"])) + "\n\n";

  Table table({{"implementation"}, {"this CPU"}, {"description"}});
  for (const auto& each : info["implementations"]) {
    const char* mark = each["chosen"].get<bool>()      ? "chosen"
                       : each["supported"].get<bool>() ? "supported"
                                                       : "no";
    table.add({each["name"], mark, each["description"]});
  }
  out += table.text(output_width());
  // The library treats an empty value like an unset variable.
  const char* const forced = std::getenv("OCTAVO_FORCE_IMPL");
  out += forced != nullptr && *forced != '\0'
             ? "(chosen by OCTAVO_FORCE_IMPL)\n\n"
             : "(chosen: the first that this CPU supports; OCTAVO_FORCE_IMPL=scalar would choose scalar)\n\n";
  out +=
      "Optimizers x state formats, each on " + joined(strings(info["backends"]), " and ") +
      ": bytes of state per parameter\n\n" + support_table(info) +
      "\nOptimizers: the moments that they keep, those with an option that changes them, and defaults\n\n" +
      algorithm_table(info["algorithms"]);
  return out;
}

// Breaks lines that are too long. Continuation lines are indented to the value's column.
std::string fitted(const std::string& lines) {
  std::istringstream in(lines);
  std::string out;
  for (std::string line; std::getline(in, line);)
    out += wrapped(line, output_width(), line.starts_with('(') ? 1 : kNames) + '\n';
  return out;
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("info", "Show version, hardware, implementations, optimizers and formats");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print JSON on stdout, nothing else");
  command->footer("For example:\n  octavo info --json");
  command->callback([as_json] {
    const json info = gather();
    std::cout << (*as_json ? info.dump(2) + '\n' : fitted(text(info)));
  });
}

}  // namespace octavo::cli
