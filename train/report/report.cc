// Reads the folders of runs leniently: a line that is not a record is skipped and counted; a member of an
// unexpected type counts as missing.
// SPDX-License-Identifier: MIT
#include "train/report/report.h"

#include "train/base/numbers.h"
#include "train/base/word_diff.h"
#include "train/config/yaml.h"
#include "train/io/json_depth.h"
#include "train/report/page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Record = nlohmann::json;

double rounded(double value, int digits) {
  const std::string text = decimal_text(value, std::chars_format::general, digits);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// The kinds of records that the page lists, and how many of the last ones it shows.
struct Listed {
  const char* kind;
  std::size_t most;
};
constexpr std::array<Listed, 6> kListed{
    {{"eval", 200}, {"sample", 8}, {"checkpoint", 200}, {"stage", 200}, {"warning", 200}, {"change", 200}}};
constexpr std::size_t kMostExamples = 50;  // a log from another program may have more

// A metric of the evaluations other than the loss.
struct Metric {
  std::string name;
  bool higher_is_better = false;
  Curve curve;
};

struct Run {
  std::string path, name;
  Json settings = Json::array();
  Record start, end, memory;
  Record examples;                                   // the last evaluation that has examples
  std::map<std::string, std::vector<Record>> lists;  // by kind
  std::map<std::string, Curve> curves;               // by their names in report_data()
  std::vector<Metric> metrics;
  std::int64_t records = 0, bad_lines = 0, sessions = 0, last_step = 0;
  std::string unit;
  double units = 0, skipped = 0, seconds = 0;
  std::optional<double> began, last_seen, device_peak, host_peak;
};

// Returns a member of a record: `path` is a JSON pointer, such as /memory/device.
const Record* member(const Record& record, std::string_view path) {
  const Record::json_pointer pointer{std::string(path)};
  return record.contains(pointer) ? &record.at(pointer) : nullptr;
}

std::optional<double> number_in(const Record& record, std::string_view path) {
  const Record* value = member(record, path);
  return value != nullptr && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
}

std::optional<std::string> text_in(const Record& record, std::string_view path) {
  const Record* value = member(record, path);
  return value != nullptr && value->is_string() ? std::optional(value->get<std::string>()) : std::nullopt;
}

void raise(std::optional<double>& peak, std::optional<double> value) {
  if (value && (!peak || *value > *peak)) peak = value;
}

// A number that was not finite is null in the log; it is a gap in the curve.
void add_point(Curve& curve, std::int64_t step, const Record* value) {
  const auto x = static_cast<double>(step);
  if (value != nullptr && value->is_number()) curve.push_back({x, value->get<double>()});
  if (value != nullptr && value->is_null()) curve.push_back({x, std::numeric_limits<double>::quiet_NaN()});
}

// Finds the run's unit. Logs of versions without tasks do not name it, but have a member batch_<unit>.
void find_unit(Run& run) {
  constexpr std::string_view kBatch = "batch_";
  if (const auto unit = text_in(run.start, "/unit")) {
    run.unit = *unit;
  } else {
    for (const auto& [name, value] : run.start.items())
      if (name.starts_with(kBatch)) run.unit = name.substr(kBatch.size());
  }
}

void add_evaluation(Run& run, std::int64_t step, Record& record) {
  add_point(run.curves["eval"], step, member(record, "/loss"));
  if (const Record* better = member(record, "/better"); better != nullptr && better->is_object()) {
    for (const auto& [name, direction] : better->items()) {
      const auto value = record.find(name);
      if (name == "loss" || value == record.end()) continue;
      auto at = std::ranges::find(run.metrics, name, &Metric::name);
      if (at == run.metrics.end()) at = run.metrics.insert(at, {name, direction == "higher", {}});
      add_point(at->curve, step, &*value);
    }
  }
  const auto examples = record.find("examples");
  if (examples == record.end()) return;
  if (examples->is_array() && !examples->empty()) run.examples = {{"step", step}, {"rows", *examples}};
  record.erase(examples);
}

void add_train(Run& run, std::int64_t step, const Record& record) {
  constexpr std::string_view kRate = "_per_second";
  static constexpr std::array<std::pair<const char*, const char*>, 6> kCurves{
      {{"train", "/loss"},
       {"lr", "/lr"},
       {"grad_norm", "/grad_norm"},
       {"loss_scale", "/loss_scale"},
       {"device_memory", "/memory/device"},
       {"host_memory", "/memory/host"}}};
  for (const auto& [curve, path] : kCurves) add_point(run.curves[curve], step, member(record, path));
  for (const auto& [name, value] : record.items()) {
    if (!name.ends_with(kRate)) continue;
    add_point(run.curves["throughput"], step, &value);
    if (run.unit.empty()) run.unit = name.substr(0, name.size() - kRate.size());
  }
  if (const auto units = record.find(run.unit); units != record.end() && units->is_number())
    run.units = std::max(run.units, units->get<double>());
  raise(run.device_peak, number_in(record, "/memory/device_peak"));
  raise(run.device_peak, number_in(record, "/memory/device"));
  raise(run.host_peak, number_in(record, "/memory/host"));
  run.skipped = std::max(run.skipped, number_in(record, "/skipped").value_or(0));
}

// Ignores kinds of records that it does not know, from later versions.
void add_record(Run& run, const std::string& kind, std::int64_t step, Record record) {
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
    add_train(run, step, record);
  } else if (kind == "eval") {
    add_evaluation(run, step, record);
  } else if (kind == "memory") {
    raise(run.device_peak, number_in(record, "/device_peak"));
    run.memory = std::move(record);
  } else if (kind == "start") {
    run.start = std::move(record);
    run.end = nullptr;
    find_unit(run);
  } else if (kind == "end") {
    run.end = std::move(record);
  }
  if (std::ranges::find(kListed, kind, &Listed::kind) != kListed.end())
    run.lists[kind].push_back(std::move(record));
}

