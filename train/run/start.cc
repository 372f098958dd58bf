// SPDX-License-Identifier: MIT
#include "train/run/start.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/initial_weights.h"
#include "train/checkpoint/resume.h"
#include "train/config/options.h"
#include "train/config/paths.h"
#include "train/console/signals.h"
#include "train/device/device.h"
#include "train/distributed/agreement.h"
#include "train/model/model.h"
#include "train/optim/convert_states.h"
#include "train/optim/shards.h"
#include "train/predict/host.h"
#include "train/predict/predict.h"
#include "train/run/errors.h"
#include "train/run/start_log.h"

#include <fmt/format.h>
#include <octavo/backend.h>
#include <octavo/describe.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace octavo_train {
namespace {

// Choices that follow from the settings and this rank's device.
struct Choices {
  torch::Device device;
  Fp8Choice fp8;
};

Result<Choices> choose(const Config& config, const RankInfo& rank_info) {
  const TrainingSettings& training = config.settings.training;
  ASSIGN_OR_RETURN(auto device, rank_device(config, rank_info));
  RETURN_IF_ERROR(check_backend(device));
  ASSIGN_OR_RETURN(auto fp8, choose_fp8(training.fp8, device));
  return Choices{device, std::move(fp8)};
}

// The run's folder as rank 0 finds it. Other ranks, and dry runs, look at no folder.
struct FoundFolder {
  FolderLock lock;
  bool existed = false;
  std::string resume_from;  // the path of a checkpoint; empty: the run begins
};

// The lock is taken before the checkpoint is chosen. A folder that does not exist has no lock; it is made
// last, so that a run that cannot start leaves nothing behind.
Result<FoundFolder> find_folder(const Settings& settings, const ProcessGroup& process_group, bool writes,
                                Console& console) {
  FoundFolder found;
  if (!writes) return found;
  found.existed = path_exists(settings.output_dir);
  if (found.existed) {
    RETURN_IF_ERROR(found.lock.take(settings.output_dir));
  }
  ASSIGN_OR_RETURN(found.resume_from, find_resume(settings, process_group.rank_info().restart > 0, console));
  return found;
}

// Returns the settings with the micro-batches of a rank.
Result<std::shared_ptr<const Settings>> settings_of_rank(const Settings& given,
                                                         const ProcessGroup& process_group,
                                                         const std::string& resumed_from, Console& console) {
  auto settings = std::make_shared<Settings>(given);
  ASSIGN_OR_RETURN(settings->training.gradient_accumulation_steps,
                   micro_batches_per_rank(given, process_group.ranks(), resumed_from));
  if (process_group.grouped() && given.training.offload_gradients) {
    settings->training.offload_gradients = false;
    if (process_group.leads())
      console.note("offload_gradients is without effect: ranks sum gradients on their devices");
  }
  return std::shared_ptr<const Settings>(std::move(settings));
}

// Opens the data as the config names it, divided as the checkpoint has it. Adds what differs from the
// checkpoint to `changes`.
Result<TaskData> open_data(Task& task, const Settings& settings, const std::string& resumed_from,
                           Changes& changes) {
  nlohmann::ordered_json then;
  if (!resumed_from.empty()) {
    ASSIGN_OR_RETURN(then, saved_data(resumed_from));
  }
  try {
    ASSIGN_OR_RETURN(auto data, task.open({settings, resumed_from, then.is_null() ? nullptr : &then}));
    RETURN_IF_ERROR(continue_data(resumed_from, settings, data.change.changed, changes));
    changes.insert(changes.end(), data.change.noted.begin(), data.change.noted.end());
    return data;
  } catch (const nlohmann::json::exception& error) {
    return Status::invalid(resumed_from + "/state.json: " + error.what() +
                           "; it was not saved by octavo train");
  }
}

// Predicts the memory and the time of the run before its model is built. Returns null, with a note, if they
// cannot be predicted. It takes about a second, and nothing depends on it.
std::shared_ptr<const Prediction> predict_run(Settings settings, const Choices& choices,
                                              const ProcessGroup& process_group, const OpenTask& task,
                                              Console& console) {
  if (!choices.device.is_cuda() && !choices.device.is_cpu()) return nullptr;
  const auto unknown = [&](const std::string& why) {
    console.note("no memory forecast: " + why);
    return nullptr;
  };
  try {
    PredictionRequest request;
    request.num_gpus = process_group.ranks();
    request.cpu = choices.device.is_cpu();
    if (!request.cpu) {
      const auto gpu = octavo::plan::find_gpu("this:" + std::to_string(choices.device.index()));
      if (!gpu.ok()) return unknown("unknown GPU model");
      request.gpu = *gpu;
      const auto launch = measure_launch(choices.device);
      if (launch.ok())
        request.launch_seconds = *launch;
      else
        console.note(launch.status().message() + "; the prediction assumes a fast host");
    }
    settings.training.fp8.enabled = choices.fp8.enabled;
    const OpenTask copy{task.task->copy_without_model(), task.data};  // the run's own task stays as it is
    auto prediction = predict(settings, copy, request);
    if (!prediction.ok()) return unknown(prediction.status().message());
    return std::make_shared<const Prediction>(std::move(*prediction));
  } catch (const std::exception& error) {
    return unknown(error.what());
  }
}

struct OpenedTask {
  std::shared_ptr<const Settings> settings;  // of a rank
  OpenTask task;
  RunSteps steps;
  Changes changes;
  std::shared_ptr<const Prediction> prediction;
};

Result<OpenedTask> open_run_task(std::unique_ptr<Task> task, const Settings& given, const Choices& choices,
                                 const ProcessGroup& process_group, const std::string& resumed_from,
                                 Console& console) {
  OpenedTask out;
  ASSIGN_OR_RETURN(out.settings, settings_of_rank(given, process_group, resumed_from, console));
  const Settings& settings = *out.settings;
  out.task.task = task != nullptr ? std::move(task) : make_task(settings.task);
  ASSIGN_OR_RETURN(out.task.data, open_data(*out.task.task, settings, resumed_from, out.changes));
  ASSIGN_OR_RETURN(out.steps, plan_steps(settings, out.task.data, process_group.ranks(), resumed_from));
  if (process_group.leads())
    out.prediction = predict_run(settings, choices, process_group, out.task, console);
  return out;
}

// Gives the model the weights of init_from. Only a run that begins reads them.
Result<std::optional<InitialWeights>> read_initial_weights(const TaskModel& model, const Settings& settings,
                                                           const std::string& resumed_from) {
  const TrainingSettings& training = settings.training;
  if (!training.init_from || !resumed_from.empty()) return std::optional<InitialWeights>();
  auto warm = load_initial_weights({training.init_from, training.init_rename, training.init_strict},
                                   tensors_of(*model.module), model.reinitialized_layers);
  if (!warm.ok() && !path_exists(*training.init_from))
    return Status(warm.status().code(),
                  warm.status().message() + places_looked_at(settings, *training.init_from));
  if (!warm.ok()) return warm.status();
  return std::optional<InitialWeights>(std::move(*warm));
}

// Returns what each rank of a group has of the trained parameters; null: all of them.
Result<std::unique_ptr<ShardedWeights>> shard_parameters(ProcessGroup& process_group,
                                                         const ParameterGroups& groups,
                                                         const TrainingSettings& training) {
  if (!process_group.grouped() || !divides_states(training)) return std::unique_ptr<ShardedWeights>();
  const octavo::GroupConfig config = group_config(training, training.optimizer.algorithm);
  if (training.offload != Offload::none && octavo::passes(config.algorithm, config.switches) > 1) {
    return Status::unsupported(
        "training.offload: " + optimizer_text(training.optimizer) +
        " measures whole parameters, of which ranks have parts here (training.parallel); use "
        "offload: none or parallel: ddp");
  }
  return std::make_unique<ShardedWeights>(process_group, groups,
                                          make_bucket_layout(groups, process_group.ranks(), true));
}

struct BuiltState {
  std::unique_ptr<TrainingState> state;
  std::optional<InitialWeights> initial_weights;  // where the first weights were read from; none: nowhere
};

// Returns the counters of a run that begins.
RunState first_counters(const RunSteps& steps, const TrainingSettings& training,
                        const TrainingSettings& given, const ProcessGroup& process_group) {
  const std::int64_t micro_batches = training.gradient_accumulation_steps, ranks = process_group.ranks();
  const bool given_by_ranks = process_group.grouped() || micro_batches != given.gradient_accumulation_steps;
  RunState out;
  out.samples = stage_after(steps.stages, out.step).samples;
  out.first_step = steps.first_step;
  out.ranks = given_by_ranks ? ranks : 0;
  out.batches_per_step = given_by_ranks ? micro_batches * ranks : 0;
  return out;
}

// Moves the task of `opened` into the state.
Result<BuiltState> build_state(OpenedTask& opened, const TrainingSettings& given, const Choices& choices,
                               ProcessGroup& process_group, const std::string& resumed_from) {
  const Settings& settings = *opened.settings;
  const TrainingSettings& training = settings.training;
  TrainingState::Parts parts;
  parts.model = build_model(*opened.task.task, settings, choices.device, has_bf16_weights(training));
  if (resumed_from.empty() && parts.model.load_first_weights) {
    RETURN_IF_ERROR(parts.model.load_first_weights());
  }
  ASSIGN_OR_RETURN(auto initial, read_initial_weights(parts.model, settings, resumed_from));
  ASSIGN_OR_RETURN(parts.groups, resolve_groups(training, parameters_of(*parts.model.module)));
  freeze(parts.groups);
  ASSIGN_OR_RETURN(parts.shards, shard_parameters(process_group, parts.groups, training));
  parts.counters = first_counters(opened.steps, training, given, process_group);
  parts.task = std::move(opened.task);
  return BuiltState{
      std::make_unique<TrainingState>(training, choices.fp8, choices.device, process_group, std::move(parts)),
      std::move(initial)};
}

// With convert_states: converts a checkpoint's states and weights into the formats of this run.
BeforeLoad conversion(const TrainingSettings& training, const ParameterGroups& groups, Changes& changes) {
  if (!training.convert_states) return {};
  return [&](std::vector<SavedComponent>& parts) -> Status {
    const auto part = [&](std::string_view name) {
      return std::ranges::find(parts, name, &SavedComponent::name);
    };
    const auto model = part(kModelComponent), states = part(kOptimizerComponent);
    SavedRun saved{std::move(model->tensors), std::move(states->tensors), states->scalars};
    ASSIGN_OR_RETURN(auto converted, convert_states(training, groups, saved));
    model->tensors = std::move(saved.weights);
    states->tensors = std::move(saved.states);
    changes.insert(changes.end(), converted.begin(), converted.end());
    return {};
  };
}

// Loads the checkpoint, and compares its run with this one. Adds what differs to `changes`.
Status resume_state(TrainingState& state, const Settings& settings, const std::string& resumed_from,
                    const ProcessGroup& process_group, Changes& changes, Console& console) {
  ASSIGN_OR_RETURN(const RunState then,
                   state.load(resumed_from, conversion(settings.training, state.groups, changes)));
  if (state.fp8 != nullptr && !state.fp8->reset_reason().empty())
    changes.push_back("fp8: scales and choices begin anew: " + state.fp8->reset_reason());
  if (!process_group.leads()) return {};
  RETURN_IF_ERROR(check_newest(settings, state.counters.step));
  return continue_settings(resumed_from, then, settings, process_group.ranks(), changes, console);
}

// Opens the run's folder for writing, on rank 0; null elsewhere.
Result<std::unique_ptr<RunLog>> open_folder(const std::string& folder, bool writes, FoundFolder& found,
                                            std::int64_t step, Task& task, Console& console) {
  if (!writes) return std::unique_ptr<RunLog>();
  if (!found.existed) {
    RETURN_IF_ERROR(found.lock.take(folder));
    if (!list_checkpoints(folder).empty())
      return Status::failed("output_dir: another octavo train began in " + folder +
                            " meanwhile; start again to resume from its checkpoint");
  }
  // A run that has finished writes no checkpoint, which would remove what a killed process left.
  if (Status bad = remove_leftovers(folder); !bad.ok()) console.note("warning: " + bad.message());
  ASSIGN_OR_RETURN(auto log, RunLog::open(folder, step));
  RETURN_IF_ERROR(task.set_run_folder(folder));
  return std::make_unique<RunLog>(std::move(log));
}

std::string config_yaml(const Settings& given) {
  Settings saved = with_absolute_paths(given);                  // a run can be resumed from any folder
  saved.training.resume_from_checkpoint.allow_changes = false;  // --resume holds for one start
  return to_yaml(saved);
}

// Facts for check_equal_across_ranks() before anything is read: the version, the device's type, and the
// settings without paths, which may differ on another machine.
std::vector<NamedText> settings_texts(const Settings& given, const torch::Device& device) {
  Settings settings = without_paths(given);
  settings.training.num_gpus.reset();  // machines may have different numbers of ranks
  return {{"version of octavo", std::string(octavo::version())},
          {"device", device.is_cpu() ? "cpu" : c10::DeviceTypeName(device.type())},
          {"config", to_yaml(settings)}};
}

// Facts of the data and of the model.
std::vector<NamedText> model_texts(const TrainingState& state) {
  std::ostringstream parameters;
  for (const NamedTensors* tensors : {&state.parameters, &state.buffers}) {
    for (const auto& [name, tensor] : *tensors)
      parameters << name << ' ' << tensor.sizes() << ' ' << tensor.scalar_type() << '\n';
  }
  return {{"data", state.data.record.dump(1) + '\n' + std::to_string(state.data.samples) + " samples"},
          {"model", parameters.str()}};
}

// Gives all ranks the weights and buffers of rank 0: random numbers of different processors may differ in
// their last bits.
void share_weights(ProcessGroup& process_group, const torch::nn::Module& model) {
  if (!process_group.grouped()) return;
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors_of(model)) {
    const torch::Tensor sent = tensor.contiguous();
    process_group.broadcast(sent, 0).wait();
    if (!sent.is_same(tensor)) tensor.copy_(sent);
  }
  process_group.take_traffic();  // it is no part of the first step's
}

