// SPDX-License-Identifier: MIT
#include "train/checkpoint/reinitialized_layers.h"

#include "train/checkpoint/stored_tensors.h"

#include <algorithm>

namespace octavo_train {
namespace {

// Returns the number of rows of a tensor in the file and in the model, if they differ and the other
// dimensions do not.
std::optional<std::pair<std::int64_t, std::int64_t>> other_rows(const std::string& name,
                                                                const std::vector<RenamedTensor>& stored,
                                                                const NamedTensors& model) {
  const auto there = std::ranges::find(stored, name, &RenamedTensor::name);
  const auto here = std::ranges::find(model, name, [](const auto& each) { return each.first; });
  if (there == stored.end() || here == model.end()) return std::nullopt;
  const std::vector<std::int64_t>& then = there->stored->shape;
  const auto now = here->second.sizes();
  if (then.empty() || then.size() != now.size() || then[0] == now[0]) return std::nullopt;
  if (!std::equal(then.begin() + 1, then.end(), now.begin() + 1)) return std::nullopt;
  return std::pair(then[0], now[0]);
}

}  // namespace

std::optional<std::string> drop_reinitialized(const ReinitializedLayers& fresh,
                                              std::vector<RenamedTensor>& stored, NamedTensors& model) {
  for (const std::string& name : fresh.by_token) {
    const auto rows = other_rows(name, stored, model);
    if (!rows) continue;
    std::erase_if(stored, [&](const RenamedTensor& each) { return fresh.holds(each.name); });
    const auto count = std::erase_if(model, [&](const auto& each) { return fresh.holds(each.first); });
    return "another vocabulary: " + name + " has " + std::to_string(rows->second) + " rows here and " +
           std::to_string(rows->first) + " there, so " + fresh.what + " start anew (" +
           std::to_string(count) + " tensors)";
  }
  return std::nullopt;
}

}  // namespace octavo_train