Status read_metrics(const fs::path& path, Run& run) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return failed_error("{}: cannot read it", path.string());
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    if (json_depth(line) > kDeepestJson) {
      ++run.bad_lines;
      continue;
    }
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
  if (in.bad()) return failed_error("{}: cannot read it to its end", path.string());
  return {};
}

std::string value_text(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::null) return "null";
  if (node.kind == YamlNode::Kind::scalar) return node.text;
  std::string out;
  for (const YamlNode& item : node.items) out += (out.empty() ? "" : ", ") + value_text(item);
  return "[" + out + "]";
}

void flatten(const YamlNode& node, const std::string& prefix, Json& settings) {
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const std::string path = prefix + node.keys[i].text;
    if (node.items[i].kind == YamlNode::Kind::map)
      flatten(node.items[i], path + ".", settings);
    else
      settings.push_back({path, value_text(node.items[i])});
  }
}

Status read_settings(const fs::path& path, Run& run) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  ASSIGN_OR_RETURN(const YamlNode root, read_yaml(text.str(), {path.string()}));
  if (root.kind == YamlNode::Kind::map) flatten(root, "", run.settings);
  return {};
}

Status not_a_run(const fs::path& folder, const std::string& why) {
  std::string message = folder.string() + ": not a run: " + why +
                        "; expected a run's folder (its output_dir), with config.yaml and metrics.jsonl";
  const fs::path parent = folder.lexically_normal().parent_path();
  std::error_code error;
  if (fs::is_regular_file(parent / "metrics.jsonl", error)) message += "; " + parent.string() + " is one";
  return Status::invalid(message);
}

Result<Run> read_run(const std::string& folder) {
  const fs::path path(folder);
  std::error_code error;
  if (!fs::exists(path, error)) return not_a_run(path, "it does not exist");
  if (!fs::is_directory(path, error)) return not_a_run(path, "it is not a folder");
  for (const char* file : {"metrics.jsonl", "config.yaml"}) {
    if (!fs::is_regular_file(path / file, error)) return not_a_run(path, std::string("it has no ") + file);
  }
  Run run;
  run.path = folder;
  const fs::path canonical = fs::canonical(path, error);
  run.name = (error ? path : canonical).filename().string();
  if (run.name.empty()) run.name = folder;
  RETURN_IF_ERROR(read_settings(path / "config.yaml", run));
  RETURN_IF_ERROR(read_metrics(path / "metrics.jsonl", run));
  if (run.unit.empty()) run.unit = "units";
  return run;
}

