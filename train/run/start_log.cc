// SPDX-License-Identifier: MIT
#include "train/run/start_log.h"

#include "train/config/environment.h"
#include "train/config/slow_types.h"
#include "train/device/device.h"
#include "train/strings/numbers.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace octavo::train {
namespace {

std::int64_t elements_of(const NamedTensors& tensors) {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.numel();
  return total;
}

const char* parallel_name(Parallel parallel) {
  return parallel == Parallel::zero1 ? "zero1" : parallel == Parallel::zero2 ? "zero2" : "ddp";
}

// Wherever they are.
std::int64_t all_states(const StepOptimizer::Bytes& bytes) { return bytes.states + bytes.host_states; }

StepOptimizer::Bytes rank_bytes(const Session& session) {
  const TrainingSettings& training = session.settings.training;
  if (session.shards == nullptr) return planned_bytes(session.plan, training, session.groups);
  const ParallelLayout& layout = session.shards->layout();
  return planned_bytes(session.plan, training, session.groups, layout, session.world->rank());
}

// "2 ranks (ddp), with 4 passes of 2 samples each in a step".
std::string ranks_text(const Session& session) {
  const TrainingSettings& training = session.settings.training;
  const int ranks = session.world->ranks();
  const std::int64_t passes = training.gradient_accumulation_steps;
  std::string out = std::to_string(ranks) + (ranks == 1 ? " rank (" : " ranks (") +
                    parallel_name(training.parallel) + "), with " + std::to_string(passes) +
                    (passes == 1 ? " pass" : " passes");
  if (session.task->batches() == nullptr)
    out += " of " + std::to_string(training.per_device_train_batch_size) + " samples";
  return out + " each in a step";
}

// Empty if the GPU has tensor cores for the type, or the device is the CPU.
std::string slow_type_on(const torch::Device& device, ComputeType type) {
  if (!device.is_cuda()) return {};
  const GpuReport report = list_gpus();
  const auto index = static_cast<std::size_t>(device.index());
  if (index >= report.gpus.size()) return {};
  const GpuInfo& gpu = report.gpus[index];
  return slow_type_text(type, gpu.name, gpu.compute_major, gpu.compute_minor);
}

}  // namespace

