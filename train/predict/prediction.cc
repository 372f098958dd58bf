// SPDX-License-Identifier: MIT
#include "train/predict/prediction.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/config/micro_batches.h"
#include "train/config/settings.h"
#include "train/optim/shard_layout.h"
#include "train/predict/host.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>

namespace octavo_train {
namespace {

using octavo::plan::Bound;
using octavo::plan::Owner;

octavo::plan::Links links_of(const PredictionRequest& request) {
  octavo::plan::Links out;
  out.ranks = request.num_gpus;
  out.per_host = std::min(request.gpus_per_host, request.num_gpus);
  out.within = request.gpu.peer_bandwidth;
  out.between = request.network;
  return out;
}

std::vector<octavo::plan::Kernel> kernels_of(const StepTrace& trace, std::size_t from, std::size_t to) {
  std::vector<octavo::plan::Kernel> out;
  for (std::size_t i = from; i < to; ++i) out.push_back(trace.kernels[i].kernel);
  return out;
}

// Gradients become ready evenly over the backward pass of the last micro-batch, bucket by bucket.
double exposed(const PredictionRequest& request, const StepTrace& trace, double backward) {
  if (request.num_gpus == 1) return 0;
  std::vector<octavo::plan::Bucket> buckets;
  const std::int64_t count =
      std::max<std::int64_t>((trace.gradient_bytes + kBucketBytes - 1) / kBucketBytes, 1);
  for (std::int64_t i = 1; i <= count; ++i)
    buckets.push_back({backward * static_cast<double>(i) / static_cast<double>(count),
                       std::min(kBucketBytes, trace.gradient_bytes - (i - 1) * kBucketBytes)});
  return octavo::plan::exposed_seconds(links_of(request), buckets, backward);
}

// Returns the seconds of an offloaded update that the forward and backward passes do not hide. Streamed
// states cross the link in both directions simultaneously. If the CPU does the update, gradients are copied
// to the host, weights are copied back, and the CPU's cores compute. The shares were measured with Parakeet
// 0.6B on an H200 with 16 cores; for other runs they are rough.
double offloaded(const PredictionRequest& request, const StepTrace& trace) {
  constexpr double kShown = 0.55, kShownByCpu = 0.5, kCpuPerParameter = 1.75e-10;
  const auto states = static_cast<double>(trace.states.host_states + trace.states.host_master);
  if (states == 0 || request.gpu.host_bandwidth <= 0) return 0;
  if (!trace.on_cpu) return kShown * states / request.gpu.host_bandwidth;
  return kShownByCpu * (2 * static_cast<double>(trace.gradient_bytes) / request.gpu.host_bandwidth +
                        kCpuPerParameter * static_cast<double>(trace.trained));
}

std::vector<std::pair<std::string, double>> by_name(const PredictionRequest& request,
                                                    const StepTrace& trace) {
  std::map<std::string, double> seconds;
  for (const FakeKernel& each : trace.kernels)
    seconds[each.name] +=
        static_cast<double>(each.kernel.times) * octavo::plan::time(request.gpu, each.kernel).seconds;
  std::vector<std::pair<std::string, double>> out(seconds.begin(), seconds.end());
  std::ranges::sort(out, std::ranges::greater(), &std::pair<std::string, double>::second);
  return out;
}

Status add_time(const PredictionRequest& request, const StepTrace& trace, Prediction& out) {
  out.kernels = by_name(request, trace);
  out.launch_seconds = request.launch_seconds;
  const double launch = request.launch_seconds > 0 ? request.launch_seconds : kFastLaunch;
  const auto seconds = [&](std::size_t from, std::size_t to) {
    return octavo::plan::time(request.gpu, kernels_of(trace, from, to), launch);
  };
  out.compute = seconds(0, trace.kernels.size());
  out.update_seconds = seconds(trace.update, trace.kernels.size()).seconds;
  std::vector<octavo::plan::Kernel> last_backward = kernels_of(trace, trace.backward, trace.update);
  for (octavo::plan::Kernel& each : last_backward) each.times = 1;
  const double backward = octavo::plan::time(request.gpu, last_backward, launch).seconds;
  out.exposed_seconds = exposed(request, trace, backward);
  out.offload_seconds = offloaded(request, trace);
  out.step_seconds = out.compute.seconds + out.exposed_seconds + out.offload_seconds;
  out.units_per_second = static_cast<double>(trace.units * request.num_gpus) / out.step_seconds;
  for (const FakeKernel& each : trace.kernels) out.launches += each.kernel.times * each.kernel.launches;
  return {};
}

}  // namespace

Result<Prediction> make_plan(const Settings& given, const PredictionRequest& request) {
  const std::unique_ptr<Task> task = make_task(given.task);
  if (auto opened = task->open({given, "", nullptr}); !opened.ok()) return opened.status();
  return make_plan_of_open(given, *task, request);
}

Result<Prediction> make_plan_of_open(const Settings& given, Task& task, const PredictionRequest& request) {
  ASSIGN_OR_RETURN(const auto passes, accumulation_for(given.training, request.num_gpus));
  Settings settings = given;
  settings.training.gradient_accumulation_steps = passes;
  if (request.num_gpus > 1) settings.training.offload_gradients = false;  // ranks sum gradients on devices
  return make_plan(settings, task, request);
}

Result<Prediction> make_plan(const Settings& settings, Task& task, const PredictionRequest& request) {
  const auto ranks = static_cast<int>(request.num_gpus);
  ASSIGN_OR_RETURN(auto trace,
                   trace_step({settings, task, settings.training.per_device_train_batch_size, ranks,
                               request.gpu, request.cpu ? TraceDevice::Of::cpu : TraceDevice::Of::gpu}));
  ASSIGN_OR_RETURN(auto memory, octavo::plan::simulate(std::span(trace.events).first(trace.evaluation)));
  ASSIGN_OR_RETURN(auto evaluated, octavo::plan::simulate(trace.events));
  Prediction out;
  out.gpu = request.gpu;
  out.num_gpus = request.num_gpus;
  out.memory = memory;
  out.evaluation = evaluated.reserved - memory.reserved;
  out.peak = evaluated.allocated;
  out.evaluation_rows = trace.evaluation_rows;
  out.states = trace.states;
  out.parameters = trace.parameters;
  out.gradient_sums = trace.gradient_sums;
  out.trained = trace.trained;
  out.rows = trace.rows;
  out.padded_length = trace.padded_length;
  out.passes = trace.passes;
  out.batch = task.batch_text(settings.training.per_device_train_batch_size);
  out.unit = task.unit().name;
  const auto owned = [&](Owner owner) -> std::int64_t& {
    return out.memory.owners[static_cast<std::size_t>(owner)];
  };
  owned(Owner::gradients) -= trace.communication;
  owned(Owner::communication) += trace.communication;
  for (const FakeKernel& each : trace.kernels) {
    const octavo::plan::Kernel& k = each.kernel;
    out.matmul_flops += 2.0 * static_cast<double>(k.batch) * static_cast<double>(k.rows) *
                        static_cast<double>(k.columns) * static_cast<double>(k.inner);
  }
  out.cpu = request.cpu;
  if (request.cpu) {
    // On the CPU torch allocates exactly the requested bytes.
    out.memory.allocated = out.memory.reserved = out.memory.allocated - out.memory.rounding;
    out.peak = evaluated.allocated - evaluated.rounding;
    out.memory.rounding = out.evaluation = 0;
    return out;
  }
  out.slow_type = slow_type_text(settings.training.compute_dtype, request.gpu.name, request.gpu.compute_major,
                                 request.gpu.compute_minor);
  RETURN_IF_ERROR(add_time(request, trace, out));
  return out;
}

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

std::vector<std::pair<std::string, std::int64_t>> memory_rows(const Prediction& plan) {
  const auto of = [&](Owner owner) { return plan.memory.owners[static_cast<std::size_t>(owner)]; };
  return {{"weights", of(Owner::weights)},
          {"gradients", of(Owner::gradients)},
          {"optimizer states", of(Owner::states)},
          {"master bits", of(Owner::master)},
          {"activations", of(Owner::activations) + of(Owner::batch)},
          {"workspace", of(Owner::workspace)},
          {"communication", of(Owner::communication)},
          {"rounding", plan.memory.rounding},
          {"fragmentation", plan.fragmentation()},
          {"evaluation", plan.evaluation},
          {"CUDA context", plan.gpu.context}};
}

std::vector<std::string> plan_lines(const Prediction& plan) {
  constexpr double kAlike = 0.7;  // from this ratio of host to GPU time on, a step also waits for the host
  const auto row = [&](const std::string& name, std::int64_t bytes) {
    std::array<char, 96> line{};
    std::snprintf(line.data(), line.size(), "  %-18s%10s%7s%%", name.c_str(), bytes_text(bytes).c_str(),
                  fixed(100.0 * static_cast<double>(bytes) / static_cast<double>(plan.total()), 1).c_str());
    return std::string(line.data());
  };
  std::vector<std::string> out = {
      std::to_string(plan.parameters) + " parameters" +
          (plan.trained == plan.parameters ? ""
                                           : ", of which " + std::to_string(plan.trained) + " are trained") +
          "; a pass has " + plan.batch,
      "memory at the peak of a step, of " +
          std::string(plan.num_gpus > 1 ? "each of " + std::to_string(plan.num_gpus) + " " : "") +
          plan.gpu.name + ":"};
  for (const auto& [name, bytes] : memory_rows(plan))
    if (bytes != 0) out.push_back(row(name, bytes));
  out.push_back(row("in all", plan.total()));
  if (!plan.measured_rows.empty()) {
    std::string rows;
    for (const std::int64_t each : plan.measured_rows)
      rows += (rows.empty() ? "" : " and ") + std::to_string(each);
    const bool whole = plan.measured_rows.back() == plan.rows;
    out.push_back("  measured on " + plan.measured_on + " with " + rows + " rows" +
                  (whole ? "" : "; " + std::to_string(plan.rows) + " are on the line through them") +
                  "; evaluations are left out");
  }
  out.push_back("  " + bytes_text(plan.peak) + " allocated by torch at the peak, " +
                bytes_text(plan.memory.reserved + plan.evaluation) + " reserved");
  if (plan.peak > plan.memory.allocated)
    out.push_back("  the peak is an evaluation's, which has " + std::to_string(plan.evaluation_rows) +
                  " rows in a pass (per_device_eval_batch_size); a step's is " +
                  bytes_text(plan.memory.allocated));
  if (const StepOptimizer::Bytes& s = plan.states; s.host_states + s.host_master > 0)
    out.push_back(
        "  in host memory: " + bytes_text(s.host_states + s.host_master) +
        " of optimizer states and master bits" +
        (s.host_copies > 0 ? ", " + bytes_text(s.host_copies) + " of copies of weights and gradients" : ""));
  const std::int64_t left = plan.gpu.memory - plan.total();
  out.push_back(plan.fits()
                    ? "it fits: " + bytes_text(left) + " of " + bytes_text(plan.gpu.memory) + " are left"
                    : "it does not fit: " + bytes_text(-left) + " more than the " +
                          bytes_text(plan.gpu.memory) + " that there are");
  out.push_back("time: " + brief_time(plan.step_seconds) + " a step, " + short_count(plan.units_per_second) +
                " " + plan.unit + "/s; bound by " + plan.bound());
  if (!plan.slow_type.empty()) out.push_back("  " + plan.slow_type);
  if (plan.launch_seconds > 0 && plan.compute.host_seconds > kAlike * plan.compute.gpu_seconds)
    out.push_back("  the GPU takes " + brief_time(plan.compute.gpu_seconds) + " of it, and the host " +
                  brief_time(plan.compute.host_seconds) + " to launch " +
                  grouped(static_cast<double>(plan.launches)) +
                  " kernels: " + fixed(1e6 * plan.launch_seconds, 0) + " us each, by what was measured here");
  else if (const double slow = plan.slow_host_seconds();
           plan.launch_seconds == 0 && slow > plan.compute.gpu_seconds)
    out.push_back("  the host may be the limit: to launch " + grouped(static_cast<double>(plan.launches)) +
                  " kernels took a fast one " + brief_time(plan.compute.host_seconds) + ", and a slow one " +
                  brief_time(slow));
  if (plan.offload_seconds > 0)
    out.push_back("  " + brief_time(plan.offload_seconds) +
                  " of it for states in host memory (a rough figure)");
  if (plan.exposed_seconds > 0)
    out.push_back("  " + brief_time(plan.exposed_seconds) +
                  " of communication are not hidden behind the backward pass");
  return out;
}

namespace {
constexpr double kWorthSaying = 0.05;

std::int64_t planned_peak(const Prediction& plan, const Measured& measured) {
  return measured.evaluated ? plan.peak : plan.memory.allocated;
}
}  // namespace

bool is_as_large(const Prediction& plan, double padded_length) {
  return padded_length >= 0.95 * plan.padded_length;
}

std::string compare_with_measured(const Prediction& plan, const Measured& measured) {
  const auto off = [](double planned, double found) {
    const double percent = 100 * (planned / found - 1);
    return (std::signbit(percent) ? " (" : " (+") + decimal_text(percent, std::chars_format::fixed, 1) + "%)";
  };
  const std::int64_t peak = planned_peak(plan, measured);
  const bool with_time = !plan.cpu && measured.usual_batch;
  std::string out;
  if (measured.largest_batch) {
    out = "plan: " + bytes_text(peak);
    if (measured.peak > 0)
      out += ", measured " + bytes_text(measured.peak) +
             off(static_cast<double>(peak), static_cast<double>(measured.peak));
  }
  if (!with_time) return out;
  out += (out.empty() ? "plan: " : "; ") + brief_time(plan.step_seconds) + " a step";
  if (measured.step_seconds > 0)
    out += ", measured " + brief_time(measured.step_seconds) +
           (measured.settled ? off(plan.step_seconds, measured.step_seconds)
                             : " in the first steps, which take longer");
  // A wait for data costs nothing while the GPU computes.
  const double longer = measured.step_seconds - plan.step_seconds;
  if (const double waited = measured.data_waited.value_or(0);
      waited > kWorthSaying * measured.step_seconds && longer > waited / 2)
    out += "; it waited " + brief_time(waited) + " of that for data: raise dataloader_num_workers";
  return out;
}

nlohmann::ordered_json comparison_json(const Prediction& plan, const Measured& measured) {
  nlohmann::ordered_json out = {
      {"peak", planned_peak(plan, measured)},
      {"measured_peak", measured.peak},
      {"reserved", plan.memory.reserved + (measured.evaluated ? plan.evaluation : 0)},
      {"largest_batch", measured.largest_batch}};
  if (plan.cpu) return out;
  out["step_seconds"] = plan.step_seconds;
  out["measured_step_seconds"] = measured.step_seconds;
  out["settled"] = measured.settled;
  out["usual_batch"] = measured.usual_batch;
  if (measured.data_waited) out["data_waited"] = *measured.data_waited;
  return out;
}

nlohmann::ordered_json plan_json(const Prediction& plan) {
  nlohmann::ordered_json out;
  out["gpu"] = {{"key", plan.gpu.key}, {"name", plan.gpu.name}, {"memory", plan.gpu.memory}};
  out["num_gpus"] = plan.num_gpus;
  out["parameters"] = plan.parameters;
  out["trained"] = plan.trained;
  if (!plan.measured_rows.empty()) out["measured"] = {{"rows", plan.measured_rows}, {"on", plan.measured_on}};
  out["batch"] = {{"text", plan.batch}, {"rows", plan.rows}, {"passes", plan.passes}};
  nlohmann::ordered_json owners;
  for (const auto& [name, bytes] : memory_rows(plan)) owners[name] = bytes;
  out["memory"] = {{"owners", owners},
                   {"allocated", plan.peak},
                   {"reserved", plan.memory.reserved + plan.evaluation},
                   {"step", {{"allocated", plan.memory.allocated}, {"reserved", plan.memory.reserved}}},
                   {"evaluation", {{"rows", plan.evaluation_rows}, {"reserved", plan.evaluation}}},
                   {"total", plan.total()},
                   {"host", plan.states.host_states + plan.states.host_master + plan.states.host_copies},
                   {"fits", plan.fits()}};
  out["time"] = {{"step_seconds", plan.step_seconds},
                 {"gpu_seconds", plan.compute.gpu_seconds},
                 {"host_seconds", plan.compute.host_seconds},
                 {"slow_host_seconds", plan.slow_host_seconds()},
                 {"launch_seconds", plan.launch_seconds},
                 {"update_seconds", plan.update_seconds},
                 {"exposed_seconds", plan.exposed_seconds},
                 {"offload_seconds", plan.offload_seconds},
                 {plan.unit + "_per_second", plan.units_per_second},
                 {"bound", plan.bound()}};
  for (const auto& [name, seconds] : plan.kernels) out["time"]["kernels"][name] = seconds;
  if (!plan.slow_type.empty()) out["time"]["warning"] = plan.slow_type;
  return out;
}

}  // namespace octavo_train
