// Descriptions of algorithms as JSON and text; see algorithm_info.h.
// SPDX-License-Identifier: MIT
#include "apps/octavo/algorithm_info.h"

#include "apps/octavo/bench/algorithm.h"
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/table.h"

#include <nlohmann/json.hpp>

#include <vector>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;

json moments_json(Algorithm algorithm, std::uint32_t switches) {
  json out = json::array();
  for (const Slot& slot : slots(algorithm, switches)) {
    out.push_back({{"name", slot.name}, {"moment", slot.moment == Moment::first ? "first" : "second"}});
  }
  return out;
}

}  // namespace

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

}  // namespace octavo::cli
