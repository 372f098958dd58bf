// SPDX-License-Identifier: MIT
#include "train/predict/what_if.h"

#include "train/base/status.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;
using octavo::plan::Owner;
using octavo::plan::Precision;

std::int64_t of(const Prediction& plan, Owner owner) {
  return plan.memory.owners[static_cast<std::size_t>(owner)];
}

const char* zero_name(Parallel parallel) {
  return parallel == Parallel::zero1 ? "zero1" : parallel == Parallel::zero2 ? "zero2" : "none";
}

// The GPU of the plan comes first: a size such as 8GB is not in the list, and the memory of the local GPU
// differs from the list's by some MiB.
Json gpus_json(const octavo::plan::Gpu& planned) {
  std::vector<octavo::plan::Gpu> gpus = octavo::plan::known_gpus();
  std::erase_if(gpus, [&](const octavo::plan::Gpu& gpu) { return gpu.key == planned.key; });
  gpus.insert(gpus.begin(), planned);
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

Json point_json(const Prediction& plan, std::int64_t length, bool checkpointing, std::int64_t units) {
  return {{"rows", plan.rows},
          {"length", length},
          {"checkpointing", checkpointing},
          {"weights", of(plan, Owner::weights)},
          {"gradients", of(plan, Owner::gradients)},
          {"activations", of(plan, Owner::activations) + of(plan, Owner::batch)},
          {"workspace", of(plan, Owner::workspace)},
          {"rounding", plan.memory.rounding},
          {"fragmentation", plan.fragmentation()},
          {"evaluation", plan.evaluation},
          {"step_seconds", plan.step_seconds},
          {"units", units}};
}

struct Point {
  std::int64_t rows, length;
};

// Returns plans for two batches smaller and one larger than the run's, and for half and twice the run's
// length, each with and without checkpointing.
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
          std::string("model.gradient_checkpointing=") + (checkpointing ? "true" : "false"),
          "training.per_device_train_batch_size=" + std::to_string(point.rows),
          "training.global_batch_size=null",  // the number of micro-batches stays that of a rank of the run
          "training.gradient_accumulation_steps=" + std::to_string(run.passes)};
      if (point.length != now) words.push_back(length.key + "=" + std::to_string(point.length));
      auto config = load(words);
      if (!config.ok()) continue;
      PredictionRequest one = request;
      one.num_gpus = 1;
      auto plan = make_plan(config->settings, one);
      if (!plan.ok()) continue;
      const auto units = static_cast<std::int64_t>(plan->units_per_second * plan->step_seconds + 0.5);
      out.push_back(point_json(*plan, point.length, checkpointing, units));
    }
  }
  return out;
}

Json states_json(const LoadWith& load, const PredictionRequest& request, const Settings& settings) {
  Json out = Json::array();
  const std::string algorithm(name(settings.training.optimizer.algorithm));
  for (const char* const state : {"fp32", "8bit", "4bit"}) {
    const std::string optimizer = std::string(state) == "fp32" ? algorithm : algorithm + "_" + state;
    auto config = load({"training.optimizer=" + optimizer, "training.per_device_train_batch_size=1"});
    if (!config.ok()) continue;
    PredictionRequest one = request;
    one.num_gpus = 1;
    auto plan = make_plan(config->settings, one);
    if (!plan.ok()) continue;
    out.push_back({{"name", state},
                   {"states", plan->states.states + plan->states.host_states},
                   {"master", plan->states.master + plan->states.host_master}});
  }
  return out;
}

}  // namespace

Result<Json> what_if(const std::string& file, const LoadWith& load, const PredictionRequest& request,
                     const Prediction& now) {
  ASSIGN_OR_RETURN(auto config, load({}));
  const Settings& settings = config.settings;
  ASSIGN_OR_RETURN(const auto task, open_task(settings));
  const SizeKey length = task.task->text().length_key;
  auto checkpointed = load({"model.gradient_checkpointing=true"});
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
  out["lines"] = plan_lines(now);
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
  out["states"] = states_json(load, request, settings);
  out["points"] = points_json(load, request, now, length);
  return out;
}

}  // namespace octavo_train
