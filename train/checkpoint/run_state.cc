// SPDX-License-Identifier: MIT
#include "train/checkpoint/run_state.h"

#include <nlohmann/json.hpp>

namespace octavo_train {

using Json = nlohmann::ordered_json;

void to_json(Json& json, const RunState& state) {
  json["step"] = state.step;
  json["units"] = state.units;
  json["sampler"] = {{"draws", state.position}, {"samples", state.samples}, {"start", state.sampler_start}};
  json["random"] = "a function of training.seed, the step and the pass: nothing to keep";
  json["skipped"] = {{"all", state.skipped}, {"in_a_row", state.skipped_in_a_row}};
  if (state.left_out > 0) json["left_out"] = {{"samples", state.left_out}, {"passes", state.passes_left_out}};
  json["evaluated"] = state.evaluated;
  json["loss"] = {{"sum", state.loss_sum}, {"count", state.loss_count}};
  if (state.ranks > 0) json["ranks"] = state.ranks, json["batches_per_step"] = state.batches_per_step;
  if (state.first_step > 0) json["first_step"] = state.first_step;
}

void from_json(const Json& json, RunState& state) {
  state.step = json.at("step").get<std::int64_t>();
  // Version 0.1 named this field tokens.
  state.units = json.at(json.contains("units") ? "units" : "tokens").get<std::int64_t>();
  state.position = json.at("sampler").at("draws").get<std::uint64_t>();
  state.samples = json.at("sampler").at("samples").get<std::int64_t>();
  state.sampler_start = json.at("sampler").at("start").get<std::uint64_t>();
  state.skipped = json.at("skipped").at("all").get<std::int64_t>();
  state.skipped_in_a_row = json.at("skipped").at("in_a_row").get<std::int64_t>();
  if (json.contains("left_out")) {
    state.left_out = json.at("left_out").at("samples").get<std::int64_t>();
    state.passes_left_out = json.at("left_out").at("passes").get<std::int64_t>();
  }
  state.evaluated = json.at("evaluated").get<std::int64_t>();
  state.loss_sum = json.at("loss").at("sum").is_null() ? 0.0 : json.at("loss").at("sum").get<double>();
  state.loss_count = json.at("loss").at("count").get<std::int64_t>();
  state.first_step = json.value("first_step", std::int64_t{0});
  if (!json.contains("ranks")) return;
  state.ranks = json.at("ranks").get<std::int64_t>();
  state.batches_per_step = json.at("batches_per_step").get<std::int64_t>();
}

}  // namespace octavo_train