// See run_on_all_ranks().
template <class Stage>
auto on_all_ranks(ProcessGroup& process_group, Stage stage) -> decltype(stage()) {
  std::optional<decltype(stage())> result;
  RETURN_IF_ERROR(run_on_all_ranks(process_group, [&]() -> Status {
    result.emplace(stage());
    return result->status();
  }));
  return std::move(*result);
}

// Each stage is done by all ranks before the next one begins, so that an error of one ends all.
Result<std::unique_ptr<Run>> start_stages(const Config& config, Heartbeat& console, Purpose purpose,
                                          std::unique_ptr<Task> given_task,
                                          std::shared_ptr<ProcessGroup> shared) {
  const Settings& given = config.settings;
  ProcessGroup& process_group = *shared;
  const bool writes = purpose == Purpose::run && process_group.leads();  // only rank 0 writes

  ASSIGN_OR_RETURN(auto choices,
                   on_all_ranks(process_group, [&] { return choose(config, process_group.rank_info()); }));
  RETURN_IF_ERROR(check_equal_across_ranks(process_group, settings_texts(given, choices.device)));
  if (given.training.fp8.enabled) agree_on_fp8(process_group, choices.fp8);

  ASSIGN_OR_RETURN(auto folder, on_all_ranks(process_group, [&] {
                     return find_folder(given, process_group, writes, console);
                   }));
  const std::string resumed_from = process_group.broadcast_text(folder.resume_from);

  ASSIGN_OR_RETURN(auto opened, on_all_ranks(process_group, [&] {
                     return open_run_task(std::move(given_task), given, choices, process_group, resumed_from,
                                          console);
                   }));

  ASSIGN_OR_RETURN(auto built, on_all_ranks(process_group, [&] {
                     return build_state(opened, given.training, choices, process_group, resumed_from);
                   }));
  TrainingState& state = *built.state;
  RETURN_IF_ERROR(check_equal_across_ranks(process_group, model_texts(state)));

  if (!resumed_from.empty()) {
    RETURN_IF_ERROR(run_on_all_ranks(process_group, [&] {
      return resume_state(state, *opened.settings, resumed_from, process_group, opened.changes, console);
    }));
  }
  share_weights(process_group, *state.model.module);
  RunConfig chosen{opened.settings,
                   std::move(choices.fp8),
                   std::move(opened.steps.stages),
                   resumed_from,
                   std::move(opened.changes),
                   writes ? config_yaml(given) : "",
                   std::move(opened.prediction)};

  ASSIGN_OR_RETURN(auto batches, on_all_ranks(process_group, [&] {
                     return Prefetch<Batch>::start(batch_source(chosen, process_group, state),
                                                   state.counters.position,
                                                   static_cast<int>(given.data.dataloader_num_workers));
                   }));
  ASSIGN_OR_RETURN(auto log, on_all_ranks(process_group, [&] {
                     return open_folder(given.output_dir, writes, folder, state.counters.step, *state.task,
                                        console);
                   }));
  Services services{std::move(shared), choices.device, console, std::move(folder.lock), std::move(log)};
  if (process_group.leads()) log_run_start(chosen, services, state, built.initial_weights);
  return std::make_unique<Run>(std::move(chosen), std::move(services), std::move(built.state),
                               std::move(batches));
}

}  // namespace

