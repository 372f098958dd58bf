// SPDX-License-Identifier: MIT
#include "train/predict/prediction.h"

#include "train/base/numbers.h"
#include "train/predict/host.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace octavo_train {
namespace {

using octavo::plan::Bound;
using octavo::plan::Owner;

std::vector<std::string> memory_lines(const Prediction& p) {
  const auto row = [&](const std::string& name, std::int64_t bytes) {
    const double percent = 100.0 * static_cast<double>(bytes) / static_cast<double>(p.total());
    return fmt::format("  {:<18}{:>10}{:>7}%", name, bytes_text(bytes), fixed(percent, 1));
  };
  std::vector<std::string> out = {
      fmt::format("{} parameters{}; a pass has {}", p.parameters,
                  p.trained == p.parameters ? "" : fmt::format(", of which {} are trained", p.trained),
                  p.batch),
      fmt::format("memory at the peak of a step, of {}{}:",
                  p.num_gpus > 1 ? fmt::format("each of {} ", p.num_gpus) : "", p.gpu.name)};
  for (const auto& [name, bytes] : memory_rows(p))
    if (bytes != 0) out.push_back(row(name, bytes));
  out.push_back(row("in all", p.total()));
  if (!p.measured_rows.empty())
    out.push_back(fmt::format(
        "  measured on {} with {} rows{}; evaluations are not included", p.measured_on,
        fmt::join(p.measured_rows, " and "),
        p.measured_rows.back() == p.rows ? "" : fmt::format("; {} are on the line through them", p.rows)));
  out.push_back(fmt::format("  {} allocated by torch at the peak, {} reserved", bytes_text(p.peak),
                            bytes_text(p.memory.reserved + p.evaluation)));
  if (p.peak > p.memory.allocated)
    out.push_back(fmt::format(
        "  the peak is an evaluation's, which has {} rows in a batch (per_device_eval_batch_size); "
        "a step's is {}",
        p.evaluation_rows, bytes_text(p.memory.allocated)));
  const StepOptimizer::Bytes& s = p.states;
  if (s.host_states + s.host_master > 0)
    out.push_back(fmt::format(
        "  in host memory: {} of optimizer states and master bits{}",
        bytes_text(s.host_states + s.host_master),
        s.host_copies > 0 ? fmt::format(", {} of copies of weights and gradients", bytes_text(s.host_copies))
                          : ""));
  const std::int64_t left = p.gpu.memory - p.total();
  out.push_back(p.fits()
                    ? fmt::format("it fits: {} of {} are left", bytes_text(left), bytes_text(p.gpu.memory))
                    : fmt::format("it does not fit: {} more than the {} that there are", bytes_text(-left),
                                  bytes_text(p.gpu.memory)));
  return out;
}

std::int64_t predicted_peak(const Prediction& p, const Measured& measured) {
  return measured.evaluated ? p.peak : p.memory.allocated;
}

}  // namespace

double Prediction::slow_host_seconds() const { return static_cast<double>(launches) * kSlowLaunch; }

std::string Prediction::bound() const {
  if (!measured_rows.empty()) return "what was measured";
  if (exposed_seconds > 0.3 * step_seconds) return "communication between GPUs";
  if (compute.host_seconds > compute.gpu_seconds) return "the host, which launches kernels";
  const auto most = std::ranges::max_element(compute.by_bound) - compute.by_bound.begin();
  switch (static_cast<Bound>(most)) {
    case Bound::arithmetic:
      return "matrix products";
    case Bound::memory:
      return "memory bandwidth";
    case Bound::launch:
      break;
  }
  return "gaps between kernels";
}

std::vector<std::pair<std::string, std::int64_t>> memory_rows(const Prediction& p) {
  return {{"weights", p.of(Owner::weights)},
          {"gradients", p.of(Owner::gradients)},
          {"optimizer states", p.of(Owner::states)},
          {"master bits", p.of(Owner::master)},
          {"activations", p.of(Owner::activations) + p.of(Owner::batch)},
          {"workspace", p.of(Owner::workspace)},
          {"communication", p.of(Owner::communication)},
          {"rounding", p.memory.rounding},
          {"fragmentation", p.fragmentation()},
          {"evaluation", p.evaluation},
          {"CUDA context", p.gpu.context}};
}

std::vector<std::string> prediction_lines(const Prediction& p) {
  constexpr double kAlike = 0.7;  // from this ratio of host to GPU time on, a step also waits for the host
  std::vector<std::string> out = memory_lines(p);
  out.push_back(fmt::format("time: {} a step, {} {}/s; bound by {}", brief_time(p.step_seconds),
                            short_count(p.units_per_second), p.unit, p.bound()));
  if (!p.slow_type.empty()) out.push_back("  " + p.slow_type);
  const std::string launches = grouped(static_cast<double>(p.launches)),
                    host = brief_time(p.compute.host_seconds);
  if (p.launch_seconds > 0 && p.compute.host_seconds > kAlike * p.compute.gpu_seconds)
    out.push_back(
        fmt::format("  the GPU takes {} of it, and the host {} to launch {} kernels: {} us each, by what was "
                    "measured here",
                    brief_time(p.compute.gpu_seconds), host, launches, fixed(1e6 * p.launch_seconds, 0)));
  else if (p.launch_seconds == 0 && p.slow_host_seconds() > p.compute.gpu_seconds)
    out.push_back(
        fmt::format("  the host may be the limit: to launch {} kernels took a fast one {}, and a slow one {}",
                    launches, host, brief_time(p.slow_host_seconds())));
  if (p.offload_seconds > 0)
    out.push_back(
        fmt::format("  {} of it for states in host memory (a rough figure)", brief_time(p.offload_seconds)));
  if (p.exposed_seconds > 0)
    out.push_back(fmt::format("  {} of communication are not hidden behind the backward pass",
                              brief_time(p.exposed_seconds)));
  return out;
}

