// Every key of a config, its type and limits, its default and its meaning; the keys of the algorithms'
// options come from their descriptions (options.cc). A new key is a field in
// settings.h, a row here, and docs/config.md written again (OCTAVO_UPDATE_DOCS=1
// build/tests/train_config_test). Upper limits keep products of sizes within 64 bits; they are not advice.
// SPDX-License-Identifier: MIT
#include "train/config/schema.h"

#include "train/config/recipe.h"

#include <algorithm>
#include <array>
#include <limits>

namespace octavo::train {
namespace {

using M = ModelSettings;
using D = DataSettings;
using T = TrainingSettings;

using namespace recipe;

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 48;
constexpr Range kPositive{.low = 0, .above = true};
constexpr Range kNotNegative{.low = 0};
constexpr Range kFraction{.low = 0, .high = 1, .below = true};
// The keys of the algorithms' options stand before this one.
constexpr std::string_view kOptionsBefore = "training.compute_dtype";

std::vector<Key> make() {
  const auto sizes = integer(1, kMaxSize);
  const auto steps = integer(1, kMaxSteps);
  std::vector<Key> keys = {
      {"model.name", Setting{field(&M::name, choice<ModelName>({{ModelName::bdh, "bdh"}})), "bdh"},
       "which model to train"},
      {"model.n_layer", Setting{field(&M::n_layer, integer(1, 4096)), "6"}, "layers"},
      {"model.n_embd", Setting{field(&M::n_embd, sizes), "256"}, "width of the embedding"},
      {"model.n_head", Setting{field(&M::n_head, integer(1, 4096)), "4"}, "attention heads"},
      {"model.mlp_internal_dim_multiplier",
       Setting{field(&M::mlp_internal_dim_multiplier, integer(1, 65536)), "128"},
       "sparse neurons per unit of n_embd, over all heads"},
      {"model.dropout", Setting{field(&M::dropout, real(kFraction)), "0.1"},
       "probability of dropping an activation"},
      {"model.gradient_checkpointing", Setting{field(&M::gradient_checkpointing, flag()), "false"},
       "compute activations again in the backward pass instead of keeping them: slower, less memory"},

      {"data.train", Setting{field(&D::train, paths()), "null"},
       "text to train on: files, folders (all files in them) and patterns such as books/*.txt; a run needs "
       "it"},
      {"data.validation", Setting{field(&D::validation, paths()), "null"},
       "text to evaluate on; null: a part of data.train is held out for it"},
      {"data.block_size",
       Setting{field(&D::block_size, sizes), "512", {"seq_len", "context_length", "max_seq_length"}},
       "tokens (bytes) in a sequence"},
      {"data.max_samples", Setting{field(&D::max_samples, count_or_all()), "-1"},
       "train on the first so many sequences; -1: all"},
      {"data.stages", Setting{field(&D::stages, stage_sizes()), "null"},
       "progressive training: max_samples of each stage, run one after the other; max_steps are divided "
       "equally "
       "among them (the last takes the remainder), num_train_epochs are passes of each over its own samples"},
      {"data.max_eval_samples", Setting{field(&D::max_eval_samples, count_or_all()), "256"},
       "evaluate on so many sequences, evenly spread over the validation text; -1: all"},
      {"data.seed", Setting{field(&D::seed, integer(0, kAny)), "1337"}, "order of the samples"},
      {"data.dataloader_num_workers",
       Setting{field(&D::dataloader_num_workers, integer(0, 1024)), "2", {"num_workers"}},
       "threads that prepare batches; 0: the training thread itself"},

      {"training.optimizer", Setting{field(&T::optimizer, optimizer_name()), kOptimizer, {"optim"}},
       "algorithm and format of its states; the underscores may be left out"},
      {"training.use_4bit_optimizer", Switch{"training.optimizer", kWith4bit, kWithFp32},
       "another spelling of an optimizer with 4-bit states"},
      {"training.optimizer_fallback", Setting{field(&T::optimizer_fallback, optimizer_name()), "null"},
       "used, with a warning, where the optimizer cannot run; null: that is an error"},
      {"training.learning_rate", Setting{field(&T::learning_rate, real(kPositive)), "0.001", {"lr"}},
       "the highest learning rate"},
      {"training.lr_scheduler",
       Setting{field(&T::lr_scheduler,
                     choice<Scheduler>({{Scheduler::cosine, "cosine"},
                                        {Scheduler::linear, "linear"},
                                        {Scheduler::constant, "constant", "constant_with_warmup"},
                                        {Scheduler::wsd, "wsd"}})),
               "cosine",
               {"lr_scheduler_type"}},
       "course of the learning rate after warm-up; wsd is constant with a decay at the end"},
      {"training.warmup_steps", Setting{field(&T::warmup_steps, integer(0, kMaxSteps)), "0"},
       "steps over which the learning rate rises from 0"},
      {"training.decay_steps", Setting{field(&T::decay_steps, steps), "null"},
       "length of wsd's decay; null: a tenth of all steps"},
      {"training.min_lr", Setting{field(&T::min_lr, real(kNotNegative)), "0"},
       "learning rate at the end of a decay"},
      {"training.compute_dtype",
       Setting{field(&T::compute_dtype, choice<DType>({{DType::f32, "float32", "fp32"},
                                                       {DType::bf16, "bfloat16", "bf16"},
                                                       {DType::f16, "float16", "fp16"}})),
               "bfloat16"},
       "precision of the forward and backward pass; float16 scales the loss dynamically"},
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
       "what bfloat16 weights keep besides: 24 or 32 bits in all, nothing with stochastic rounding, or "
       "nothing; auto: 24"},
      {"training.per_device_train_batch_size",
       Setting{field(&T::per_device_train_batch_size, sizes), "8", {"batch_size"}},
       "sequences in a forward pass"},
      {"training.per_device_eval_batch_size", Setting{field(&T::per_device_eval_batch_size, sizes), "4"},
       "the same in evaluation"},
      {"training.gradient_accumulation_steps", Setting{field(&T::gradient_accumulation_steps, sizes), "1"},
       "forward passes per optimizer step"},
      {"training.max_grad_norm",
       Setting{field(&T::max_grad_norm, real(kNotNegative)),
               "1",
               {"grad_clip", "gradient_clipping", "gradient_clip_val"}},
       "longer gradients are scaled down to this norm; 0: never"},
      {"training.max_steps", Setting{field(&T::max_steps, steps, "-1"), "3000", {"max_iters"}},
       "optimizer steps"},
      {"training.num_train_epochs",
       Setting{field(&T::num_train_epochs, real({.low = 0, .high = 1e9, .above = true})),
               "null",
               {"num_epochs", "max_epochs"}},
       "passes over the data, instead of max_steps"},
      {"training.eval_steps", Setting{field(&T::eval_steps, steps), "200", {"test_freq"}},
       "steps between evaluations; null: only at the end"},
      {"training.save_steps", Setting{field(&T::save_steps, steps), "500", {"checkpoint_freq"}},
       "steps between checkpoints; null: only at the end"},
      {"training.save_total_limit", Setting{field(&T::save_total_limit, integer(1, kMaxSize)), "null"},
       "checkpoints to keep, the newest; null: all"},
      {"training.logging_steps", Setting{field(&T::logging_steps, steps), "10", {"log_freq"}},
       "steps between metrics"},
      {"training.sample_tokens", Setting{field(&T::sample_tokens, integer(0, kMaxSize)), "300"},
       "length of the text that the model writes at the end of a run; 0: none"},
      {"training.resume_from_checkpoint", Setting{field(&T::resume_from_checkpoint, resume_choice()), "true"},
       "true: go on from the newest checkpoint in output_dir, if any; changed (or --resume on the command "
       "line): the same, although settings or data have changed since; or a checkpoint's path"},
      {"training.num_gpus", Setting{field(&T::num_gpus, integer(1, 65536)), "1"},
       "more than 1 is not built in yet"},
      {"training.device", Setting{field(&T::device, device_name()), "auto"},
       "where to train; auto: a GPU if there is one"},
      {"training.seed", Setting{field(&T::seed, integer(0, kAny)), "1337"},
       "initial weights, dropout, stochastic rounding"},
      {"training.warmup_ratio",
       Refused{"the warm-up is given in steps: write warmup_steps, which is warmup_ratio times max_steps"},
       ""},
      {"training.betas", Refused{"each one is a key: write beta1 and beta2"}, ""},
      {"training.deepspeed", Refused{kNoDeepSpeed}, ""},
      {"training.use_fp8", Refused{kNoFp8}, ""},
      {"training.fp8_format", Refused{kNoFp8}, ""},
      {"training.fp8_amax_history_len", Refused{kNoFp8}, ""},
      {"training.fp8_amax_compute_algo", Refused{kNoFp8}, ""},
      {"training.use_4bit", Refused{kNo4bitWeights}, ""},
      {"training.quantization_type", Refused{kNo4bitWeights}, ""},
      {"training.use_double_quant", Refused{kNo4bitWeights}, ""},

      {"output_dir",
       Setting{field(&Settings::output_dir, path()), std::string_view(kAutomaticFolder), {"checkpoint_dir"}},
       "folder of the run: checkpoints, metrics, report; auto: runs/ and the name of the config file, "
       "followed by "
       "what the command line changes (runs/run, runs/run-learning_rate=3.0e-04)"},
  };
  const auto below = std::ranges::find(keys, kOptionsBefore, &Key::path);
  const std::vector<Key> options = option_keys();
  keys.insert(below, options.begin(), options.end());
  return keys;
}

}  // namespace

