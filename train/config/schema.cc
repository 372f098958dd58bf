// Defines the keys of every run: their types and limits, defaults and meanings. The keys of the algorithms'
// options are made from their descriptions (options.cc); those of a task and its models come from the task. A
// new key needs a field in settings.h, a row here and an updated docs/config.md (OCTAVO_UPDATE_DOCS=1
// build/tests/train_config_test).
// SPDX-License-Identifier: MIT
#include "train/config/schema.h"

#include "train/config/recipe.h"
#include "train/config/task_config.h"

#include <octavo/fp8.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>

namespace octavo_train {
namespace {

using F = Fp8Settings;
using R = octavo::fp8::Settings;

template <class E>
Codec<E> named(std::initializer_list<E> values) {
  std::vector<Spelling<E>> spellings;
  for (const E value : values) spellings.push_back({value, octavo::fp8::name(value)});
  return choice<E>(std::move(spellings));
}

Codec<int> small_integer(int low, int high) {
  const Codec<std::int64_t> wide = integer(low, high);
  return {wide.expected,
          [read = wide.read](const YamlNode& node) -> std::optional<int> {
            const auto value = read(node);
            return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
          },
          [](const int& value) { return std::to_string(value); }};
}

using D = DataSettings;
using T = TrainingSettings;

using namespace recipe;

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
// The keys of the algorithms' options are inserted before this key.
constexpr std::string_view kOptionsBefore = "training.no_decay";
// The FP8 keys are inserted before this key.
constexpr std::string_view kFp8Before = "training.master_weights";

// Returns the type of gradient_accumulation_steps. settle_and_check() computes the value for `auto` from
// global_batch_size.
Type accumulation_steps() {
  const Codec<std::int64_t> codec = integer(1, kMaxSize);
  const auto set = [read = codec.read](const YamlNode& node, Settings& settings) {
    const bool is_auto = is_word(node, "auto");
    const auto value = is_auto ? 1 : read(node);
    if (!value) return false;
    settings.training.gradient_accumulation_steps = *value;
    settings.training.accumulation_is_auto = is_auto;
    return true;
  };
  const auto show = [write = codec.write](const Settings& settings) {
    return settings.training.accumulation_is_auto ? std::string("auto")
                                                  : write(settings.training.gradient_accumulation_steps);
  };
  return {codec.expected + ", or auto", set, show};
}

bool has_small_states(const Settings& settings) {
  return settings.training.optimizer.state != octavo::StateFormat::fp32;
}

// Returns the type of training.deepspeed, which only stores a text to show. parse() reads the file or the
// mapping.
Type deepspeed_file() {
  const auto set = [read = text("").read](const YamlNode& node, Settings& settings) {
    std::string& shown = settings.training.deepspeed;
    const bool asks = node.kind != YamlNode::Kind::null && flag().read(node) != false;
    shown = !asks ? "null" : node.kind == YamlNode::Kind::map ? "{…}" : read(node).value_or("");
    return !shown.empty();
  };
  return {"a path or a mapping, or null", set,
          [](const Settings& settings) { return settings.training.deepspeed; }};
}

// Returns the keys below training.fp8. The core defines the names of formats, recipes and algorithms
// (octavo/fp8.h).
std::vector<Key> fp8_keys() {
  using octavo::fp8::AmaxAlgo, octavo::fp8::Format, octavo::fp8::Recipe;
  const auto formats = named({Format::hybrid, Format::e4m3, Format::e5m2});
  const auto recipes = named({Recipe::delayed, Recipe::current, Recipe::rowwise, Recipe::block});
  const auto algos = named({AmaxAlgo::max, AmaxAlgo::most_recent});
  return {
      {"training.fp8.enabled", Setting{field(&F::enabled, flag()), "false", {"use_fp8"}},
       "run the model's matmuls with weights in FP8, on GPUs that have FP8 units; see guides/fp8.md"},
      {"training.fp8.format", Setting{field(&R::format, formats), "hybrid", {"fp8_format"}},
       "formats of the numbers: hybrid: activations and weights in E4M3, gradients in E5M2; e4m3: all in "
       "E4M3; e5m2: activations and gradients in E5M2, weights in E4M3 (also activations in matmuls with "
       "gradients)"},
      {"training.fp8.recipe", Setting{field(&R::recipe, recipes), "delayed"},
       "scales: delayed: one per tensor, computed from earlier steps; current: one per tensor, computed from "
       "the tensor itself; rowwise: one per row; block: one per 128 numbers (128 x 128 for weights)"},
      {"training.fp8.amax_history_len",
       Setting{field(&R::amax_history_len, integer(1, octavo::fp8::kMaxHistory)),
               "1024",
               {"fp8_amax_history_len"}},
       "delayed: number of steps whose largest absolute values are kept"},
      {"training.fp8.amax_compute_algo",
       Setting{field(&R::amax_compute_algo, algos), "max", {"fp8_amax_compute_algo"}},
       "delayed: value that the scale is computed from: the largest in the history, or the last step's"},
      {"training.fp8.margin", Setting{field(&R::margin, small_integer(0, octavo::fp8::kMaxMargin)), "0"},
       "delayed: scales are divided by 2^margin"},
      {"training.fp8.select",
       Setting{field(&F::select,
                     choice<Fp8Select>({{Fp8Select::measure, "measure"}, {Fp8Select::always, "always"}})),
               "measure"},
       "measure: the first step times each matmul with and without FP8, and the faster one is used; always: "
       "FP8 for all matmuls whose sizes allow it"},
      {"training.fp8.fallback",
       Setting{field(&F::fallback,
                     choice<Fp8Fallback>({{Fp8Fallback::error, "error"}, {Fp8Fallback::bf16, "bf16"}})),
               "error"},
       "on a device without FP8 units: error, or bf16: a warning, and matmuls without FP8 (in compute_dtype)",
       Effect::none},
  };
}

std::vector<Key> make_general() {
  const auto sizes = integer(1, kMaxSize);
  std::vector<std::string> tasks = {kAutomaticTask};
  for (const TaskConfig& task : declared_tasks()) tasks.emplace_back(task.name);
  const auto steps = integer(1, kMaxSteps);
  const auto metric = text("a metric of the task");
  std::vector<Key> keys = {
      {"data.max_samples", Setting{field(&D::max_samples, count_or_all()), "-1"},
       "train on the first N samples only; -1: all", Effect::none},
      {"data.stages", Setting{field(&D::stages, stage_sizes()), "null"},
       "progressive training: stages that run one after the other, each with its own max_samples; max_steps "
       "are divided equally among them (the last stage takes the remainder), and num_train_epochs counts "
       "epochs over each stage's samples",
       Effect::none},
      {"data.max_eval_samples", Setting{field(&D::max_eval_samples, count_or_all()), "256"},
       "evaluate on N samples that are evenly spread over all; -1: all", Effect::none},
      {"data.seed", Setting{field(&D::seed, integer(0, kAny)), "1337"}, "seed of the order of the samples"},
      {"data.dataloader_num_workers",
       Setting{.type = field(&D::dataloader_num_workers, integer(0, 1024)),
               .fallback = "2",
               .also = {"num_workers"},
               .also_below = "training"},
       "threads that prepare batches; 0: the training thread prepares them", Effect::none},

      {"training.optimizer", Setting{field(&T::optimizer, optimizer_name()), kOptimizer, {"optim"}},
       "algorithm and format of its states; the underscores may be omitted"},
      {"training.use_4bit_optimizer", Switch{"training.optimizer", kWith8bit, kWithFp32, has_small_states},
       "applies if no optimizer is set; a set optimizer must agree (true: states of fewer than 32 bits, "
       "false: of 32 bits), otherwise it is an error"},
      {"training.optimizer_fallback", Setting{field(&T::optimizer_fallback, optimizer_name()), "null"},
       "no effect, because every optimizer runs on every device that the trainer supports; accepted for "
       "older configs, with a note",
       Effect::none},
      {"training.learning_rate", Setting{field(&T::learning_rate, real(kPositive)), "0.001", {"lr"}},
       "peak learning rate"},
      {"training.lr_scheduler",
       Setting{field(&T::lr_scheduler,
                     choice<Scheduler>({{Scheduler::cosine, "cosine"},
                                        {Scheduler::linear, "linear"},
                                        {Scheduler::constant, "constant", "constant_with_warmup"},
                                        {Scheduler::wsd, "wsd"}})),
               "cosine",
               {"lr_scheduler_type"}},
       "schedule of the learning rate after the warm-up; wsd: constant, with a decay at the end"},
      {"training.warmup_steps", Setting{field(&T::warmup_steps, integer(0, kMaxSteps)), "0"},
       "steps over which the learning rate rises from 0"},
      {"training.decay_steps", Setting{field(&T::decay_steps, steps), "null"},
       "steps of wsd's decay; null: a tenth of all steps"},
      {"training.min_lr", Setting{field(&T::min_lr, real(kNotNegative)), "0"},
       "learning rate at the end of a decay"},
      {"training.no_decay", Setting{field(&T::no_decay, no_decay_choice()), "auto"},
       "parameters without weight decay; auto: parameters with fewer than two dimensions (biases and norms)"},
      {"training.groups", Setting{field(&T::groups, parameter_groups()), "[]"},
       "groups of parameters, selected by patterns of their names (`params`), that have their own "
       "`weight_decay`, `learning_rate` (the peak; the scheduler scales all in proportion) and `state` (a "
       "format), or `freeze: true`; the first group that matches a parameter is used"},
      {"training.compute_dtype",
       Setting{field(&T::compute_dtype, choice<ComputeType>({{ComputeType::float32, "float32", "fp32"},
                                                             {ComputeType::bfloat16, "bfloat16", "bf16"},
                                                             {ComputeType::float16, "float16", "fp16"}})),
               "bfloat16"},
       "precision of the forward and backward pass; float16 uses dynamic loss scaling"},
      {"training.bf16", Switch{"training.compute_dtype", "bfloat16", "float32"},
       "the same as compute_dtype: bfloat16"},
      {"training.fp16", Switch{"training.compute_dtype", "float16", "float32"},
       "the same as compute_dtype: float16"},
      {"training.master_weights",
       Setting{field(&T::master_weights, choice<MasterWeights>({{MasterWeights::automatic, "auto"},
                                                                {MasterWeights::bits24, "24"},
                                                                {MasterWeights::bits32, "32"},
                                                                {MasterWeights::stochastic, "stochastic"},
                                                                {MasterWeights::none, "none"}})),
               "auto"},
       "master copy of bfloat16 weights: 24 or 32 bits per weight in total; stochastic: no copy, but "
       "stochastic rounding; none: no copy; auto: 24"},
      {"training.offload",
       Setting{field(&T::offload, choice<Offload>({{Offload::none, "none"},
                                                   {Offload::host, "host"},
                                                   {Offload::stream, "stream"},
                                                   {Offload::automatic, "auto"}})),
               "none"},
       "location of optimizer states and master bits: none: with the weights; host: in host memory, updated "
       "by the CPU; stream: in host memory, copied through the GPU and updated there; auto: stream for "
       "states that exceed gpu_state_budget, and none on the CPU. The results are identical in bits",
       Effect::none},
      {"training.offload_gradients", Setting{field(&T::offload_gradients, flag()), "false"},
       "gradients are copied to host memory during the backward pass and freed on the device; the gradients "
       "of several micro-batches are summed there (no effect with several ranks, which sum gradients on "
       "their devices)",
       Effect::none},
      {"training.offload_ratio", Setting{field(&T::offload_ratio, real({.low = 0, .high = 1})), "1"},
       "fraction of the states' bytes that leaves the device", Effect::none},
      {"training.gpu_state_budget", Setting{field(&T::gpu_state_budget, byte_size()), "null"},
       "bytes of states that stay on the device, instead of offload_ratio; null: only the states of small "
       "parameters stay",
       Effect::none},
      {"training.per_device_train_batch_size",
       Setting{field(&T::per_device_train_batch_size, batch_rows()), "8", {"batch_size"}},
       "samples in a micro-batch; auto: only the task's own limits of a batch apply"},
      {"training.per_device_eval_batch_size", Setting{field(&T::per_device_eval_batch_size, sizes), "4"},
       "samples in a batch of an evaluation", Effect::none},
      {"training.gradient_accumulation_steps", Setting{accumulation_steps(), "1"},
       "micro-batches of a rank per optimizer step; auto (the default if global_batch_size is given): "
       "computed from global_batch_size"},
      {"training.global_batch_size", Setting{field(&T::global_batch_size, sizes), "null"},
       "samples per optimizer step: per_device_train_batch_size x gradient_accumulation_steps x ranks; null: "
       "computed from these"},
      {"training.max_grad_norm",
       Setting{field(&T::max_grad_norm, real(kNotNegative)),
               "1",
               {"grad_clip", "gradient_clipping", "gradient_clip_val"}},
       "gradients with a larger norm are scaled down to this norm; 0: no clipping"},
      {"training.max_steps", Setting{field(&T::max_steps, steps, "-1"), "3000", {"max_iters"}},
       "number of optimizer steps", Effect::none},
      {"training.num_train_epochs",
       Setting{field(&T::num_train_epochs, real({.low = 0, .high = 1e9, .above = true})),
               "null",
               {"num_epochs", "max_epochs"}},
       "epochs over the data, instead of max_steps", Effect::none},
      {"training.eval_steps", Setting{field(&T::eval_steps, steps), "200", {"test_freq"}},
       "steps between evaluations; null: only at the end", Effect::none},
      {"training.save_steps", Setting{field(&T::save_steps, steps), "500", {"checkpoint_freq"}},
       "steps between checkpoints; null: only at the end", Effect::none},
      {"training.save_total_limit", Setting{field(&T::save_total_limit, integer(1, kMaxSize)), "null"},
       "number of newest checkpoints to keep; null: all", Effect::none},
      {"training.save_best", Setting{field(&T::save_best, metric), "null"},
       "also keep the best checkpoints by this metric, and save one after each evaluation that is among the "
       "best; each metric defines whether lower or higher is better",
       Effect::none},
      {"training.save_best_limit", Setting{field(&T::save_best_limit, integer(1, kMaxSize)), "1"},
       "number of best checkpoints to keep", Effect::none},
      {"training.logging_steps", Setting{field(&T::logging_steps, steps), "10", {"log_freq"}},
       "steps between logged metrics", Effect::none},
      {"training.resume_from_checkpoint", Setting{field(&T::resume_from_checkpoint, resume_choice()), "true"},
       "true: resume from the newest checkpoint in output_dir, if any; allow_changes (formerly `changed`; "
       "`--resume` on the command line): the same, but the checkpoint must exist, and settings or data may "
       "have changed since; false: start from the beginning; or the path of a checkpoint to resume from",
       Effect::none},
      {"training.init_from", Setting{field(&T::init_from, path()), "null"},
       "initial weights, by name, instead of random ones: a run's folder, a checkpoint's folder, or a "
       "safetensors file; not read if the run resumes from its own checkpoint"},
      {"training.init_rename", Setting{field(&T::init_rename, renames()), "{}"},
       "patterns of names in init_from, and the names in the model; * matches any text, and the first "
       "pattern that matches is used"},
      {"training.init_strict", Setting{field(&T::init_strict, flag()), "true"},
       "true: weights that only the model or only init_from has are errors; false: weights that init_from "
       "lacks are initialised as usual, and weights that the model lacks are skipped",
       Effect::none},
      {"training.convert_states", Setting{field(&T::convert_states, flag()), "false"},
       "convert the optimizer states and weights of a checkpoint with another state format, master copy or "
       "precision; false: such a checkpoint is an error",
       Effect::none},
      {"training.num_gpus", Setting{field(&T::num_gpus, integer(1, 65536)), "null"},
       "ranks on this machine, each with its own GPU (with device: cpu: at most one rank per logical "
       "processor); null: the ranks that torchrun or Slurm has started, else one",
       Effect::none},
      {"training.parallel",
       Setting{field(&T::parallel, choice<Parallel>({{Parallel::automatic, "auto"},
                                                     {Parallel::ddp, "ddp"},
                                                     {Parallel::zero1, "zero1"},
                                                     {Parallel::zero2, "zero2"}})),
               "auto"},
       "part of the optimizer that each rank has: ddp: all of it; zero1: a part of the states and master "
       "copies; zero2: also only that part of the gradients; auto: ddp",
       Effect::none},
      {"training.reduce_dtype",
       Setting{field(&T::reduce_dtype, choice<ReduceType>({{ReduceType::automatic, "auto"},
                                                           {ReduceType::float32, "float32", "fp32"}})),
               "auto"},
       "type in which gradients are summed over ranks; auto: their own type, or float32 if a step has "
       "several micro-batches",
       Effect::none},
      {"training.rank_timeout", Setting{field(&T::rank_timeout, real({.low = 1, .high = 1e6})), "600"},
       "seconds that ranks wait for another rank, at the start and later; then that rank is considered "
       "hanging, and the run ends; a save may take longer",
       Effect::none},
      {"training.deepspeed", Setting{.type = deepspeed_file(), .fallback = "null", .not_saved = true},
       "a config file of DeepSpeed (JSON), or its keys as a mapping: they set the keys of this page, and a "
       "different value given here is an error; docs/guides/ranks.md lists the supported keys",
       Effect::none},
      {"training.device", Setting{field(&T::device, device_name()), "auto"},
       "device to train on; auto: a GPU if there is one", Effect::none},
      {"training.seed", Setting{field(&T::seed, integer(0, kAny)), "1337"},
       "seed of initial weights, dropout and stochastic rounding"},
      {"training.warmup_ratio",
       Refused{"the warm-up is given in steps: write warmup_steps, which is warmup_ratio times max_steps"},
       ""},
      {"training.betas", Refused{"each beta has its own key: write beta1 and beta2"}, ""},
      {"training.zero_optimization", Refused{kDeepSpeedSection}, ""},
      {"training.train_batch_size", Refused{kDeepSpeedSize}, ""},
      {"training.train_micro_batch_size_per_gpu", Refused{kDeepSpeedSize}, ""},
      {"training.offload_optimizer",
       Refused{"the key for states in host memory is offload: write offload: host or offload: stream"}, ""},
      {"training.use_4bit", Refused{kNo4bitWeights}, ""},
      {"training.quantization_type", Refused{kNo4bitWeights, "training.use_4bit"}, ""},
      {"training.use_double_quant", Refused{kNo4bitWeights, "training.use_4bit"}, ""},

      {"task", Setting{field(&Settings::task, word(std::move(tasks))), std::string_view(kAutomaticTask)},
       "what to train; auto: the task that model.name belongs to", Effect::none},
      {"output_dir",
       Setting{
           field(&Settings::output_dir, new_path()), std::string_view(kAutomaticFolder), {"checkpoint_dir"}},
       "folder of the run: checkpoints, metrics, report; auto: runs/ and the name of the config file, "
       "followed by the changes of the command line (runs/run, runs/run-learning_rate=3.0e-04)",
       Effect::none},
  };
  const auto below_types = std::ranges::find(keys, kFp8Before, &Key::path);
  const std::vector<Key> fp8 = fp8_keys();
  keys.insert(below_types, fp8.begin(), fp8.end());
  const auto below = std::ranges::find(keys, kOptionsBefore, &Key::path);
  const std::vector<Key> options = option_keys();
  keys.insert(below, options.begin(), options.end());
  return keys;
}

std::vector<Key> make_whole(const TaskConfig& task) {
  const std::vector<Key> general = general_keys(), own = task.keys();
  std::vector<Key> out;
  const auto add = [&](const std::vector<Key>& keys, std::string_view section) {
    std::ranges::copy_if(keys, std::back_inserter(out),
                         [&](const Key& key) { return key.section() == section; });
  };
  std::vector<std::string_view> sections = {"model", "data", "training"};
  for (const Key& key : own)
    if (!key.section().empty() && std::ranges::find(sections, key.section()) == sections.end())
      sections.push_back(key.section());
  sections.emplace_back();  // keys without a section come last
  for (const std::string_view section : sections) {
    const bool general_first = section == "training";
    add(general_first ? general : own, section);
    add(general_first ? own : general, section);
  }
  return out;
}

}  // namespace

std::vector<Key> general_keys() {
  static const std::vector<Key> table = make_general();
  return table;
}

const Schema& schema_of(const TaskConfig& task) {
  static const auto* const all = [] {
    auto* out = new std::map<std::string_view, Schema>();  // never freed
    for (const TaskConfig& each : declared_tasks()) out->emplace(each.name, Schema(make_whole(each)));
    return out;
  }();
  return all->at(task.name);
}

const Schema& schema_of(const Settings& settings) {
  const TaskConfig* const task = find_task(settings.task);
  return schema_of(task == nullptr ? declared_tasks().front() : *task);
}

std::size_t Schema::index(std::string_view path) const {
  const auto found = std::ranges::find(keys_, path, &Key::path);
  return found == keys_.end() ? kNoKey : static_cast<std::size_t>(found - keys_.begin());
}

const Setting* Schema::setting(std::string_view path) const {
  const std::size_t at = index(path);
  return at == kNoKey ? nullptr : keys_[at].setting();
}

Status set_value(const Key& key, std::string_view yaml, Settings& settings) {
  ASSIGN_OR_RETURN(const auto value, read_yaml(yaml, {"schema", false}));
  if (key.setting() != nullptr && key.setting()->type.set(value, settings)) return {};
  return failed_error("schema: {} does not accept {}", key.path, yaml);
}

const TaskConfig* find_task(std::string_view name) {
  const auto tasks = declared_tasks();
  const auto found = std::ranges::find(tasks, name, &TaskConfig::name);
  return found == tasks.end() ? nullptr : &*found;
}

}  // namespace octavo_train
