// Memory by owner: a bar per run on a common scale, and a table.
// SPDX-License-Identifier: MIT
#include "train/report/bar.h"
#include "train/report/sections.h"
#include "train/base/numbers.h"

#include <algorithm>
#include <array>

namespace octavo_train {
namespace {

struct Owner {
  std::string_view key;
  std::string_view meaning;
};
constexpr std::array<Owner, 8> kOwners{{
    {"params", "the model's weights"},
    {"fp8", "their FP8 codes, and what scales are made of"},
    {"grads", "gradients, with what accumulates them"},
    {"states", "the optimizer's states"},
    {"master", "the bits that bf16 weights lack"},
    {"activations", "kept for the backward pass"},
    {"workspace", "of single operations"},
    {"communication", "of ranks, beside what they communicate"},
}};

std::optional<double> owned(const RunData& run, std::string_view key) {
  const auto bytes = number_in(run.memory, "/owners/" + std::string(key));
  return bytes && *bytes >= 0 ? bytes : std::nullopt;
}

// Returns the bytes that offload keeps in host memory.
std::optional<double> on_host(const RunData& run) {
  std::optional<double> out;
  for (const char* key : {"states", "master", "copies"}) {
    if (const auto bytes = number_in(run.memory, std::string("/host/") + key)) out = out.value_or(0) + *bytes;
  }
  return out;
}

double total(const RunData& run) {
  double out = 0;
  for (const Owner& owner : kOwners) out += owned(run, owner.key).value_or(0);
  return out;
}

std::string bar(const RunData& run, double scale) {
  std::vector<BarPart> parts;
  for (const Owner& owner : kOwners) {
    parts.push_back(
        {std::string(owner.key), "o-" + std::string(owner.key), owned(run, owner.key).value_or(0)});
  }
  return stacked_bar(run.name + ": memory by owner", parts, scale);
}

std::string bars(std::span<const RunData> runs) {
  double scale = 0;
  for (const RunData& run : runs) scale = std::max(scale, total(run));
  std::string out;
  for (const RunData& run : runs) {
    if (total(run) <= 0) continue;
    const std::string name = runs.size() > 1 ? element_of("span", "bar-name", run.name) : "";
    out += element("div", "bar-row",
                   name + bar(run, scale) + element_of("span", "bar-total", bytes_text(total(run)))) +
           "\n";
  }
  return element("div", runs.size() > 1 ? "bars named" : "bars", "\n" + out) + "\n";
}

}  // namespace

std::string memory_html(std::span<const RunData> runs) {
  if (std::none_of(runs.begin(), runs.end(), [](const RunData& run) { return total(run) > 0; })) return {};
  HtmlTable table("owners");
  if (runs.size() > 1) {
    table.head(run_heads(runs, " num"));
  } else {
    table.head({{"owner"}, {"bytes", "", "num"}, {"share", "", "num"}, {"what it is"}});
  }
  for (const Owner& owner : kOwners) {
    const bool known = std::any_of(runs.begin(), runs.end(),
                                   [&](const RunData& run) { return owned(run, owner.key).has_value(); });
    // Not every run has these owners: they need several ranks, or FP8 matmuls.
    if (!known && (owner.key == "communication" || owner.key == "fp8")) continue;
    std::vector<Cell> cells = {{std::string(owner.key), "", "owner o-" + std::string(owner.key)}};
    for (const RunData& run : runs) cells.push_back({bytes_text(owned(run, owner.key)), "", "num"});
    if (runs.size() == 1) {
      cells.push_back(
          {percent_text(owned(runs.front(), owner.key).value_or(0) / total(runs.front())), "", "num"});
      cells.push_back({std::string(owner.meaning)});
    }
    table.row(std::move(cells));
  }
  std::vector<Cell> sums = {{"together", "", "sum"}}, peaks = {{"device peak"}};
  for (const RunData& run : runs) {
    sums.push_back({bytes_text(total(run)), "", "num sum"});
    peaks.push_back({bytes_text(number_in(run.memory, "/device_peak")), "", "num"});
  }
  if (runs.size() == 1) {
    sums.insert(sums.end(), {{"100%", "", "num sum"}, {"", "", "sum"}});
    peaks.insert(peaks.end(), {{""}, {"as the device's allocator counts it"}});
  }
  table.row(std::move(sums));
  const bool device = std::any_of(runs.begin(), runs.end(), [](const RunData& run) {
    return number_in(run.memory, "/device_peak").has_value();
  });
  if (device) table.row(std::move(peaks));
  if (std::any_of(runs.begin(), runs.end(), [](const RunData& run) { return on_host(run).has_value(); })) {
    std::vector<Cell> cells = {{"in host memory"}};
    for (const RunData& run : runs) cells.push_back({bytes_text(on_host(run)), "", "num"});
    if (runs.size() == 1)
      cells.insert(cells.end(),
                   {{""}, {"offloaded states and master bits, copies of weights and gradients"}});
    table.row(std::move(cells));
  }
  const std::string difference =
      device ? "\"Peak memory\" above is the most on the device during the run, evaluations included."
             : "\"Peak memory\" above is the most of the process during the run: its libraries and data "
               "count, too.";
  return section(
      "memory", "Memory by owner",
      bars(runs) + table.html() +
          element_of("p", "quiet", "These are the tensors at the peak of one training step. " + difference) +
          "\n");
}

}  // namespace octavo_train