void introduce(Session& session, Console& console) {
  const Settings& settings = session.settings;
  const TrainingSettings& training = settings.training;
  const std::int64_t params = elements_of(session.parameters);
  const StepOptimizer::Bytes bytes = planned_bytes(session.plan, training, session.groups);
  const ParameterGroups fp32 = with_states(session.groups, StateFormat::fp32);
  const std::int64_t plain = all_states(planned_bytes(session.plan, training, fp32));
  const std::int64_t states_bytes = all_states(bytes), master_bytes = bytes.master + bytes.host_master;
  const char* dtype = training.compute_dtype == ComputeType::bfloat16  ? "bfloat16"
                      : training.compute_dtype == ComputeType::float16 ? "float16"
                                                                       : "float32";
  const std::string master = session.plan.bf16_weights ? master_name(weight_store(training)) : "none";
  const std::string& model = settings.model.name;
  console.note(
      model + ": " + short_count(params) + " parameters, " + bytes_text(bytes_of(session.parameters)) +
      " in " + (session.plan.bf16_weights ? "bfloat16" : "float32") +
      (master_bytes > 0 ? " + " + bytes_text(master_bytes) + " of master bits (" + master + "-bit master)"
                        : "") +
      ", computing in " + dtype + " on " + device_text(session.device));
  if (const auto choice = allocator_choice(); choice && session.device.is_cuda())
    console.note(allocator_line(*choice));
  if (const std::string slow = slow_type_on(session.device, training.compute_dtype); !slow.empty())
    console.note("warning: " + slow);
  if (!session.plan.warning.empty()) console.note("warning: " + session.plan.warning);
  if (!session.fp8_plan.warning.empty()) console.note("warning: " + session.fp8_plan.warning);
  if (session.fp8 != nullptr) console.note(fp8_text(training.fp8));
  std::string states =
      optimizer_text(session.plan.name) + (session.plan.native ? "" : " (plain LibTorch)") + ": " +
      fixed(static_cast<double>(states_bytes) / static_cast<double>(elements_of(session.groups.parameters)),
            2) +
      " B/param, " + bytes_text(states_bytes);
  if (states_bytes < plain) states += " instead of " + bytes_text(plain);
  const StepOptimizer::Bytes mine = rank_bytes(session);
  if (session.shards != nullptr) states += ", " + bytes_text(all_states(mine)) + " of it on this rank";
  console.note(states);
  const std::int64_t on_host = mine.host_states + mine.host_master;
  if (training.offload != Offload::none) {
    console.note(std::string("offload (") + offload_name(training.offload) + "): " + bytes_text(on_host) +
                 " of states and master bits are in host memory, " + bytes_text(mine.states + mine.master) +
                 " with the weights" + (training.offload_gradients ? "; gradients go to host memory" : ""));
  }
  const std::vector<std::string> groups = group_lines(session.groups, session.plan.name, training);
  for (const std::string& line : groups) console.note(line);
  for (const std::string& line : session.task->introduction()) console.note(line);
  if (session.world->grouped()) console.note(ranks_text(session));
  if (session.stages.size() > 1) console.note(session.stage_text());
  if (!session.resumed_from.empty()) {
    console.note("going on from " + session.resumed_from + ", step " + std::to_string(session.state.step) +
                 " of " + std::to_string(session.steps()) +
                 (session.state.first_step > 0
                      ? "; max_steps counts from step " + std::to_string(session.state.first_step) +
                            ", where max_samples was raised"
                      : ""));
    if (training.init_from) {
      console.note("init_from is not read: the run goes on from its own weights, not from " +
                   *training.init_from);
    }
  }
  if (session.warm) {
    for (const std::string& line : session.warm->lines()) console.note(line);
  }

  if (!session.log) return;
  const Unit unit = session.task->unit();
  nlohmann::ordered_json start = {{"kind", "start"},
                                  {"step", session.state.step},
                                  {"octavo", std::string(version())},
                                  {"task", settings.task},
                                  {"model", model},
                                  {"params", params},
                                  {"device", device_text(session.device)},
                                  {"optimizer", optimizer_text(session.plan.name)},
                                  {"state_bytes", states_bytes},
                                  {"fp32_state_bytes", plain},
                                  {"compute_dtype", dtype},
                                  {"master_weights", master},
                                  {"steps", session.steps()},
                                  {"unit", unit.name}};
  if (session.world->grouped()) {
    start["ranks"] = session.world->ranks();
    start["parallel"] = parallel_name(training.parallel);
    start["rank_state_bytes"] = all_states(mine);
  }
  if (training.offload != Offload::none) {
    start["offload"] = offload_name(training.offload);
    start["host_state_bytes"] = on_host;
  }
  if (session.fp8 != nullptr) start["fp8"] = fp8_text(training.fp8);
  if (session.task->batches() == nullptr)
    start["batch_" + unit.name] = session.task->units(draws_per_step(training, session.world->ranks()));
  start["resumed_from"] = nullptr;
  session.task->describe(start);
  if (!groups.empty()) start["groups"] = groups;
  if (!session.resumed_from.empty()) start["resumed_from"] = session.resumed_from;
  Status bad = session.record(start);
  if (session.warm && bad.ok()) {
    bad = session.record({{"kind", "init"},
                          {"step", session.state.step},
                          {"file", session.warm->file},
                          {"used", session.warm->used},
                          {"converted", session.warm->converted},
                          {"missing", session.warm->missing},
                          {"left_over", session.warm->left_over}});
  }
  for (const std::string& change : session.changes) {
    console.note("changed since the checkpoint: " + change);
    if (bad.ok())
      bad = session.record({{"kind", "change"}, {"step", session.state.step}, {"message", change}});
  }
  if (!bad.ok()) console.note("warning: " + bad.message());
}

// All ranks have the same products, and rank 0 has measured them.
Status tell_fp8(Session& session, Console& console) {
  if (session.fp8 == nullptr) return {};
  for (const std::string& line : session.fp8->news()) {
    if (!session.world->leads()) continue;
    console.note(line);
    if (Status bad = session.record({{"kind", "fp8"}, {"step", session.state.step}, {"message", line}});
        !bad.ok())
      return bad;
  }
  return {};
}

}  // namespace octavo::train
