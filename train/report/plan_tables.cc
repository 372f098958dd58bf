// SPDX-License-Identifier: MIT
#include "train/report/plan_tables.h"

#include "train/report/bar.h"
#include "train/report/html.h"
#include "train/base/numbers.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::size_t kMostKernels = 12;
constexpr std::size_t kOwnerColours = 11;  // colours in plan.css: one per row of a plan

struct Named {
  std::string name;
  double value = 0;
};

// Reads a list such as [["weights", 202], …].
std::vector<Named> named_numbers(const Record& plan, const char* list) {
  std::vector<Named> out;
  for (const Record& row : plan_list(plan, list)) {
    out.push_back({text_in(row, "/0").value_or(""), number_in(row, "/1").value_or(0)});
  }
  return out;
}

bool flag_in(const Record& record, const char* name, bool otherwise) {
  const auto at = record.find(name);
  return at != record.end() && at->is_boolean() ? at->get<bool>() : otherwise;
}

}  // namespace

const Record& plan_list(const Record& plan, const char* name) {
  static const Record kNone = Record::array();
  const auto at = plan.find(name);
  return at != plan.end() && at->is_array() ? *at : kNone;
}

Record planned_gpu(const Record& plan) {
  const auto key = text_in(plan, "/now/gpu");
  for (const Record& gpu : plan_list(plan, "gpus")) {
    if (key && text_in(gpu, "/key") == key) return gpu;
  }
  return {};
}

std::string planned_memory(const Record& plan) {
  const std::vector<Named> rows = named_numbers(plan, "memory_rows");
  if (rows.empty()) return {};
  double sum = 0;
  for (const Named& row : rows) sum += row.value;
  const double total = number_in(plan, "/total").value_or(sum);
  const double scale = std::max({total, sum, number_in(planned_gpu(plan), "/memory").value_or(0), 1.0});
  HtmlTable table("owners");
  table.head({{"owner"}, {"bytes", "", "num"}, {"share", "", "num"}});
  std::vector<BarPart> parts;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].value == 0) continue;  // one GPU has no communication
    const std::string style = "p" + std::to_string(i % kOwnerColours);
    parts.push_back({rows[i].name, style, rows[i].value});
    table.row({{rows[i].name, "", "owner " + style},
               {bytes_text(rows[i].value), grouped(rows[i].value), "num"},
               {percent_text(rows[i].value / std::max(total, 1.0)), "", "num"}});
  }
  table.row({{"in all", "", "sum"}, {bytes_text(total), grouped(total), "num sum"}, {"100%", "", "num sum"}});
  const std::string bars = element("div", "bars room",
                                   element("div", "bar-row",
                                           stacked_bar("memory by owner", parts, scale) +
                                               element_of("span", "bar-total", bytes_text(total)))) +
                           "\n";
  return bars + table.html() +
         element_of("p", "quiet",
                    "Of it torch allocates " + bytes_text(number_in(plan, "/allocated")) +
                        " at the peak and reserves " + bytes_text(number_in(plan, "/reserved")) +
                        ". The width of the bar is the GPU's memory, or the plan's where that is more.") +
         "\n";
}

std::string kernel_times(const Record& plan) {
  const std::vector<Named> kernels = named_numbers(plan, "kernels");
  if (kernels.empty()) return {};
  double sum = 0, rest = 0, most = 0;
  for (const Named& kernel : kernels) sum += kernel.value, most = std::max(most, kernel.value);
  HtmlTable table("meters");
  table.head({{"launched by"}, {"time", "", "num"}, {"share", "", "num"}, {""}});
  const auto row = [&](const std::string& name, double seconds) {
    const std::string width = fixed(most > 0 ? std::clamp(seconds / most, 0.0, 1.0) * 100 : 0, 2);
    table.row({{name, "", "code"},
               {brief_time(seconds), "", "num"},
               {percent_text(sum > 0 ? seconds / sum : 0), "", "num"},
               {"", "", "meter", "<span style=\"width:" + width + "%\"></span>"}});
  };
  const std::size_t shown = std::min(kernels.size(), kMostKernels);
  for (std::size_t i = 0; i < shown; ++i) row(kernels[i].name, kernels[i].value);
  for (std::size_t i = shown; i < kernels.size(); ++i) rest += kernels[i].value;
  if (kernels.size() > shown) row(std::to_string(kernels.size() - shown) + " others", rest);
  return table.html();
}

std::string planned_points(const Record& plan) {
  const bool lengths = flag_in(plan, "lengths_known", true);
  HtmlTable table("points");
  std::vector<Cell> head = {{"rows"}};
  if (lengths) head.push_back({"length", "", "num"});
  head.push_back({"checkpointing"});
  const std::vector<std::string> owners = {"weights",   "gradients", "activations",
                                           "workspace", "rounding",  "fragmentation"};
  for (const std::string& owner : owners) head.push_back({owner, "", "num"});
  head.push_back({"step", "", "num"});
  table.head(std::move(head));
  for (const Record& point : plan_list(plan, "points")) {
    std::vector<Cell> cells = {{grouped(number_in(point, "/rows"))}};
    if (lengths) cells.push_back({grouped(number_in(point, "/length")), "", "num"});
    cells.push_back({flag_in(point, "checkpointing", false) ? "yes" : "no"});
    for (const std::string& owner : owners)
      cells.push_back({bytes_text(number_in(point, "/" + owner)), "", "num"});
    cells.push_back({brief_time(number_in(point, "/step_seconds")), "", "num"});
    table.row(std::move(cells));
  }
  HtmlTable states("states");
  states.head({{"state format"}, {"optimizer states", "", "num"}, {"master bits", "", "num"}});
  for (const Record& state : plan_list(plan, "states")) {
    states.row({{text_in(state, "/name").value_or("")},
                {bytes_text(number_in(state, "/states")), "", "num"},
                {bytes_text(number_in(state, "/master")), "", "num"}});
  }
  return (table.empty() ? "" : table.html()) + (states.empty() ? "" : "<br>\n" + states.html());
}

}  // namespace octavo_train
