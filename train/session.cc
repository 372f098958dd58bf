// SPDX-License-Identifier: MIT
#include "session.h"

#include "convert_states.h"
#include "device.h"
#include "resume.h"
#include "train/config/environment.h"
#include "train/config/paths.h"
#include "train/files/checkpoint_folder.h"
#include "train/files/checkpoint_names.h"
#include "train/format/numbers.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace octavo::train {
namespace {

std::int64_t bytes_of(const NamedTensors& tensors) {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += static_cast<std::int64_t>(tensor.nbytes());
  return total;
}

std::int64_t elements_of(const NamedTensors& tensors) {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.numel();
  return total;
}

// The data: as the config names it, divided as the checkpoint has it.
Status open_data(Session& s) {
  nlohmann::ordered_json then;
  if (!s.resumed_from.empty()) {
    auto read = saved_data(s.resumed_from);
    if (!read.ok()) return read.status();
    then = std::move(*read);
  }
  try {
    auto change = s.task->open({s.settings, s.resumed_from, then.is_null() ? nullptr : &then});
    if (!change.ok()) return change.status();
    if (Status bad = continue_data(s.resumed_from, s.settings, change->changed, s.changes); !bad.ok())
      return bad;
    s.changes.insert(s.changes.end(), change->noted.begin(), change->noted.end());
  } catch (const nlohmann::json::exception& error) {
    return Status::invalid(s.resumed_from + "/state.json: " + error.what() +
                           "; it was not saved by octavo train");
  }
  return {};
}

// Only the beginning of a run reads other weights.
Status begin_warm(Session& s) {
  const TrainingSettings& training = s.settings.training;
  if (!training.init_from || !s.resumed_from.empty()) return {};
  auto warm = warm_start({training.init_from, training.init_rename, training.init_strict},
                         tensors_of(*s.model), s.task->fresh_parts());
  if (!warm.ok() && !path_exists(*training.init_from))
    return Status(warm.status().code(),
                  warm.status().message() + places_looked_at(s.settings, *training.init_from));
  if (!warm.ok()) return warm.status();
  s.warm = std::move(*warm);
  return {};
}

// Where convert_states asks for it: a checkpoint's states and weights in the kinds that this run has.
BeforeLoad conversion(Session& s) {
  if (!s.settings.training.convert_states) return {};
  return [&s](std::vector<SavedPart>& parts) -> Status {
    const auto part = [&](std::string_view name) { return std::ranges::find(parts, name, &SavedPart::name); };
    const auto model = part(kModelPart), optimizer = part(kOptimizerPart);
    SavedRun saved{std::move(model->tensors), std::move(optimizer->tensors), optimizer->numbers};
    auto changes = convert_states(s.plan, s.settings.training, s.groups, saved);
    if (!changes.ok()) return changes.status();
    model->tensors = std::move(saved.weights);
    optimizer->tensors = std::move(saved.states);
    s.changes.insert(s.changes.end(), changes->begin(), changes->end());
    return {};
  };
}

void introduce(Session& session, Console& console) {
  const Settings& settings = session.settings;
  const TrainingSettings& training = settings.training;
  const std::int64_t params = elements_of(session.parameters);
  const StepOptimizer::Bytes bytes = planned_bytes(session.plan, training, session.groups);
  const ParameterGroups fp32 = with_states(session.groups, StateFormat::fp32);
  const std::int64_t plain = planned_bytes(session.plan, training, fp32).states;
  const char* dtype = training.compute_dtype == ComputeType::bfloat16  ? "bfloat16"
                      : training.compute_dtype == ComputeType::float16 ? "float16"
                                                                       : "float32";
  const std::string master = session.plan.bf16_weights ? master_name(weight_store(training)) : "none";
  const std::string& model = settings.model.name;
  console.note(
      model + ": " + short_count(params) + " parameters, " + bytes_text(bytes_of(session.parameters)) +
      " in " + (session.plan.bf16_weights ? "bfloat16" : "float32") +
      (bytes.master > 0 ? " + " + bytes_text(bytes.master) + " of master bits (" + master + "-bit master)"
                        : "") +
      ", computing in " + dtype + " on " + device_text(session.device));
  if (const auto choice = allocator_choice(); choice && session.device.is_cuda())
    console.note(allocator_line(*choice));
  if (!session.plan.warning.empty()) console.note("warning: " + session.plan.warning);
  std::string states =
      optimizer_text(session.plan.name) + (session.plan.native ? "" : " (plain LibTorch)") + ": " +
      fixed(static_cast<double>(bytes.states) / static_cast<double>(elements_of(session.groups.parameters)),
            2) +
      " B/param, " + bytes_text(bytes.states);
  if (bytes.states < plain) states += " instead of " + bytes_text(plain);
  console.note(states);
  const std::vector<std::string> groups = group_lines(session.groups, session.plan.name, training);
  for (const std::string& line : groups) console.note(line);
  for (const std::string& line : session.task->introduction()) console.note(line);
  if (session.stages.size() > 1) console.note(session.stage_text());
  if (!session.resumed_from.empty()) {
    console.note("going on from " + session.resumed_from + ", step " + std::to_string(session.state.step) +
                 " of " + std::to_string(session.steps()));
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
                                  {"state_bytes", bytes.states},
                                  {"fp32_state_bytes", plain},
                                  {"compute_dtype", dtype},
                                  {"master_weights", master},
                                  {"steps", session.steps()},
                                  {"unit", unit.name}};
  if (session.task->batches() == nullptr)
    start["batch_" + unit.name] = session.task->units(draws_per_step(training));
  start["resumed_from"] = nullptr;
  session.task->describe(start);
  if (!groups.empty()) start["groups"] = groups;
  if (!session.resumed_from.empty()) start["resumed_from"] = session.resumed_from;
  Status bad = session.log->write(start);
  if (session.warm && bad.ok()) {
    bad = session.log->write({{"kind", "init"},
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
      bad = session.log->write({{"kind", "change"}, {"step", session.state.step}, {"message", change}});
  }
  if (!bad.ok()) console.note("warning: " + bad.message());
}

}  // namespace

const Stage& Session::stage() const {
  for (const Stage& each : stages) {
    if (state.step < each.last_step) return each;
  }
  return stages.back();
}

std::string Session::stage_text() const {
  const Stage& now = stage();
  return "stage " + std::to_string(&now - stages.data() + 1) + " of " + std::to_string(stages.size()) + ": " +
         std::to_string(now.samples) + " samples, to step " + std::to_string(now.last_step);
}

std::string Session::step_text(std::int64_t step) const {
  return "step " + std::to_string(step) + '/' + std::to_string(steps());
}

Order Session::order() const {
  const std::int64_t samples = stage().samples;
  return Order(samples, static_cast<std::uint64_t>(settings.data.seed),
               samples == state.samples ? state.sampler_start : state.position);
}

Prefetch<Batch>::Source Session::source() const {
  const Order now = order();
  std::shared_ptr<const Batches> equal;
  const Batches* division = task->batches();
  if (division == nullptr) {
    equal = std::make_shared<EqualBatches>(settings.training.per_device_train_batch_size);
    division = equal.get();
  }
  return {[equal, division, now](std::uint64_t position) { return division->rows_at(now, position); },
          [task = task.get(), now](std::uint64_t position, std::int64_t rows) {
            return task->read(now, position, rows);
          }};
}

Result<SavedCheckpoint> Session::save(const std::optional<EvaluationRecord>& evaluation) const {
  std::vector<const Stateful*> all;
  for (const auto& part : parts) all.push_back(part.get());
  return save_checkpoint(settings.output_dir, state, task->data_record(), all, config_yaml, evaluation,
                         task->kept_files());
}

MemoryByOwner Session::owners() const {
  MemoryByOwner out;
  const StepOptimizer::Bytes bytes = optimizer->bytes();
  out.params = bytes_of(parameters);
  out.grads = gradients->bytes();
  out.states = bytes.states;
  out.master = bytes.master;
  out.workspace = bytes.workspace;
  return out;
}

Result<std::unique_ptr<Session>> open_session(const Config& config, Console& console, Purpose purpose,
                                              std::unique_ptr<Task> task) {
  if (Status bad = check_complete(config); !bad.ok()) return bad;
  for (const std::string& note : config.notes) console.note(note);
  auto session = std::make_unique<Session>();
  Session& s = *session;
  s.settings = config.settings;
  const Settings& settings = s.settings;
  const TrainingSettings& training = settings.training;

  auto device = choose_device(training.device);
  if (!device.ok()) return device.status();
  s.device = *device;
  auto plan = plan_optimizer(training, s.device, has_backend(s.device));
  if (!plan.ok()) return plan.status();
  s.plan = *plan;
  // The lock comes before the checkpoint is chosen. A folder that is not there has none; it is made last, so
  // that a run that cannot begin leaves nothing behind.
  const bool writes = purpose == Purpose::run;
  const bool existed = path_exists(settings.output_dir);
  if (writes && existed) {
    if (Status bad = s.lock.take(settings.output_dir); !bad.ok()) return bad;
  }
  if (writes) {
    auto resume = find_resume(settings, console);
    if (!resume.ok()) return resume.status();
    s.resumed_from = *resume;
  }
  s.task = task != nullptr ? std::move(task) : make_task(settings.task);
  if (Status bad = open_data(s); !bad.ok()) return bad;
  auto stages = plan_stages(settings.data, training, s.task->samples(), s.task->batches());
  if (!stages.ok()) return stages.status();
  s.stages = *stages;

  s.model = build_model(*s.task, settings, s.device, s.plan.bf16_weights);
  if (s.resumed_from.empty()) {
    if (Status bad = s.task->load_first_weights(); !bad.ok()) return bad;
  }
  if (Status bad = begin_warm(s); !bad.ok()) return bad;
  s.parameters = parameters_of(*s.model);
  s.buffers = buffers_of(*s.model);
  auto groups = resolve_groups(s.plan.name, training, s.parameters);
  if (!groups.ok()) return groups.status();
  s.groups = s.plan.native ? std::move(*groups) : with_states(std::move(*groups), s.plan.name.state);
  freeze(s.groups);
  s.optimizer = make_optimizer(s.plan, training, s.groups);
  s.scaler.emplace(s.device, training.compute_dtype);
  s.gradients = std::make_unique<GradientSums>(s.groups.parameters, training.gradient_accumulation_steps);
  s.parts.push_back(std::make_unique<ModelPart>(tensors_of(*s.model)));
  s.parts.push_back(std::make_unique<ScalerPart>(*s.scaler));
  s.parts.push_back(std::make_unique<OptimizerPart>(*s.optimizer));
  if (!s.resumed_from.empty()) {
    std::vector<Stateful*> all;
    for (const auto& part : s.parts) all.push_back(part.get());
    auto state = load_checkpoint(s.resumed_from, all, conversion(s));
    if (!state.ok()) return state.status();
    s.state = *state;
    s.state.skipped_in_a_row = 0;  // a new start may skip ten steps again before it ends
    if (Status bad = check_newest(settings, s.state.step); !bad.ok()) return bad;
    if (Status bad = continue_settings(s.resumed_from, settings, s.changes, console); !bad.ok()) return bad;
  } else {
    s.state.samples = s.stage().samples;
  }
  auto batches = Prefetch<Batch>::start(s.source(), s.state.position,
                                        static_cast<int>(settings.data.dataloader_num_workers));
  if (!batches.ok()) return batches.status();
  s.batches.emplace(std::move(*batches));

  if (!writes) {
    introduce(s, console);
    return session;
  }
  if (!existed) {
    if (Status bad = s.lock.take(settings.output_dir); !bad.ok()) return bad;
    if (!list_checkpoints(settings.output_dir).empty())
      return Status::failed("output_dir: another octavo train began in " + settings.output_dir +
                            " meanwhile; start again to go on from its checkpoint");
  }
  auto log = RunLog::open(settings.output_dir, s.state.step);
  if (!log.ok()) return log.status();
  s.log.emplace(std::move(*log));
  if (Status bad = s.task->begin(settings.output_dir); !bad.ok()) return bad;
  Settings saved = with_absolute_paths(settings);         // the run can be gone on with from anywhere
  saved.training.resume_from_checkpoint.changed = false;  // --resume is of this start alone
  s.config_yaml = to_yaml(saved);
  introduce(s, console);
  return session;
}

}  // namespace octavo::train
