// SPDX-License-Identifier: MIT
#include "apps/octavo/plan.h"

#include "apps/octavo/common/cli.h"
#include "apps/octavo/config_file.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace octavo::cli {

void add_plan(CLI::App& app, const std::function<void(const PlanCommand&)>& action) {
  CLI::App* plan = app.add_subcommand(
      "plan", "Predict what a run needs before its first step: memory, time, and whether it fits");
  auto request = std::make_shared<PlanCommand>();
  const auto settle_file = add_config_file(*plan, request->file, request->overrides);
  plan->add_option("--gpu", request->gpu,
                   "GPU by name (h100, rtx4090), by memory (24GB), or this: the one of this machine")
      ->capture_default_str();
  plan->add_option("--num-gpus", request->num_gpus, "Number of GPUs; training.num_gpus or 1 if not given")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}));
  plan->add_option("--gpus-per-host", request->gpus_per_host,
                   "GPUs of a host; those of other hosts are reached over the network")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}))
      ->capture_default_str();
  plan->add_option("--network", request->network, "Bandwidth of each GPU to other hosts, in GB/s each way")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  plan->add_option("--solve", request->solve,
                   "Find the largest batch, length or model that fits, or the fewest GPUs")
      ->check(CLI::IsMember({"batch", "length", "model", "gpus"}));
  plan->add_flag("--advise", request->advise, "List settings that save memory, and what each costs in time");
  plan->add_option("--html", request->html, "Write a page with bars and what-if controls to this file")
      ->type_name("FILE");
  plan->add_flag(
          "--measure", request->measure,
          "Run a few small steps on this machine's GPU instead, as is done where a model cannot be planned")
      ->excludes("--solve")
      ->excludes("--advise")
      ->excludes("--html");
  plan->add_flag("--json", request->json, "Print JSON on stdout, nothing else");
  plan->footer(R"(For example:
  octavo plan run.yaml --gpu 24GB              does it fit a card of 24 GB?
  octavo plan run.yaml --gpu h100 --num-gpus 8
  octavo plan run.yaml --gpu 24GB --solve batch    the largest batch that does
  octavo plan run.yaml --gpu 16GB --advise         what would make it fit)");
  plan->callback([=] {
    settle_file();
    if (request->file.empty()) throw CLI::RequiredError("file");
    action(*request);
  });
}

}  // namespace octavo::cli
