// SPDX-License-Identifier: MIT
#include "train/run/start_log.h"

#include "train/base/numbers.h"
#include "train/config/environment.h"
#include "train/config/settings.h"
#include "train/device/device.h"

#include <fmt/format.h>
#include <octavo/backend.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

std::int64_t elements_of(const NamedTensors& tensors) {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.numel();
  return total;
}

const char* parallel_name(Parallel parallel) {
  return parallel == Parallel::zero1 ? "zero1" : parallel == Parallel::zero2 ? "zero2" : "ddp";
}

// Returns the bytes of states on the device and in host memory.
std::int64_t all_states(const StepOptimizer::Bytes& bytes) { return bytes.states + bytes.host_states; }

StepOptimizer::Bytes rank_bytes(const TrainingSettings& training, const TrainingState& state, int rank) {
  if (state.shards == nullptr) return planned_states(training, state.groups).bytes;
  const BucketLayout& layout = state.shards->layout();
  return planned_states(training, state.groups, &layout, rank).bytes;
}

// Returns "2 ranks (ddp), with 4 micro-batches of 2 samples each in a step".
std::string ranks_text(const TrainingSettings& training, int ranks, bool equal_batches) {
  const std::int64_t micro_batches = training.gradient_accumulation_steps;
  return fmt::format(
      "{} {} ({}), with {} {}{} each in a step", ranks, ranks == 1 ? "rank" : "ranks",
      parallel_name(training.parallel), micro_batches, micro_batches == 1 ? "micro-batch" : "micro-batches",
      equal_batches ? fmt::format(" of {} samples", training.per_device_train_batch_size) : "");
}

// Empty if the GPU has tensor cores for the type, or the device is the CPU.
std::string slow_type_on(const torch::Device& device, ComputeType type) {
  if (!device.is_cuda()) return {};
  const octavo::GpuReport report = octavo::list_gpus();
  const auto index = static_cast<std::size_t>(device.index());
  if (index >= report.gpus.size()) return {};
  const octavo::GpuInfo& gpu = report.gpus[index];
  return slow_type_text(type, gpu.name, gpu.compute_major, gpu.compute_minor);
}

}  // namespace

