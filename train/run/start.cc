// SPDX-License-Identifier: MIT
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/checkpoint_names.h"
#include "train/checkpoint/resume.h"
#include "train/checkpoint/resume_passes.h"
#include "train/config/options.h"
#include "train/config/paths.h"
#include "train/device/device.h"
#include "train/optim/bucket_layout.h"
#include "train/optim/convert_states.h"
#include "train/optim/make_gradients.h"
#include "train/predict/host.h"
#include "train/predict/plan.h"
#include "train/run/agreement.h"
#include "train/run/consistency.h"
#include "train/run/resume_steps.h"
#include "train/run/session.h"
#include "train/run/start_log.h"

#include <octavo/describe.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace octavo::train {
namespace {

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

// What each rank of a group has of the trained parameters.
Status share_out(Session& s) {
  const TrainingSettings& training = s.settings.training;
  if (!s.world->grouped() || !divides_states(training)) return {};
  const GroupConfig config = group_config(training, s.plan.name.algorithm);
  if (training.offload != Offload::none && octavo::passes(config.algorithm, config.switches) > 1) {
    return Status::unsupported(
        "training.offload: " + optimizer_text(s.plan.name) +
        " measures whole parameters, of which ranks have parts here (training.parallel); use "
        "offload: none or parallel: ddp");
  }
  auto shards = ShardedWeights::make(*s.world, s.plan, s.groups, lay_out(s.groups, s.world->ranks(), true));
  if (!shards.ok()) return shards.status();
  s.shards = std::move(*shards);
  return {};
}

// The stages of opening a session, in their order. Each is done by all ranks before the next one begins, so
// that an error of one ends all.
class Opening {
 public:
  Opening(Session& session, const Config& config, Console& console, Purpose purpose,
          std::unique_ptr<Task> task)
      : s_(session),
        config_(config),
        given_(config.settings),
        console_(console),
        writes_(purpose == Purpose::run),
        task_(std::move(task)) {}

  Status run();

 private:
  Status choose();
  Status find_checkpoint();
  Status open_data();
  void forecast();
  Status build();
  Status load();
  Status begin();
  Status all(Status (Opening::*stage)());
  [[nodiscard]] bool leads() const { return s_.world->leads(); }

