// SPDX-License-Identifier: MIT
#include "session.h"

#include "device.h"
#include "resume.h"
#include "train/files/checkpoint_folder.h"
#include "train/files/checkpoint_names.h"
#include "train/files/safetensors.h"
#include "train/format/numbers.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace octavo::train {
namespace {

NamedTensors parameters_of(TextModel& model) {
  NamedTensors out;
  for (const auto& each : model.named_parameters()) out.emplace_back(each.key(), each.value());
  return out;
}

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

// Weights are drawn on the CPU in fp32, so that they are the same on every device.
std::shared_ptr<TextModel> build_model(const Settings& settings, const torch::Device& device, bool bf16) {
  seed_random(settings.training.seed, 0, 0);
  std::shared_ptr<TextModel> model = make_model(settings.model);
  model->to(device, bf16 ? torch::kBFloat16 : torch::kFloat32);
  model->train();
  return model;
}

// The files of the run's text: as the config names them, divided as the checkpoint has them.
Result<TextRecord> find_text(Session& s) {
  const DataSettings& data = s.settings.data;
  auto train = find_text_files("data.train", *data.train);
  if (!train.ok()) return train.status();
  std::optional<std::vector<std::string>> validation;
  if (data.validation) {
    auto files = find_text_files("data.validation", *data.validation);
    if (!files.ok()) return files.status();
    validation = std::move(*files);
  }
  if (s.resumed_from.empty()) return record_text(*train, validation, data.block_size);
  auto then = read_state(s.resumed_from);
  if (!then.ok()) return then.status();
  return continue_text(s.resumed_from, s.settings, then->text, *train, validation, s.changes);
}

// A division that was made for a smaller block_size may have no room for a window of this one.
Status check_windows(const Session& s) {
  const std::int64_t block_size = s.settings.data.block_size;
  const std::int64_t least = std::min(s.text.train.size(), s.text.validation.size());
  if (least > block_size) return {};
  return Status::invalid("data.block_size: got " + std::to_string(block_size) + ", but of its text " +
                         s.resumed_from + " trains on " + std::to_string(s.text.train.size()) +
                         " bytes and evaluates on " + std::to_string(s.text.validation.size()) +
                         "; use less than " + std::to_string(least));
}

void introduce(Session& session, Console& console) {
  const Settings& settings = session.settings;
  const TrainingSettings& training = settings.training;
  const std::int64_t params = elements_of(session.parameters);
  const StepOptimizer::Bytes bytes = planned_bytes(session.plan, training, session.parameters);
  OptimizerPlan fp32 = session.plan;
  fp32.name.state = StateFormat::fp32;
  const std::int64_t plain = planned_bytes(fp32, training, session.parameters).states;
  const char* dtype = training.compute_dtype == DType::bf16  ? "bfloat16"
                      : training.compute_dtype == DType::f16 ? "float16"
                                                             : "float32";
  const std::string master = session.plan.bf16_weights ? master_name(weight_store(training)) : "none";
  const std::string model(model_name(settings.model.name));
  console.note(
      model + ": " + short_count(params) + " parameters, " + bytes_text(bytes_of(session.parameters)) +
      " in " + (session.plan.bf16_weights ? "bfloat16" : "float32") +
      (bytes.master > 0 ? " + " + bytes_text(bytes.master) + " of master bits (" + master + "-bit master)"
                        : "") +
      ", computing in " + dtype + " on " + device_text(session.device));
  if (!session.plan.warning.empty()) console.note("warning: " + session.plan.warning);
  std::string states = optimizer_text(session.plan.name) + (session.plan.native ? "" : " (plain LibTorch)") +
                       ": " + fixed(static_cast<double>(bytes.states) / static_cast<double>(params), 2) +
                       " B/param, " + bytes_text(bytes.states);
  if (bytes.states < plain) states += " instead of " + bytes_text(plain);
  console.note(states);
  const Stage& last = session.stages.back();
  console.note(bytes_text(session.text.train.size()) + " of text to train on, " +
               std::to_string(last.samples) + " samples of " + std::to_string(settings.data.block_size) +
               " bytes; " + bytes_text(session.text.validation.size()) +
               (settings.data.validation ? " to evaluate on" : " held out to evaluate on"));
  if (session.stages.size() > 1) console.note(session.stage_text());
  if (!session.resumed_from.empty()) {
    console.note("going on from " + session.resumed_from + ", step " + std::to_string(session.state.step) +
                 " of " + std::to_string(session.steps()));
  }

  const std::int64_t tokens = draws_per_step(training) * settings.data.block_size;
  nlohmann::ordered_json start = {{"kind", "start"},
                                  {"step", session.state.step},
                                  {"octavo", std::string(version())},
                                  {"model", model},
                                  {"params", params},
                                  {"device", device_text(session.device)},
                                  {"optimizer", optimizer_text(session.plan.name)},
                                  {"state_bytes", bytes.states},
                                  {"fp32_state_bytes", plain},
                                  {"compute_dtype", dtype},
                                  {"master_weights", master},
                                  {"steps", session.steps()},
                                  {"batch_tokens", tokens},
                                  {"resumed_from", nullptr},
                                  {"train_bytes", session.text.train.size()},
                                  {"validation_bytes", session.text.validation.size()},
                                  {"unigram_entropy", estimated_unigram_entropy(session.text.validation)}};
  if (!session.resumed_from.empty()) start["resumed_from"] = session.resumed_from;
  Status bad = session.log->write(start);
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

Sampler Session::sampler() const {
  const std::int64_t samples = stage().samples;
  return Sampler(text.train, settings.data.block_size, samples,
                 static_cast<std::uint64_t>(settings.data.seed),
                 samples == state.samples ? state.sampler_start : state.draws);
}

MemoryByOwner Session::owners() const {
  MemoryByOwner out;
  const StepOptimizer::Bytes bytes = optimizer->bytes();
  out.params = bytes_of(parameters);
  out.grads = sums->bytes();
  out.states = bytes.states;
  out.master = bytes.master;
  out.workspace = bytes.workspace;
  return out;
}

Result<std::unique_ptr<Session>> open_session(const Config& config, Console& console) {
  if (Status bad = check_complete(config); !bad.ok()) return bad;
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
  const bool existed = path_exists(settings.output_dir);
  if (existed) {
    if (Status bad = s.lock.take(settings.output_dir); !bad.ok()) return bad;
  }
  auto resume = find_resume(settings, console);
  if (!resume.ok()) return resume.status();
  s.resumed_from = *resume;
  auto record = find_text(s);
  if (!record.ok()) return record.status();
  auto text = open_split(*record);
  if (!text.ok()) return text.status();
  s.text = *text;
  if (Status bad = check_windows(s); !bad.ok()) return bad;
  s.evaluation =
      evaluation_offsets(s.text.validation, settings.data.block_size, settings.data.max_eval_samples);
  auto stages =
      plan_stages(settings.data, training, sample_count(s.text.train, settings.data.block_size, -1));
  if (!stages.ok()) return stages.status();
  s.stages = *stages;

  s.model = build_model(settings, s.device, s.plan.bf16_weights);
  s.parameters = parameters_of(*s.model);
  s.optimizer = make_optimizer(s.plan, training, s.parameters);
  s.scaler.emplace(s.device, training.compute_dtype);
  s.sums.emplace(s.parameters, training.gradient_accumulation_steps);
  if (!s.resumed_from.empty()) {
    auto state = load_checkpoint(s.resumed_from, s.parts());
    if (!state.ok()) return state.status();
    s.state = *state;
    s.state.skipped_in_a_row = 0;  // a new start may skip ten steps again before it ends
    if (Status bad = check_newest(settings, s.state.step); !bad.ok()) return bad;
    if (Status bad = continue_settings(s.resumed_from, settings, s.changes, console); !bad.ok()) return bad;
  } else {
    s.state.samples = s.stage().samples;
  }
  s.state.text = std::move(*record);
  auto loader = BatchLoader::start(s.sampler(), training.per_device_train_batch_size, s.state.draws,
                                   static_cast<int>(settings.data.dataloader_num_workers));
  if (!loader.ok()) return loader.status();
  s.loader.emplace(std::move(*loader));

  if (!existed) {
    if (Status bad = s.lock.take(settings.output_dir); !bad.ok()) return bad;
    if (!list_checkpoints(settings.output_dir).empty())
      return Status::failed("output_dir: another octavo train began in " + settings.output_dir +
                            " meanwhile; start again to go on from its checkpoint");
  }
  auto log = RunLog::open(settings.output_dir, s.state.step);
  if (!log.ok()) return log.status();
  s.log.emplace(std::move(*log));
  Settings saved = settings;
  saved.training.resume_from_checkpoint.changed = false;  // --resume is of this start alone
  s.config_yaml = to_yaml(saved);
  introduce(s, console);
  return session;
}

// The files that a model needs. The optimizer's, the largest, is not read.
constexpr std::array<std::string_view, 3> kFilesOfAModel = {"model.safetensors", "state.json", "config.yaml"};

Result<LoadedModel> load_model(const std::string& run, const DeviceName& wanted) {
  LoadedModel out;
  out.checkpoint = run;
  if (!path_exists(run + "/state.json")) {
    auto newest = newest_checkpoint(run, kFilesOfAModel);
    if (!newest.ok()) return newest.status();
    if (!newest->found) {
      return Status::invalid(run + ": no checkpoint is there" +
                             (newest->skipped.empty() ? "" : " that is whole: " + newest->skipped[0]) +
                             "; expected a run's folder or a checkpoint's");
    }
    out.checkpoint = newest->found->path;
    out.skipped = newest->skipped;
  } else if (Status bad = verify_checkpoint(run, kFilesOfAModel); !bad.ok()) {
    return bad;
  }
  auto config = load(out.checkpoint + "/config.yaml");
  if (!config.ok()) return config.status();
  out.settings = config->settings;
  auto device = choose_device(wanted);
  if (!device.ok()) return device.status();
  out.device = *device;
  auto read = Safetensors::open(out.checkpoint + "/model.safetensors");
  if (!read.ok()) return read.status();
  const bool bf16 = !read->tensors().empty() && read->tensors()[0].dtype == "BF16";
  out.model = build_model(out.settings, out.device, bf16);
  if (Status bad = load_weights(out.checkpoint, parameters_of(*out.model)); !bad.ok()) return bad;
  out.model->eval();
  return out;
}

}  // namespace octavo::train
