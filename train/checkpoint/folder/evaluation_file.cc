// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/evaluation_file.h"

#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/text_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLimit = 1 << 20;
constexpr const char* kLower = "lower";
constexpr const char* kHigher = "higher";

Metric metric_of(const Json& json) {
  Metric out;
  out.name = json.at("name").get<std::string>();
  const Json& value = json.at("value");  // JSON has no NaN: it is written as null
  out.value = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  out.better = json.at("better").get<std::string>() == kHigher ? Better::higher : Better::lower;
  return out;
}

}  // namespace

const Metric* EvaluationRecord::find(std::string_view name) const {
  const auto found = std::ranges::find(metrics, name, &Metric::name);
  return found == metrics.end() ? nullptr : &*found;
}

std::string evaluation_text(const EvaluationRecord& record) {
  Json metrics = Json::array();
  for (const Metric& each : record.metrics) {
    metrics.push_back({{"name", each.name},
                       {"value", each.value},
                       {"better", each.better == Better::lower ? kLower : kHigher}});
  }
  Json out = {{"metrics", metrics}, {"best_by", nullptr}, {"only_best", record.only_best}};
  if (!record.best_by.empty()) out["best_by"] = record.best_by;
  return out.dump(2) + '\n';
}

Result<std::optional<EvaluationRecord>> read_evaluation(const std::string& checkpoint) {
  const std::string path = checkpoint + '/' + std::string(kEvaluationName);
  if (!path_exists(path)) return std::optional<EvaluationRecord>();
  ASSIGN_OR_RETURN(const auto text, read_text_file(path, kLimit));
  try {
    const Json json = Json::parse(text);
    EvaluationRecord record;
    for (const Json& each : json.at("metrics")) record.metrics.push_back(metric_of(each));
    if (const Json& by = json.at("best_by"); !by.is_null()) record.best_by = by.get<std::string>();
    record.only_best = json.at("only_best").get<bool>();
    return std::optional(std::move(record));
  } catch (const nlohmann::json::exception& error) {
    return invalid_error("{}: {}; it was not written by octavo train", path, error.what());
  }
}

}  // namespace octavo_train
