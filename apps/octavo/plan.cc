// SPDX-License-Identifier: MIT
#include "plan.h"

#include "cli.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace octavo::cli {

void add_plan(CLI::App& app, const std::function<void(const PlanCommand&)>& action) {
  CLI::App* plan =
      app.add_subcommand("plan", "Say what a run needs before its first step: memory, time, whether it fits");
  auto request = std::make_shared<PlanCommand>();
  plan->add_option("file", request->file, "The run's config: docs/config.md has every key")->required();
  plan->add_option("overrides", request->overrides, "key=value: instead of what the file says")
      ->type_name("key=value ...");
  plan->add_option("--gpu", request->gpu,
                   "A GPU by name (h100, rtx4090), by memory (24GB), or this: the one that is here")
      ->capture_default_str();
  plan->add_option("--num-gpus", request->num_gpus, "As many of them (default: training.num_gpus, or 1)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}));
  plan->add_option("--gpus-per-host", request->gpus_per_host, "Beyond these, GPUs talk over the network")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}))
      ->capture_default_str();
  plan->add_option("--network", request->network, "GB/s of each GPU, each way, to other hosts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  plan->add_option("--solve", request->solve,
                   "The largest batch, length or model that fits, or the fewest gpus")
      ->check(CLI::IsMember({"batch", "length", "model", "gpus"}));
  plan->add_flag("--advise", request->advise, "Settings that save memory, with what each one costs in time");
  plan->add_option("--html", request->html, "Write a page with bars and what-if controls there")
      ->type_name("FILE");
  plan->add_flag(
          "--measure", request->measure,
          "Run a few small steps on this machine's GPU instead, as is done where a model cannot be planned")
      ->excludes("--solve")
      ->excludes("--advise")
      ->excludes("--html");
  plan->add_flag("--json", request->json, "For programs");
  plan->footer(R"(For example:
  octavo plan run.yaml --gpu 24GB              does it fit a card of 24 GB?
  octavo plan run.yaml --gpu h100 --num-gpus 8
  octavo plan run.yaml --gpu 24GB --solve batch    the largest batch that does
  octavo plan run.yaml --gpu 16GB --advise         what would make it fit)");
  plan->callback([=] { action(*request); });
}

std::vector<std::string> arguments_of(const PlanCommand& request) {
  std::vector<std::string> out = {"plan", request.file};
  out.insert(out.end(), request.overrides.begin(), request.overrides.end());
  out.push_back("--gpu=" + request.gpu);
  if (request.num_gpus > 0) out.push_back("--num-gpus=" + std::to_string(request.num_gpus));
  out.push_back("--gpus-per-host=" + std::to_string(request.gpus_per_host));
  out.push_back("--network=" + exact(request.network));
  if (!request.solve.empty()) out.push_back("--solve=" + request.solve);
  if (request.advise) out.emplace_back("--advise");
  if (!request.html.empty()) out.push_back("--html=" + request.html);
  if (request.measure) out.emplace_back("--measure");
  if (request.json) out.emplace_back("--json");
  return out;
}

}  // namespace octavo::cli
