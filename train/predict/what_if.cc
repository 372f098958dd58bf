// SPDX-License-Identifier: MIT
#include "train/predict/what_if.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <vector>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;
using octavo::plan::Owner;
using octavo::plan::Precision;

const char* zero_name(Parallel parallel) {
  return parallel == Parallel::zero1 ? "zero1" : parallel == Parallel::zero2 ? "zero2" : "none";
}

// The prediction's GPU comes first: a size such as 8GB is not in the list, and the memory of the local GPU
// differs from the list's by some MiB.
Json gpus_json(const octavo::plan::Gpu& first) {
  std::vector<octavo::plan::Gpu> gpus = octavo::plan::known_gpus();
  std::erase_if(gpus, [&](const octavo::plan::Gpu& gpu) { return gpu.key == first.key; });
  gpus.insert(gpus.begin(), first);
  Json out = Json::array();
  for (const octavo::plan::Gpu& gpu : gpus)
    out.push_back({{"key", gpu.key},
                   {"name", gpu.name},
                   {"memory", gpu.memory},
                   {"context", gpu.context},
                   {"bandwidth", gpu.bandwidth},
                   {"bf16", gpu.flops[static_cast<std::size_t>(Precision::bf16)]}});
  return out;
}

Json point_json(const Prediction& p, std::int64_t length, bool checkpointing) {
  return {{"rows", p.rows},
          {"length", length},
          {"checkpointing", checkpointing},
          {"weights", p.of(Owner::weights)},
          {"gradients", p.of(Owner::gradients)},
          {"activations", p.of(Owner::activations) + p.of(Owner::batch)},
          {"workspace", p.of(Owner::workspace)},
          {"rounding", p.memory.rounding},
          {"fragmentation", p.fragmentation()},
          {"evaluation", p.evaluation},
          {"step_seconds", p.step_seconds},
          {"units", static_cast<std::int64_t>(p.units_per_second * p.step_seconds + 0.5)}};
}

struct Point {
  std::int64_t rows, length;
};

// Returns predictions for two batches smaller and one larger than the run's, and for half and twice the run's
// length, each with and without checkpointing. `request` is of one GPU.
Json points_json(const LoadWith& load, const PredictionRequest& request, const Prediction& run,
                 const SizeKey& length) {
  const std::int64_t least = 1, now = std::max(length.now, least), rows = run.rows;
  std::vector<Point> points;
  for (const std::int64_t tried : {rows / 4, rows / 2, rows, 2 * rows})
    points.push_back({std::max(tried, least), now});
  for (const std::int64_t other : {now / 2 / length.step * length.step, 2 * now})
    for (const std::int64_t tried : {rows / 2, rows})
      if (!length.key.empty() && other > 0) points.push_back({std::max(tried, least), other});
  Json out = Json::array();
  for (const bool checkpointing : {false, true}) {
    for (const Point& point : points) {
      std::vector<std::string> words = {
          fmt::format("model.gradient_checkpointing={}", checkpointing),
          fmt::format("training.per_device_train_batch_size={}", point.rows),
          "training.global_batch_size=null",  // the number of micro-batches stays that of a rank of the run
          fmt::format("training.gradient_accumulation_steps={}", run.passes)};
      if (point.length != now) words.push_back(fmt::format("{}={}", length.key, point.length));
      if (const auto p = predict_with(load, words, request); p.ok())
        out.push_back(point_json(*p, point.length, checkpointing));
    }
  }
  return out;
}

Json states_json(const LoadWith& load, const PredictionRequest& request, const Settings& settings) {
  Json out = Json::array();
  for (const char* const state : {"fp32", "8bit", "4bit"}) {
    const std::string suffix = std::string_view(state) == "fp32" ? "" : fmt::format("_{}", state);
    const auto p = predict_with(
        load,
        {fmt::format("training.optimizer={}{}", name(settings.training.optimizer.algorithm), suffix),
         "training.per_device_train_batch_size=1"},
        request);
    if (!p.ok()) continue;
    out.push_back({{"name", state},
                   {"states", p->states.states + p->states.host_states},
                   {"master", p->states.master + p->states.host_master}});
  }
  return out;
}

}  // namespace

Result<Json> what_if(const std::string& file, const LoadWith& load, const PredictionRequest& request,
                     const Prediction& now) {
  ASSIGN_OR_RETURN(const auto config, load({}));
  const Settings& settings = config.settings;
  ASSIGN_OR_RETURN(const auto task, open_task(settings));
  const SizeKey length = task.task->text().length_key;
  const auto checkpointed = load({"model.gradient_checkpointing=true"});
  const bool checkpointing = checkpointed.ok() && differences(settings, checkpointed->settings).empty();
  Json out;
  out["title"] = file + " on " + now.gpu.name;
  out["config"] = file;
  out["overrides"] = Json::array();
  out["unit"] = now.unit;
  out["memory_rows"] = Json::array();
  for (const auto& [owner, bytes] : memory_rows(now)) out["memory_rows"].push_back({owner, bytes});
  out["total"] = now.total();
  out["allocated"] = now.peak;
  out["reserved"] = now.memory.reserved + now.evaluation;
  out["step_seconds"] = now.step_seconds;
  out["units_per_second"] = now.units_per_second;
  out["bound"] = now.bound();
  out["lines"] = prediction_lines(now);
  out["kernels"] = Json::array();
  for (const auto& [kernel, seconds] : now.kernels) out["kernels"].push_back({kernel, seconds});
  out["gpus"] = gpus_json(now.gpu);
  out["now"] = {{"rows", now.rows},
                {"length", std::max<std::int64_t>(length.now, 1)},
                {"checkpointing", checkpointing},
                {"state", std::string(name(settings.training.optimizer.state))},
                {"gpu", now.gpu.key},
                {"num_gpus", now.num_gpus},
                {"zero", zero_name(settings.training.parallel)}};
  out["lengths_known"] = !length.key.empty();
  PredictionRequest one = request;
  one.num_gpus = 1;
  out["states"] = states_json(load, one, settings);
  out["points"] = points_json(load, one, now, length);
  return out;
}

}  // namespace octavo_train