  Session& s_;
  const Config& config_;
  const Settings& given_;
  Console& console_;
  const bool writes_;
  bool existed_ = false;         // the run's folder
  std::int64_t first_step_ = 0;  // see RunState
  std::unique_ptr<Task> task_;
};

Status Opening::all(Status (Opening::*stage)()) {
  return together(*s_.world, [&] { return (this->*stage)(); });
}

Status Opening::run() {
  Status status = all(&Opening::choose);
  if (status.ok()) status = same_on_all(*s_.world, settings_facts(s_));
  if (status.ok() && given_.training.fp8.enabled) agree(*s_.world, s_.fp8_plan);
  if (status.ok()) status = all(&Opening::find_checkpoint);
  if (status.ok()) s_.resumed_from = s_.world->share(s_.resumed_from);
  if (status.ok()) status = all(&Opening::open_data);
  if (status.ok()) status = all(&Opening::build);
  if (status.ok()) status = same_on_all(*s_.world, model_facts(s_));
  if (status.ok()) status = all(&Opening::load);
  if (status.ok()) share_weights(s_);
  if (status.ok()) status = all(&Opening::begin);
  if (status.ok() && leads()) introduce(s_, console_);
  return status;
}

Status Opening::choose() {
  auto device = rank_device(config_, s_.world->place());
  if (!device.ok()) return device.status();
  s_.device = *device;
  auto plan = plan_optimizer(given_.training, s_.device, has_backend(s_.device));
  if (!plan.ok()) return plan.status();
  s_.plan = *plan;
  auto fp8 = plan_fp8(given_.training.fp8, s_.device);
  if (!fp8.ok()) return fp8.status();
  s_.fp8_plan = *fp8;
  return {};
}

// The lock comes before the checkpoint is chosen. A folder that is not there has none; it is made last, so
// that a run that cannot begin leaves nothing behind.
Status Opening::find_checkpoint() {
  if (!writes_ || !leads()) return {};
  existed_ = path_exists(given_.output_dir);
  if (existed_) {
    if (Status bad = s_.lock.take(given_.output_dir); !bad.ok()) return bad;
  }
  auto resume = find_resume(given_, s_.world->place().restart > 0, console_);
  if (!resume.ok()) return resume.status();
  s_.resumed_from = *resume;
  return {};
}

Status Opening::open_data() {
  s_.task = task_ != nullptr ? std::move(task_) : make_task(s_.settings.task);
  if (Status bad = train::open_data(s_); !bad.ok()) return bad;
  auto passes = passes_of_ranks(given_, s_.world->ranks(), s_.resumed_from);
  if (!passes.ok()) return passes.status();
  s_.settings.training.gradient_accumulation_steps = *passes;
  if (s_.world->grouped() && given_.training.offload_gradients) {
    s_.settings.training.offload_gradients = false;
    if (leads()) console_.note("offload_gradients is without effect: ranks sum gradients on their devices");
  }
  auto steps = plan_steps(s_.settings, *s_.task, s_.world->ranks(), s_.resumed_from);
  if (!steps.ok()) return steps.status();
  s_.stages = std::move(steps->stages);
  first_step_ = steps->first_step;
  if (leads()) forecast();
  return {};
}

// The plan of a run, before its model is built. It costs about a second, and nothing depends on it:
// whatever goes wrong here is said, and the run goes on.
void Opening::forecast() {
  if (!s_.device.is_cuda() && !s_.device.is_cpu()) return;
  try {
    PlanRequest request;
    request.num_gpus = s_.world->ranks();
    request.cpu = s_.device.is_cpu();
    if (!request.cpu) {
      const auto gpu = octavo::plan::find_gpu("this:" + std::to_string(s_.device.index()));
      if (!gpu.ok()) return console_.note("no plan: this GPU is none of those that plans know");
      request.gpu = *gpu;
      const auto launch = measure_launch(s_.device);
      if (launch.ok())
        request.launch_seconds = *launch;
      else
        console_.note(launch.status().message() + "; the plan assumes a fast host");
    }
    Settings settings = s_.settings;
    settings.training.fp8.enabled = s_.fp8_plan.enabled;
    auto plan = make_plan(settings, *s_.task, request);
    if (!plan.ok()) return console_.note("no plan: " + plan.status().message());
    s_.forecast = std::make_shared<const Plan>(std::move(*plan));
  } catch (const std::exception& error) {
    console_.note(std::string("no plan: ") + error.what());
  }
}

Status Opening::build() {
  const TrainingSettings& training = s_.settings.training;
  s_.model = build_model(*s_.task, s_.settings, s_.device, s_.plan.bf16_weights);
  if (s_.resumed_from.empty()) {
    if (Status bad = s_.task->load_first_weights(); !bad.ok()) return bad;
  }
  if (Status bad = begin_warm(s_); !bad.ok()) return bad;
  s_.parameters = train::parameters_of(*s_.model);
  s_.buffers = buffers_of(*s_.model);
  auto groups = resolve_groups(s_.plan.name, training, s_.parameters);
  if (!groups.ok()) return groups.status();
  s_.groups = s_.plan.native ? std::move(*groups) : with_states(std::move(*groups), s_.plan.name.state);
  freeze(s_.groups);
  if (Status bad = share_out(s_); !bad.ok()) return bad;
  s_.optimizer = make_optimizer(s_.plan, training, s_.groups, s_.shards.get());
  s_.scaler.emplace(s_.device, training.compute_dtype);
  if (s_.fp8_plan.enabled) {
    const std::int64_t uses = s_.task->uses_of_weights() * training.gradient_accumulation_steps;
    s_.fp8 = std::make_unique<Fp8>(training.fp8, s_.parameters, uses,
                                   leads() ? Fp8::Measuring::here : Fp8::Measuring::told);
  }
  s_.gradients = make_gradients(*s_.world, s_.groups, training, training.gradient_accumulation_steps,
                                s_.shards.get(), s_.optimizer.get());
  s_.gated = s_.task->set_gate(
      [optimizer = s_.optimizer.get()](const torch::nn::Module& module) { optimizer->wait(module); });
  s_.parts.push_back(std::make_unique<ModelPart>(tensors_of(*s_.model)));
  s_.parts.push_back(std::make_unique<ScalerPart>(*s_.scaler));
  if (s_.fp8 != nullptr) s_.parts.push_back(std::make_unique<Fp8Part>(*s_.fp8));
  s_.parts.push_back(std::make_unique<OptimizerPart>(*s_.optimizer));
  return {};
}

Status Opening::load() {
  const std::int64_t ranks = s_.world->ranks();
  const std::int64_t passes = s_.settings.training.gradient_accumulation_steps;
  if (!s_.resumed_from.empty()) {
    std::vector<Stateful*> all;
    for (const auto& part : s_.parts) all.push_back(part.get());
    auto state = load_checkpoint(s_.resumed_from, all, conversion(s_));
    if (!state.ok()) return state.status();
    s_.state = *state;
    if (s_.fp8 != nullptr && !s_.fp8->anew().empty())
      s_.changes.push_back("fp8: scales and choices begin anew: " + s_.fp8->anew());
    s_.state.skipped_in_a_row = 0;  // a new start may skip ten steps again before it ends
    if (leads()) {
      if (Status bad = check_newest(given_, s_.state.step); !bad.ok()) return bad;
      if (Status bad = continue_settings(s_.resumed_from, *state, s_.settings, ranks, s_.changes, console_);
          !bad.ok())
        return bad;
    }
  } else {
    s_.state.samples = s_.stage().samples;
  }
  s_.state.first_step = first_step_;
  const bool told = s_.world->grouped() || passes != given_.training.gradient_accumulation_steps;
  s_.state.ranks = told ? ranks : 0;
  s_.state.batches_per_step = told ? passes * ranks : 0;
  auto batches = Prefetch<Batch>::start(s_.source(), s_.state.position,
                                        static_cast<int>(s_.settings.data.dataloader_num_workers));
  if (!batches.ok()) return batches.status();
  s_.batches.emplace(std::move(*batches));
  return {};
}

// Only rank 0 writes.
Status Opening::begin() {
  if (!writes_ || !leads()) return {};
  const std::string& folder = given_.output_dir;
  if (!existed_) {
    if (Status bad = s_.lock.take(folder); !bad.ok()) return bad;
    if (!list_checkpoints(folder).empty())
      return Status::failed("output_dir: another octavo train began in " + folder +
                            " meanwhile; start again to go on from its checkpoint");
  }
  // A run that has finished writes no checkpoint, which would remove what a killed process left.
  if (Status bad = remove_leftovers(folder); !bad.ok()) console_.note("warning: " + bad.message());
  auto log = RunLog::open(folder, s_.state.step);
  if (!log.ok()) return log.status();
  s_.log.emplace(std::move(*log));
  if (Status bad = s_.task->begin(folder); !bad.ok()) return bad;
  Settings saved = with_absolute_paths(given_);           // the run can be gone on with from anywhere
  saved.training.resume_from_checkpoint.changed = false;  // --resume is of this start alone
  s_.config_yaml = to_yaml(saved);
  return {};
}

}  // namespace

Result<std::unique_ptr<Session>> open_session(const Config& config, Console& console, Purpose purpose,
                                              std::unique_ptr<Task> task, std::shared_ptr<World> world) {
  if (Status bad = check_complete(config); !bad.ok()) return bad;
  for (const std::string& note : config.notes) console.note(note);
  auto session = std::make_unique<Session>();
  session->world = world != nullptr ? std::move(world) : std::shared_ptr<World>(World::alone());
  session->settings = config.settings;
  Opening opening(*session, config, console, purpose, std::move(task));
  if (Status bad = opening.run(); !bad.ok()) return bad;
  return session;
}

}  // namespace octavo::train