// Gives every run a unique name, because the page distinguishes runs by their names.
void name_apart(std::vector<Run>& runs) {
  std::map<std::string, int> uses, seen;
  for (const Run& run : runs) ++uses[run.name];
  for (Run& run : runs) {
    if (uses[run.name] > 1) run.name = run.path;
    if (const int count = ++seen[run.name]; count > 1) run.name += fmt::format(" ({})", count);
  }
}

void add_differences(std::vector<Run>& runs) {
  std::map<double, double> first;
  for (const Point& point : runs.front().curves["eval"]) first[point.x] = point.y;
  for (Run& run : std::span(runs).subspan(1)) {
    for (const Point& point : run.curves["eval"]) {
      if (const auto other = first.find(point.x); other != first.end())
        run.curves["difference"].push_back({point.x, point.y - other->second});
    }
  }
}

std::vector<double> finite_values(std::span<const Point> points) {
  std::vector<double> out;
  for (const Point& point : points)
    if (std::isfinite(point.y)) out.push_back(point.y);
  return out;
}

Json mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? Json() : Json(sum / static_cast<double>(values.size()));
}

Json median(std::vector<double> values) {
  if (values.empty()) return nullptr;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Json list_json(const std::vector<Record>& records, std::size_t most) {
  const std::size_t begin = records.size() - std::min(records.size(), most);
  return {{"all", records.size()}, {"last", std::vector<Record>(records.begin() + begin, records.end())}};
}

// Aligns the words of references and hypotheses, so that the page can mark the words that differ.
Json examples_json(const Record& examples) {
  if (examples.is_null()) return nullptr;
  Json rows = Json::array();
  for (const Record& example : examples.at("rows")) {
    if (rows.size() == kMostExamples) break;
    const std::string reference = text_in(example, "/reference").value_or(""),
                      hypothesis = text_in(example, "/hypothesis").value_or("");
    Json reference_words = Json::array(), transcript = Json::array();
    std::int64_t errors = 0;
    for (const AlignedWord& word : align_words(reference, hypothesis)) {
      const bool differs = word.edit != Edit::none;
      errors += differs ? 1 : 0;
      if (word.edit != Edit::insertion) reference_words.push_back({word.reference, differs});
      if (word.edit != Edit::deletion) transcript.push_back({word.hypothesis, differs});
    }
    const auto words = reference_words.size();
    const auto name = text_in(example, "/name");
    rows.push_back({{"name", name ? Json(*name) : Json()},
                    {"reference", std::move(reference_words)},
                    {"hypothesis", std::move(transcript)},
                    {"errors", errors},
                    {"words", words}});
  }
  return {{"step", examples.at("step")}, {"rows", std::move(rows)}};
}

Json run_json(Run& run) {
  const auto number = [](std::optional<double> value) { return value ? Json(*value) : Json(); };
  const Curve& train = run.curves["train"];
  const std::size_t window = smoothing_window(train);
  const std::size_t before = train.size() - std::min(window, train.size());
  Json out = {{"name", run.name},
              {"path", run.path},
              {"records", run.records},
              {"bad_lines", run.bad_lines},
              {"sessions", run.sessions},
              {"last_step", run.last_step},
              {"unit", run.unit},
              {"units", run.units},
              {"skipped", run.skipped},
              {"seconds", run.seconds},
              {"began", number(run.began)},
              {"device_peak", number(run.device_peak)},
              {"host_peak", number(run.host_peak)},
              {"window", window},
              {"train_loss", mean(finite_values(std::span(train).subspan(before)))},
              {"speed", median(finite_values(run.curves["throughput"]))},
              {"start", run.start},
              {"end", run.end},
              {"memory", run.memory},
              {"settings", run.settings},
              {"examples", examples_json(run.examples)}};
  for (const Listed& each : kListed) out[each.kind] = list_json(run.lists[each.kind], each.most);
  // Six digits are more than a screen shows. The page writes values of evaluations with four decimals.
  Json& curves = out["curves"];
  for (const char* name : {"train", "mean", "eval", "difference", "lr", "grad_norm", "throughput",
                           "loss_scale", "device_memory", "host_memory"})
    curves[name] = curve_json(run.curves[name], std::string_view(name) == "eval" ? 12 : 6);
  curves["mean"] = window > 1 ? curve_json(smoothed(train, window), 6) : Json();
  out["metrics"] = Json::array();
  for (const Metric& metric : run.metrics)
    out["metrics"].push_back({{"name", metric.name},
                              {"higher_is_better", metric.higher_is_better},
                              {"curve", curve_json(metric.curve, 12)}});
  return out;
}

}  // namespace

