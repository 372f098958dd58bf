// SPDX-License-Identifier: MIT
#include "session.h"

#include "device.h"
#include "train/files/checkpoint_folder.h"
#include "train/files/checkpoint_names.h"
#include "train/files/safetensors.h"
#include "train/files/text_file.h"
#include "train/format/numbers.h"

#include <octavo/backend.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
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

// The same weights whatever the device: they are drawn on the CPU in fp32.
std::shared_ptr<TextModel> build_model(const Settings& settings, const torch::Device& device, bool bf16) {
  seed_random(settings.training.seed, 0, 0);
  std::shared_ptr<TextModel> model = make_model(settings.model);
  model->to(device, bf16 ? torch::kBFloat16 : torch::kFloat32);
  model->train();
  return model;
}

// The checkpoint to go on from; empty: none.
Result<std::string> find_resume(const Settings& settings, Console& console) {
  const Resume& resume = settings.training.resume_from_checkpoint;
  const std::vector<CheckpointRef> there = list_checkpoints(settings.output_dir);
  if (!resume.path.empty()) {
    const std::string key = "training.resume_from_checkpoint: ";
    if (!path_exists(resume.path)) return Status::invalid(key + resume.path + " does not exist");
    if (!list_checkpoints(resume.path).empty())
      return Status::invalid(key + resume.path + " is a run's folder; name a checkpoint in it, or use true");
    if (Status bad = verify_checkpoint(resume.path); !bad.ok())
      return Status(bad.code(), key + bad.message());
    std::error_code ignored;
    for (const CheckpointRef& each : there) {
      if (std::filesystem::equivalent(each.path, resume.path, ignored)) return resume.path;
    }
    if (there.empty()) return resume.path;
    return Status::invalid("training.resume_from_checkpoint: " + resume.path +
                           " is not of output_dir, which has checkpoints of its own (" + there[0].path +
                           "); choose another output_dir");
  }
  if (!resume.latest) {
    if (there.empty()) return std::string();
    return Status::invalid("output_dir: " + settings.output_dir + " has checkpoints already (" +
                           there[0].path +
                           "), and resume_from_checkpoint is false; resume, remove them, or choose another");
  }
  auto newest = newest_checkpoint(settings.output_dir);
  if (!newest.ok()) return newest.status();
  for (const std::string& reason : newest->skipped) console.note("warning: not resumed from " + reason);
  if (!newest->found && !newest->skipped.empty()) {
    return Status::failed("output_dir: no checkpoint in " + settings.output_dir +
                          " is whole; remove them to start from the beginning");
  }
  return newest->found ? newest->found->path : std::string();
}

// Older checkpoints of the folder are fine to go back to only once the newer ones are gone: else the next run
// would take those.
Status newest_of_all(const Settings& settings, std::int64_t step) {
  for (const CheckpointRef& each : list_checkpoints(settings.output_dir)) {
    if (each.step > step && settings.training.resume_from_checkpoint.path != "") {
      return Status::invalid("training.resume_from_checkpoint: " + each.path +
                             " is newer; remove it, or choose another output_dir");
    }
  }
  return {};
}

void note_changes(const std::string& checkpoint, const Settings& now, Console& console) {
  auto text = read_text_file(checkpoint + "/config.yaml", 1 << 20);
  if (!text.ok()) return;
  auto then = parse(*text, checkpoint + "/config.yaml");
  if (!then.ok()) return;
  for (const std::string& change : differences(then->settings, now))
    console.note("changed since the checkpoint: " + change);
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
                                  {"unigram_entropy", unigram_entropy(session.text.validation)}};
  if (!session.resumed_from.empty()) start["resumed_from"] = session.resumed_from;
  if (Status bad = session.log->write(start); !bad.ok()) console.note("warning: " + bad.message());
}

}  // namespace

Status FolderLock::take(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Status::failed("output_dir: " + folder + " cannot be made: " + error.message());
  FileDescriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) return system_error("output_dir: " + folder, "open the folder", errno);
  // Some network file systems have no locks: then nobody is known to use it.
  if (flock(opened.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Status::failed("output_dir: another octavo train is using " + folder +
                          "; wait for it, or choose another");
  }
  folder_ = std::move(opened);
  return {};
}

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
  return Sampler(text.train, settings.data.block_size, state.samples,
                 static_cast<std::uint64_t>(settings.data.seed), state.sampler_start);
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
  auto text = split_text(*settings.data.train, settings.data.validation, settings.data.block_size);
  if (!text.ok()) return text.status();
  s.text = *text;
  s.evaluation =
      evaluation_offsets(s.text.validation, settings.data.block_size, settings.data.max_eval_samples);
  auto stages =
      plan_stages(settings.data, training, sample_count(s.text.train, settings.data.block_size, -1));
  if (!stages.ok()) return stages.status();
  s.stages = *stages;
  auto resume = find_resume(settings, console);
  if (!resume.ok()) return resume.status();
  s.resumed_from = *resume;

  s.model = build_model(settings, s.device, s.plan.bf16_weights);
  s.parameters = parameters_of(*s.model);
  s.optimizer = make_optimizer(s.plan, training, s.parameters);
  s.scaler.emplace(s.device, training.compute_dtype);
  s.sums.emplace(s.parameters, training.gradient_accumulation_steps);
  if (!s.resumed_from.empty()) {
    auto state = load_checkpoint(s.resumed_from, s.parts());
    if (!state.ok()) return state.status();
    s.state = *state;
    s.state.skipped_in_a_row = 0;  // who starts it again has changed something, or wants ten more
    if (Status bad = newest_of_all(settings, s.state.step); !bad.ok()) return bad;
    note_changes(s.resumed_from, settings, console);
  }
  if (s.state.samples != s.stage().samples) {  // at first, or max_samples was changed
    s.state.samples = s.stage().samples;
    s.state.sampler_start = s.state.draws;
  }
  auto loader = BatchLoader::start(s.sampler(), training.per_device_train_batch_size, s.state.draws,
                                   static_cast<int>(settings.data.dataloader_num_workers));
  if (!loader.ok()) return loader.status();
  s.loader.emplace(std::move(*loader));

  if (Status bad = s.lock.take(settings.output_dir); !bad.ok()) return bad;
  auto log = RunLog::open(settings.output_dir, s.state.step);
  if (!log.ok()) return log.status();
  s.log.emplace(std::move(*log));
  s.config_yaml = to_yaml(settings);
  introduce(s, console);
  return session;
}

Result<LoadedModel> load_model(const std::string& run, const DeviceName& wanted) {
  LoadedModel out;
  out.checkpoint = run;
  if (!path_exists(run + "/state.json")) {
    auto newest = newest_checkpoint(run);
    if (!newest.ok()) return newest.status();
    if (!newest->found) {
      return Status::invalid(run + ": no checkpoint is there" +
                             (newest->skipped.empty() ? "" : " that is whole: " + newest->skipped[0]) +
                             "; expected a run's folder or a checkpoint's");
    }
    out.checkpoint = newest->found->path;
    out.skipped = newest->skipped;
  } else if (Status bad = verify_checkpoint(run); !bad.ok()) {
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
