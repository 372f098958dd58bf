// SPDX-License-Identifier: MIT
#include "trainer_plan.h"

#include "cli.h"
#include "plan/plan.h"
#include "train/config/config.h"

#include <nlohmann/json.hpp>

#include <iostream>

namespace octavo::cli {

void run_plan(const PlanCommand& request) {
  const train::Config config = take(train::load(request.file, request.overrides));
  train::PlanRequest wanted;
  wanted.gpu = take(plan::find_gpu(request.gpu), "--gpu");
  wanted.num_gpus = request.num_gpus;
  const train::Plan found = take(train::make_plan(config, wanted));
  if (request.json) {
    std::cout << train::plan_json(found).dump(2) << '\n';
    return;
  }
  for (const std::string& line : train::plan_lines(found)) std::cout << line << '\n';
}

}  // namespace octavo::cli