Run::Run(RunConfig given_config, Services given_services, std::unique_ptr<TrainingState> given_state,
         Prefetch<Batch> batches)
    : config(std::move(given_config)),
      services(std::move(given_services)),
      state(std::move(given_state)),
      trainer(std::make_unique<Trainer>(config, services, *state, std::move(batches))) {}

Run::~Run() {
  trainer.reset();
  state.reset();
}

Result<std::unique_ptr<Run>> start_run(const Config& config, Heartbeat& console, Purpose purpose,
                                       std::shared_ptr<ProcessGroup> process_group,
                                       std::unique_ptr<Task> task) {
  RETURN_IF_ERROR(check_complete(config));
  for (const std::string& note : config.notes) console.note(note);
  if (process_group == nullptr) process_group = ProcessGroup::alone();
  Status thrown;
  try {
    return start_stages(config, console, purpose, std::move(task), process_group);
  } catch (const ProcessGroupError& error) {
    process_group->fail(error.failure());
    return status_of(error);
  } catch (const c10::Error& error) {
    thrown = Status::failed("the run could not be set up: " + error_text(error));
  } catch (const std::exception& error) {
    thrown = status_of(error);
  }
  process_group->fail(thrown.message());
  return thrown;
}

Result<std::shared_ptr<ProcessGroup>> join_ranks(const Config& config, const RankInfo& rank_info,
                                                 std::optional<RankFailure>* failure) {
  if (starts_ranks(config, rank_info)) {
    return invalid_error(
        "training.num_gpus: got {}, but this process is alone: octavo train, torchrun or Slurm "
        "start the ranks",
        *config.settings.training.num_gpus);
  }
  if (!rank_info.grouped()) return std::shared_ptr<ProcessGroup>(ProcessGroup::alone());
  ASSIGN_OR_RETURN(auto device, rank_device(config, rank_info));
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(config.settings.training.rank_timeout));
  const auto stop = [] { return StopSignals::received() != 0; };
  auto process_group =
      ProcessGroup::join(rank_info, device, {.timeout = timeout, .start = timeout, .stop = stop}, failure);
  if (!process_group.ok() && stop()) return std::shared_ptr<ProcessGroup>();
  if (!process_group.ok()) return process_group.status();
  return std::shared_ptr<ProcessGroup>(std::move(*process_group));
}

}  // namespace octavo_train