bool is_as_large(const Prediction& p, double padded_length) {
  return padded_length >= 0.95 * p.padded_length;
}

std::string compare_with_measured(const Prediction& p, const Measured& measured) {
  const auto off = [](double predicted, double found) {
    const double percent = 100 * (predicted / found - 1);
    return (std::signbit(percent) ? " (" : " (+") + decimal_text(percent, std::chars_format::fixed, 1) + "%)";
  };
  const std::int64_t peak = predicted_peak(p, measured);
  const bool with_time = !p.cpu && measured.usual_batch;
  std::string out;
  if (measured.largest_batch) {
    out = "plan: " + bytes_text(peak);
    if (measured.peak > 0)
      out += ", measured " + bytes_text(measured.peak) +
             off(static_cast<double>(peak), static_cast<double>(measured.peak));
  }
  if (!with_time) return out;
  out += (out.empty() ? "plan: " : "; ") + brief_time(p.step_seconds) + " a step";
  if (measured.step_seconds > 0)
    out += ", measured " + brief_time(measured.step_seconds) +
           (measured.settled ? off(p.step_seconds, measured.step_seconds)
                             : " in the first steps, which take longer");
  constexpr double kWorthSaying = 0.05;
  // A wait for data costs nothing while the GPU computes.
  const double longer = measured.step_seconds - p.step_seconds;
  if (const double waited = measured.data_waited.value_or(0);
      waited > kWorthSaying * measured.step_seconds && longer > waited / 2)
    out += "; it waited " + brief_time(waited) + " of that for data: raise dataloader_num_workers";
  return out;
}

nlohmann::ordered_json comparison_json(const Prediction& p, const Measured& measured) {
  nlohmann::ordered_json out = {{"peak", predicted_peak(p, measured)},
                                {"measured_peak", measured.peak},
                                {"reserved", p.memory.reserved + (measured.evaluated ? p.evaluation : 0)},
                                {"largest_batch", measured.largest_batch}};
  if (p.cpu) return out;
  out["step_seconds"] = p.step_seconds;
  out["measured_step_seconds"] = measured.step_seconds;
  out["settled"] = measured.settled;
  out["usual_batch"] = measured.usual_batch;
  if (measured.data_waited) out["data_waited"] = *measured.data_waited;
  return out;
}

nlohmann::ordered_json prediction_json(const Prediction& p) {
  nlohmann::ordered_json out;
  out["gpu"] = {{"key", p.gpu.key}, {"name", p.gpu.name}, {"memory", p.gpu.memory}};
  out["num_gpus"] = p.num_gpus;
  out["parameters"] = p.parameters;
  out["trained"] = p.trained;
  if (!p.measured_rows.empty()) out["measured"] = {{"rows", p.measured_rows}, {"on", p.measured_on}};
  out["batch"] = {{"text", p.batch}, {"rows", p.rows}, {"passes", p.passes}};
  nlohmann::ordered_json owners;
  for (const auto& [name, bytes] : memory_rows(p)) owners[name] = bytes;
  out["memory"] = {{"owners", owners},
                   {"allocated", p.peak},
                   {"reserved", p.memory.reserved + p.evaluation},
                   {"step", {{"allocated", p.memory.allocated}, {"reserved", p.memory.reserved}}},
                   {"evaluation", {{"rows", p.evaluation_rows}, {"reserved", p.evaluation}}},
                   {"total", p.total()},
                   {"host", p.states.host_states + p.states.host_master + p.states.host_copies},
                   {"fits", p.fits()}};
  out["time"] = {{"step_seconds", p.step_seconds},
                 {"gpu_seconds", p.compute.gpu_seconds},
                 {"host_seconds", p.compute.host_seconds},
                 {"slow_host_seconds", p.slow_host_seconds()},
                 {"launch_seconds", p.launch_seconds},
                 {"update_seconds", p.update_seconds},
                 {"exposed_seconds", p.exposed_seconds},
                 {"offload_seconds", p.offload_seconds},
                 {p.unit + "_per_second", p.units_per_second},
                 {"bound", p.bound()}};
  for (const auto& [name, seconds] : p.kernels) out["time"]["kernels"][name] = seconds;
  if (!p.slow_type.empty()) out["time"]["warning"] = p.slow_type;
  return out;
}

}  // namespace octavo_train
