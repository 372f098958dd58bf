// SPDX-License-Identifier: MIT

#include "apps/octavo/terminal_console.h"
#include "apps/octavo/trainer.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "train/base/numbers.h"
#include "train/base/terminal_text.h"
#include "train/config/config.h"
#include "train/predict/advise.h"
#include "train/predict/host.h"
#include "train/predict/what_if.h"
#include "train/report/page.h"
#include "train/run/dry_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>

namespace octavo::cli {
namespace {

octavo_train::Solve solve_of(const std::string& name) {
  if (name == "length") return octavo_train::Solve::length;
  if (name == "model") return octavo_train::Solve::model;
  return name == "gpus" ? octavo_train::Solve::gpus : octavo_train::Solve::batch;
}

void show(const std::vector<octavo_train::Advice>& advice, const octavo_train::Prediction& plan) {
  const bool enough = std::ranges::any_of(advice, &octavo_train::Advice::fits);
  if (plan.fits())
    std::cout << "nothing is needed: it fits" << (advice.empty() ? "" : "; what settings would save besides:")
              << '\n';
  else if (!enough)
    std::cout << wrapped(
                     "no combination of settings that save memory makes it fit: use a smaller model (--solve "
                     "model) or a larger GPU",
                     output_width())
              << '\n';
  if (advice.empty()) return;
  Table table(
      {{"saves", Table::Align::right}, {"time", Table::Align::right}, {"fits"}, {"settings, and why"}});
  for (const octavo_train::Advice& each : advice) {
    table.add({octavo_train::bytes_text(each.saves), each.time_text(), each.fits ? "yes" : "no",
               fmt::format("{}", fmt::join(each.words, " "))});
    table.add({"", "", "", "  " + each.why});
  }
  std::cout << table.text(output_width());
}

nlohmann::ordered_json json_of(const std::vector<octavo_train::Advice>& advice) {
  auto out = nlohmann::ordered_json::array();
  for (const octavo_train::Advice& each : advice)
    out.push_back({{"settings", each.words},
                   {"saves", each.saves},
                   {"slower", each.slower},
                   {"fits", each.fits},
                   {"why", each.why}});
  return out;
}

// Returns the GPU that the run would use if the command line names none.
std::string gpu_of(const PlanCommand& request, const octavo_train::Settings& settings) {
  const auto& index = settings.training.device.index;
  return request.gpu == "this" && index ? "this:" + std::to_string(*index) : request.gpu;
}

// Measures the host's time to launch a kernel, if the prediction is for a GPU of this machine. Returns 0 if
// it is not measured.
double launch_seconds(const plan::Gpu& gpu) {
  if (gpu.device < 0) return 0;
  const auto found = octavo_train::measure_launch(
      ::torch::Device(::torch::kCUDA, static_cast<::torch::DeviceIndex>(gpu.device)));
  if (!found.ok())
    std::cerr << octavo_train::terminal_text(found.status().message()) << "; a fast host is assumed\n";
  return found.ok() ? *found : 0;
}

// Solving, advice and pages compare traces, so a request for one of them never measures instead.
octavo_train::PredictionRequest::Method method_of(const PlanCommand& request) {
  using Method = octavo_train::PredictionRequest::Method;
  if (request.measure) return Method::steps;
  const bool more = !request.solve.empty() || request.advise || !request.html.empty();
  return more ? Method::trace : Method::trace_or_steps;
}

octavo_train::PredictionRequest request_of(const PlanCommand& request,
                                           const octavo_train::Settings& settings) {
  octavo_train::PredictionRequest out;
  out.gpu = take(plan::find_gpu(gpu_of(request, settings)), "--gpu");
  out.num_gpus = request.num_gpus > 0 ? request.num_gpus : settings.training.num_gpus.value_or(1);
  out.gpus_per_host = request.gpus_per_host;
  out.network = 1e9 * request.network;
  if (!request.measure) out.launch_seconds = launch_seconds(out.gpu);
  out.method = method_of(request);
  out.measure = [](const octavo_train::Config& config) {
    TerminalConsole console;
    return octavo_train::measure_steps(config, console);
  };
  out.on_measuring = [](const std::string& reason) {
    std::cerr << octavo_train::terminal_text(reason)
              << "\nmeasuring instead: a few steps with small batches\n";
  };
  if (request.measure && out.gpu.device < 0) {
    throw Failure(kExitUsage, fmt::format("--measure runs steps on this machine's GPU, and --gpu is {}; use "
                                          "--gpu this, or omit --measure",
                                          request.gpu));
  }
  return out;
}

}  // namespace

void run_plan(const PlanCommand& request) {
  const octavo_train::LoadWith load = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = request.overrides;
    all.insert(all.end(), words.begin(), words.end());
    return octavo_train::load(request.file, all);
  };
  const octavo_train::Config config = take(load({}));
  const octavo_train::PredictionRequest wanted = request_of(request, config.settings);
  const octavo_train::Prediction found = take(octavo_train::predict(load, wanted));
  nlohmann::ordered_json json = octavo_train::prediction_json(found);
  if (!request.json)
    for (const std::string& line : octavo_train::prediction_lines(found)) std::cout << line << '\n';
  if (!request.solve.empty()) {
    const octavo_train::Solution best = take(octavo_train::solve(solve_of(request.solve), load, wanted));
    json["solution"] = {{"text", best.text}, {"settings", best.words}, {"num_gpus", best.num_gpus}};
    if (!request.json) std::cout << "solved for " << request.solve << ": " << best.text << '\n';
  }
  if (request.advise) {
    const auto advice = take(octavo_train::advise(load, wanted, found));
    json["advice"] = json_of(advice);
    if (!request.json) show(advice, found);
  }
  if (!request.html.empty()) {
    const auto data = take(
        octavo_train::what_if(std::filesystem::path(request.file).filename().string(), load, wanted, found));
    std::ofstream page(request.html, std::ios::binary);
    page << octavo_train::plan_page(data);
    if (!page.flush()) throw Failure(kExitFailure, request.html + ": cannot be written");
    if (!request.json) std::cout << "page: " << request.html << '\n';
  }
  if (request.json) std::cout << json.dump(2) << '\n';
}

}  // namespace octavo::cli