// What only makes a run longer, or changes what is written and where it runs. Everything else makes it
// another experiment. The data's paths are here because what is in the files counts: see data/text_files.h.
constexpr std::array<std::string_view, 20> kFree = {"model.gradient_checkpointing",
                                                    "data.train",
                                                    "data.validation",
                                                    "data.max_samples",
                                                    "data.stages",
                                                    "data.max_eval_samples",
                                                    "data.dataloader_num_workers",
                                                    "training.per_device_eval_batch_size",
                                                    "training.max_steps",
                                                    "training.num_train_epochs",
                                                    "training.eval_steps",
                                                    "training.save_steps",
                                                    "training.save_total_limit",
                                                    "training.logging_steps",
                                                    "training.sample_tokens",
                                                    "training.resume_from_checkpoint",
                                                    "training.num_gpus",
                                                    "training.device",
                                                    "training.optimizer_fallback",
                                                    "output_dir"};

bool Key::makes_another_run() const {
  return setting() != nullptr && std::ranges::find(kFree, path) == kFree.end();
}

const std::vector<Key>& schema() {
  static const std::vector<Key> table = make();
  return table;
}

std::size_t key_index(std::string_view path) {
  for (std::size_t i = 0; i < schema().size(); ++i) {
    if (schema()[i].path == path) return i;
  }
  return kNoKey;
}

}  // namespace octavo::train