Result<Json> report_data(std::span<const std::string> run_folders) {
  if (run_folders.empty()) return Status::invalid("[report] runs: got none, expected at least one folder");
  std::vector<Run> runs;
  for (const std::string& folder : run_folders) {
    ASSIGN_OR_RETURN(Run run, read_run(folder));
    runs.push_back(std::move(run));
  }
  name_apart(runs);
  add_differences(runs);
  Json out = {{"runs", Json::array()}, {"most_points", kMostPoints}};
  for (Run& run : runs) out["runs"].push_back(run_json(run));
  return out;
}

Result<std::string> make_report(std::span<const std::string> run_folders) {
  ASSIGN_OR_RETURN(const Json data, report_data(run_folders));
  std::string title;
  for (const Json& run : data["runs"]) title += (title.empty() ? "" : ", ") + run["name"].get<std::string>();
  return html_page(title, data, {&chart_js, &charts_js, &report_js});
}

Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most) return curve;
  const bool gaps =
      !std::all_of(curve.begin(), curve.end(), [](const Point& p) { return std::isfinite(p.y); });
  const std::size_t parts = (most - 2) / (gaps ? 3 : 2);
  Curve out = {curve.front()};
  const std::size_t inner = curve.size() - 2;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = 1 + inner * part / parts;
    const std::size_t end = 1 + inner * (part + 1) / parts;
    std::size_t low = end, high = end, gap = end;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(curve[i].y)) {
        gap = std::min(gap, i);
        continue;
      }
      if (low == end || curve[i].y < curve[low].y) low = i;
      if (high == end || curve[i].y > curve[high].y) high = i;
    }
    std::array<std::size_t, 3> kept = {low, high, gap};
    std::sort(kept.begin(), kept.end());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] < end && (i == 0 || kept[i] != kept[i - 1])) out.push_back(curve[kept[i]]);
    }
  }
  out.push_back(curve.back());
  return out;
}

std::size_t smoothing_window(const Curve& curve) {
  return std::clamp<std::size_t>(curve.size() / 50, 1, 100);
}

Curve smoothed(const Curve& curve, std::size_t window) {
  std::vector<double> sums = {0}, counts = {0};  // over the points before each point
  for (const Point& point : curve) {
    const bool number = std::isfinite(point.y);
    sums.push_back(sums.back() + (number ? point.y : 0));
    counts.push_back(counts.back() + (number ? 1 : 0));
  }
  Curve out = curve;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(out[i].y)) continue;
    const std::size_t reach = std::min(window / 2, i);
    const std::size_t begin = i - reach, end = std::min(i + reach + 1, out.size());
    out[i].y = (sums[end] - sums[begin]) / (counts[end] - counts[begin]);
  }
  return out;
}

nlohmann::ordered_json curve_json(const Curve& curve, int digits) {
  nlohmann::ordered_json x = nlohmann::ordered_json::array(), y = x;
  for (const Point& point : thinned(curve)) {
    x.push_back(static_cast<std::int64_t>(point.x));
    y.push_back(std::isfinite(point.y) ? nlohmann::ordered_json(rounded(point.y, digits)) : nullptr);
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

}  // namespace octavo_train
