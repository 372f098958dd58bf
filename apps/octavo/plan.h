// The command line of `octavo plan`: read by `octavo`, which checks it and becomes octavo-trainer, and read
// again there.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 chose it
class App;
}

namespace octavo::cli {

struct PlanCommand {
  std::string file;
  std::vector<std::string> overrides;
  std::string gpu = "this";
  std::int64_t num_gpus = 0, gpus_per_host = 8;  // 0: as the config has it
  double network = 50;                           // GB a second of a GPU, each way, to other hosts
  std::string solve;                             // batch, length, model, gpus; empty: nothing
  bool advise = false;
  std::string html;  // a page's path
  bool json = false;
  bool measure = false;  // steps with two small batches here, instead of a plan
};

void add_plan(CLI::App& app, const std::function<void(const PlanCommand&)>& action);
// Its words, for octavo-trainer.
std::vector<std::string> arguments_of(const PlanCommand& request);

}  // namespace octavo::cli