void log_run_start(const RunConfig& config, const Services& services, const TrainingState& state,
                   const std::optional<InitialWeights>& initial_weights) {
  Console& console = services.console;
  const TaskText text = state.task->text();
  const Settings& settings = *config.settings;
  const TrainingSettings& training = settings.training;
  const std::int64_t params = elements_of(state.parameters);
  const StepOptimizer::Bytes bytes = planned_states(training, state.groups).bytes;
  const ParameterGroups fp32 = with_states(state.groups, octavo::StateFormat::fp32);
  const std::int64_t plain = all_states(planned_states(training, fp32).bytes);
  const std::int64_t states_bytes = all_states(bytes), master_bytes = bytes.master + bytes.host_master;
  const char* dtype = training.compute_dtype == ComputeType::bfloat16  ? "bfloat16"
                      : training.compute_dtype == ComputeType::float16 ? "float16"
                                                                       : "float32";
  const std::string master = has_bf16_weights(training) ? master_name(weight_store(training)) : "none";
  const std::string& model = settings.model.name;
  console.note(model + ": " + short_count(params) + " parameters, " + bytes_text(bytes_of(state.parameters)) +
               " in " + (has_bf16_weights(training) ? "bfloat16" : "float32") +
               (master_bytes > 0
                    ? " + " + bytes_text(master_bytes) + " of master bits (" + master + "-bit master)"
                    : "") +
               ", computing in " + dtype + " on " + device_text(services.device));
  if (const auto choice = allocator_choice(); choice && services.device.is_cuda())
    console.note(allocator_line(*choice));
  if (const std::string slow = slow_type_on(services.device, training.compute_dtype); !slow.empty())
    console.note("warning: " + slow);
  if (!config.fp8.warning.empty()) console.note("warning: " + config.fp8.warning);
  if (state.fp8 != nullptr) console.note(fp8_text(training.fp8));
  std::string states =
      optimizer_text(training.optimizer) + ": " +
      fixed(static_cast<double>(states_bytes) / static_cast<double>(elements_of(state.groups.parameters)),
            2) +
      " B/param, " + bytes_text(states_bytes);
  if (states_bytes < plain) states += " instead of " + bytes_text(plain);
  const StepOptimizer::Bytes mine = rank_bytes(training, state, services.process_group->rank());
  if (state.shards != nullptr) states += ", " + bytes_text(all_states(mine)) + " of it on this rank";
  console.note(states);
  const std::int64_t on_host = mine.host_states + mine.host_master;
  if (training.offload != Offload::none) {
    console.note(fmt::format(
        "offload ({}): {} of states and master bits are in host memory, {} with the weights{}",
        offload_name(training.offload), bytes_text(on_host), bytes_text(mine.states + mine.master),
        training.offload_gradients ? "; gradients go to host memory" : ""));
  }
  const std::vector<std::string> groups = group_lines(state.groups, training);
  for (const std::string& line : groups) console.note(line);
  for (const std::string& line : text.introduction) console.note(line);
  if (services.process_group->grouped())
    console.note(ranks_text(training, services.process_group->ranks(), state.data.batches == nullptr));
  if (config.stages.size() > 1) console.note(config.stage_text(state.counters.step));
  if (!config.resumed_from.empty()) {
    const RunState& counters = state.counters;
    console.note(fmt::format(
        "resuming from {}, step {} of {}{}", config.resumed_from, counters.step, config.steps(),
        counters.first_step > 0 ? fmt::format("; max_steps counts from step {}, where max_samples was raised",
                                              counters.first_step)
                                : ""));
    if (training.init_from) {
      console.note("init_from is not read: the run resumes from its own weights, not from " +
                   *training.init_from);
    }
  }
  if (initial_weights) {
    for (const std::string& line : initial_weights->lines()) console.note(line);
  }

  if (services.log == nullptr) return;
  nlohmann::ordered_json start = {{"kind", "start"},
                                  {"step", state.counters.step},
                                  {"octavo", std::string(octavo::version())},
                                  {"task", settings.task},
                                  {"model", model},
                                  {"params", params},
                                  {"device", device_text(services.device)},
                                  {"optimizer", optimizer_text(training.optimizer)},
                                  {"state_bytes", states_bytes},
                                  {"fp32_state_bytes", plain},
                                  {"compute_dtype", dtype},
                                  {"master_weights", master},
                                  {"steps", config.steps()},
                                  {"unit", text.unit.name}};
  if (services.process_group->grouped()) {
    start["ranks"] = services.process_group->ranks();
    start["parallel"] = parallel_name(training.parallel);
    start["rank_state_bytes"] = all_states(mine);
  }
  if (training.offload != Offload::none) {
    start["offload"] = offload_name(training.offload);
    start["host_state_bytes"] = on_host;
  }
  if (state.fp8 != nullptr) start["fp8"] = fp8_text(training.fp8);
  if (state.data.batches == nullptr)
    start["batch_" + text.unit.name] =
        state.data.units_per_row * draws_per_step(training, services.process_group->ranks());
  start["resumed_from"] = nullptr;
  start.update(text.start);
  if (!groups.empty()) start["groups"] = groups;
  if (!config.resumed_from.empty()) start["resumed_from"] = config.resumed_from;
  Status bad = services.record(start);
  if (initial_weights && bad.ok()) {
    bad = services.record({{"kind", "init"},
                           {"step", state.counters.step},
                           {"file", initial_weights->file},
                           {"used", initial_weights->used},
                           {"converted", initial_weights->converted},
                           {"missing", initial_weights->missing},
                           {"left_over", initial_weights->left_over}});
  }
  for (const std::string& change : config.changes) {
    console.note("changed since the checkpoint: " + change);
    if (bad.ok())
      bad = services.record({{"kind", "change"}, {"step", state.counters.step}, {"message", change}});
  }
  if (!bad.ok()) console.note("warning: " + bad.message());
}

Status log_fp8_choices(const Services& services, TrainingState& state) {
  if (state.fp8 == nullptr) return {};
  for (const std::string& line : state.fp8->pop_log_lines()) {
    if (!services.process_group->leads()) continue;
    services.console.note(line);
    RETURN_IF_ERROR(services.record({{"kind", "fp8"}, {"step", state.counters.step}, {"message", line}}));
  }
  return {};
}

}  // namespace octavo_train
