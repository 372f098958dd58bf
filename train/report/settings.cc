// The settings of the runs. For one run, all settings by section; for several runs, the settings that differ
// side by side, then the others.
// SPDX-License-Identifier: MIT
#include "train/report/sections.h"
#include "train/base/numbers.h"

#include <map>
#include <utility>

namespace octavo_train {
namespace {

// Returns the keys of all runs, in the order of their first appearance.
std::vector<std::string> all_keys(std::span<const RunData> runs) {
  std::vector<std::string> out;
  std::map<std::string, bool> seen;
  for (const RunData& run : runs) {
    for (const auto& [key, value] : run.settings) {
      if (!std::exchange(seen[key], true)) out.push_back(key);
    }
  }
  return out;
}

std::string setting(const RunData& run, const std::string& key) {
  for (const auto& [name, value] : run.settings) {
    if (name == key) return value;
  }
  return kUnknown;
}

// Returns a table per section of the config (model, data, training), and one for keys outside of a section.
std::string settings_by_section(const std::vector<std::pair<std::string, std::string>>& settings) {
  std::vector<std::pair<std::string, HtmlTable>> tables;
  for (const auto& [key, value] : settings) {
    const std::size_t dot = key.find('.');
    const std::string name = dot == std::string::npos ? "run" : key.substr(0, dot);
    if (tables.empty() || tables.back().first != name) {
      tables.emplace_back(name, HtmlTable("code"));
      tables.back().second.head({{name}, {""}});
    }
    tables.back().second.row({{dot == std::string::npos ? key : key.substr(dot + 1)}, {value}});
  }
  std::string out;
  for (const auto& [name, table] : tables) out += table.html();
  return out.empty() ? out : element("div", "columns", "\n" + out) + "\n";
}

}  // namespace

std::string settings_html(std::span<const RunData> runs) {
  HtmlTable differing("compare code");
  differing.head(run_heads(runs));
  std::vector<std::pair<std::string, std::string>> same;
  for (const std::string& key : all_keys(runs)) {
    std::vector<Cell> cells = {{key}};
    const std::string first = setting(runs.front(), key);
    bool differs = false;
    for (const RunData& run : runs) {
      const std::string value = setting(run, key);
      cells.push_back({value, "", value != first ? "differs" : ""});
      differs = differs || value != first;
    }
    if (differs) {
      differing.row(std::move(cells));
    } else {
      same.emplace_back(key, first);
    }
  }
  if (runs.size() == 1) return section("settings", "Settings", settings_by_section(same));
  std::string out =
      differing.empty()
          ? element_of("p", "quiet", "All settings are the same.") + "\n"
          : element_of("p", "quiet", "Marked where a run differs from the first.") + "\n" + differing.html();
  if (!same.empty()) {
    out += "<details><summary>Settings that all runs share</summary>\n" + settings_by_section(same) +
           "</details>\n";
  }
  return section("settings", "Settings that differ", out);
}

}  // namespace octavo_train
