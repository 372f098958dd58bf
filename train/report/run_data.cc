// SPDX-License-Identifier: MIT
#include "train/report/run_data.h"

#include "train/config/node.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;

const Record* member(const Record& record, std::string_view path) {
  const Record::json_pointer pointer{std::string(path)};
  return record.contains(pointer) ? &record.at(pointer) : nullptr;
}

void raise(std::optional<double>& peak, std::optional<double> value) {
  if (value && (!peak || *value > *peak)) peak = value;
}

// A number that was not finite is null in the log; it is a gap in the curve.
void add_point(Curve& curve, double step, const Record& value) {
  if (value.is_number()) curve.push_back({step, value.get<double>()});
  if (value.is_null()) curve.push_back({step, std::numeric_limits<double>::quiet_NaN()});
}
void add_point(Curve& curve, double step, const Record& record, std::string_view path) {
  if (const Record* value = member(record, path)) add_point(curve, step, *value);
}

// Finds the run's unit. Logs of versions without tasks do not name it, but have a member batch_<unit>.
void find_unit(RunData& run) {
  constexpr std::string_view kBatch = "batch_";
  if (const auto unit = text_in(run.start, "/unit")) {
    run.unit = *unit;
  } else if (run.start.is_object()) {
    for (const auto& [name, value] : run.start.items())
      if (name.starts_with(kBatch)) run.unit = name.substr(kBatch.size());
  }
}

void add_rate(RunData& run, double step, const Record& record) {
  constexpr std::string_view kRate = "_per_second";
  for (const auto& [name, value] : record.items()) {
    if (!name.ends_with(kRate)) continue;
    add_point(run.throughput, step, value);
    if (run.unit.empty()) run.unit = name.substr(0, name.size() - kRate.size());
  }
  run.units = std::max(run.units, number_of(record, run.unit).value_or(0));
}

void add_metrics(RunData& run, double step, const Record& record) {
  add_point(run.eval_loss, step, record, "/loss");
  const Record* better = member(record, "/better");
  if (better == nullptr || !better->is_object()) return;
  for (const auto& [name, direction] : better->items()) {
    const auto value = record.find(name);
    if (name == "loss" || value == record.end()) continue;
    auto at = std::ranges::find(run.metrics, name, &MetricCurve::name);
    if (at == run.metrics.end()) at = run.metrics.insert(at, {name, direction == "higher", {}});
    add_point(at->curve, step, *value);
  }
}

void add_train(RunData& run, double step, const Record& record) {
  add_point(run.train_loss, step, record, "/loss");
  add_point(run.lr, step, record, "/lr");
  add_point(run.grad_norm, step, record, "/grad_norm");
  add_rate(run, step, record);
  add_point(run.loss_scale, step, record, "/loss_scale");
  add_point(run.device_memory, step, record, "/memory/device");
  add_point(run.host_memory, step, record, "/memory/host");
  raise(run.device_peak, number_in(record, "/memory/device_peak"));
  raise(run.device_peak, number_in(record, "/memory/device"));
  raise(run.host_peak, number_in(record, "/memory/host"));
  run.skipped_steps = std::max(run.skipped_steps, number_in(record, "/skipped").value_or(0));
}

void add_record(RunData& run, const std::string& kind, std::int64_t step, Record record) {
  const auto x = static_cast<double>(step);
  const std::optional<double> time = number_in(record, "/time");
  if (kind == "start") ++run.sessions;
  if (time) {
    // The time between two sessions does not count.
    if (kind != "start" && run.last_seen) run.seconds += std::max(0.0, *time - *run.last_seen);
    if (!run.began) run.began = time;
    run.last_seen = time;
  }
  ++run.records;
  run.last_step = std::max(run.last_step, step);
  if (kind == "train") {
    add_train(run, x, record);
  } else if (kind == "eval") {
    add_metrics(run, x, record);
    run.evaluations.push_back(std::move(record));
  } else if (kind == "memory") {
    raise(run.device_peak, number_in(record, "/device_peak"));
    run.memory = std::move(record);
  } else if (kind == "start") {
    run.start = std::move(record);
    run.end = nullptr;
    find_unit(run);
  } else if (kind == "end") {
    run.end = std::move(record);
  } else if (kind == "sample") {
    run.samples.push_back(std::move(record));
  } else if (kind == "checkpoint") {
    run.checkpoints.push_back(std::move(record));
  } else if (kind == "stage") {
    run.stages.push_back(std::move(record));
  } else if (kind == "warning") {
    run.warnings.push_back(std::move(record));
  } else if (kind == "change") {
    run.changes.push_back(std::move(record));
  }  // other kinds, from later versions, are ignored
}

Status read_metrics(const fs::path& path, RunData& run) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status::failed(path.string() + ": cannot read it");
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    Record record = Record::parse(line, nullptr, false);
    const Record* step = record.is_object() ? member(record, "/step") : nullptr;
    const std::optional<std::string> kind = text_in(record, "/kind");
    if (!kind || step == nullptr || !step->is_number_integer()) {
      ++run.bad_lines;
      continue;
    }
    const auto number = step->get<std::int64_t>();
    add_record(run, *kind, number, std::move(record));
  }
  if (in.bad()) return Status::failed(path.string() + ": cannot read it to its end");
  return {};
}

std::string value_text(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "null";
    case YamlNode::Kind::scalar:
      return node.text;
    case YamlNode::Kind::list:
    case YamlNode::Kind::map:
      break;
  }
  std::string out;
  for (const YamlNode& item : node.items) out += (out.empty() ? "" : ", ") + value_text(item);
  return "[" + out + "]";
}

void flatten(const YamlNode& node, const std::string& prefix, RunData& run) {
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const std::string path = prefix + node.keys[i].text;
    if (node.items[i].kind == YamlNode::Kind::map) {
      flatten(node.items[i], path + ".", run);
    } else {
      run.settings.emplace_back(path, value_text(node.items[i]));
    }
  }
}

Status read_settings(const fs::path& path, RunData& run) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  Result<YamlNode> root = read_yaml(text.str(), {path.string()});
  if (!root.ok()) return root.status();
  if (root->kind == YamlNode::Kind::map) flatten(*root, "", run);
  return {};
}

bool has_log(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "metrics.jsonl", error);
}

Status not_a_run(const fs::path& folder, const std::string& why) {
  std::string message = folder.string() + ": not a run: " + why +
                        "; expected a run's folder (its output_dir), with config.yaml and metrics.jsonl";
  const fs::path parent = folder.lexically_normal().parent_path();
  if (has_log(parent)) message += "; " + parent.string() + " is one";
  return Status::invalid(message);
}

}  // namespace

std::optional<double> number_in(const Record& record, std::string_view path) {
  const Record* value = member(record, path);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

std::optional<double> number_of(const Record& record, const std::string& name) {
  if (!record.is_object()) return std::nullopt;
  const auto value = record.find(name);
  return value != record.end() && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
}

std::optional<std::string> text_in(const Record& record, std::string_view path) {
  const Record* value = member(record, path);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->get<std::string>();
}

Result<RunData> read_run(const std::string& folder) {
  const fs::path path(folder);
  std::error_code error;
  if (!fs::exists(path, error)) return not_a_run(path, "it does not exist");
  if (!fs::is_directory(path, error)) return not_a_run(path, "it is no folder");
  for (const char* file : {"metrics.jsonl", "config.yaml"}) {
    if (!fs::is_regular_file(path / file, error)) return not_a_run(path, std::string("it has no ") + file);
  }
  RunData run;
  run.path = folder;
  const fs::path canonical = fs::canonical(path, error);
  run.name = (error ? path : canonical).filename().string();
  if (run.name.empty()) run.name = folder;
  Status status = read_settings(path / "config.yaml", run);
  if (status.ok()) status = read_metrics(path / "metrics.jsonl", run);
  if (!status.ok()) return status;
  if (run.unit.empty()) run.unit = "units";
  return run;
}

}  // namespace octavo_train
