// Tests the meaning of a config: defaults, flat and nested keys, other spellings, overrides, origins, and
// writing it as text.
// SPDX-License-Identifier: MIT
#include "train/config/config.h"
#include "tests/train/config_support.h"

#include "train/base/edit_distance.h"
#include "train/config/lookup.h"
#include "train/config/options.h"
#include "train/config/settings.h"
#include "train/config/task_config.h"
#include "train/tasks/text/settings.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

namespace octavo_train {
namespace {

const Schema& schema = schema_of(declared_tasks().front());

constexpr std::string_view kGuide = R"(
model:    {name: bdh, n_layer: 8, n_embd: 384, n_head: 6, mlp_internal_dim_multiplier: 64, dropout: 0.2, gradient_checkpointing: true}
data:     {train: corpus.txt, validation: null, block_size: 256, max_samples: -1, seed: 7, dataloader_num_workers: 3}
training:
  optimizer: adamw_4bit        # a comment
  learning_rate: 1.5e-3
  weight_decay: 0.05
  compute_dtype: bfloat16
  master_weights: 32
  per_device_train_batch_size: 16
  per_device_eval_batch_size: 2
  gradient_accumulation_steps: 4
  max_grad_norm: 0.5
  max_steps: 100
  eval_steps: 20
  save_steps: 50
  resume_from_checkpoint: runs/a/checkpoint-50
  optimizer_fallback: adamw
  num_gpus: 1
  device: cuda:1
output_dir: runs/shakespeare
)";

Settings settings_of(std::string_view text) { return parsed(text).settings; }

TEST(Config, NestedFileSetsEveryKeyItNames) {
  const Settings s = parsed(kGuide).settings;
  EXPECT_EQ(s.task_settings.get<BdhSettings>().n_layer, 8);
  EXPECT_EQ(s.task_settings.get<BdhSettings>().n_embd, 384);
  EXPECT_EQ(s.task_settings.get<BdhSettings>().n_head, 6);
  EXPECT_EQ(s.task_settings.get<BdhSettings>().mlp_internal_dim_multiplier, 64);
  EXPECT_EQ(s.task_settings.get<BdhSettings>().dropout, 0.2);
  EXPECT_TRUE(s.task_settings.get<BdhSettings>().gradient_checkpointing);
  EXPECT_EQ(s.task_settings.get<TextSettings>().train, std::vector<std::string>{"corpus.txt"});
  EXPECT_EQ(s.task_settings.get<TextSettings>().validation, std::nullopt);
  EXPECT_EQ(s.task_settings.get<TextSettings>().block_size, 256);
  EXPECT_EQ(s.data.max_samples, -1);
  EXPECT_EQ(s.data.seed, 7);
  EXPECT_EQ(s.data.dataloader_num_workers, 3);
  const OptimizerName four_bits{octavo::Algorithm::adamw, octavo::StateFormat::int4};
  EXPECT_EQ(s.training.optimizer, four_bits);
  EXPECT_EQ(s.training.learning_rate, 1.5e-3);
  EXPECT_EQ(s.training.options.at("weight_decay"), 0.05);
  EXPECT_EQ(s.training.compute_dtype, ComputeType::bfloat16);
  EXPECT_EQ(weight_store(s.training), octavo::WeightStore::residual16);
  EXPECT_EQ(s.training.per_device_train_batch_size, 16);
  EXPECT_EQ(s.training.per_device_eval_batch_size, 2);
  EXPECT_EQ(s.training.gradient_accumulation_steps, 4);
  EXPECT_EQ(s.training.max_grad_norm, 0.5);
  EXPECT_EQ(s.training.max_steps, 100);
  EXPECT_EQ(s.training.num_train_epochs, std::nullopt);
  EXPECT_EQ(s.training.eval_steps, 20);
  EXPECT_EQ(s.training.save_steps, 50);
  EXPECT_EQ(s.training.resume_from_checkpoint, (Resume{false, "runs/a/checkpoint-50"}));
  EXPECT_EQ(s.training.optimizer_fallback,
            (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::fp32}));
  EXPECT_EQ(s.training.device, (DeviceName{DeviceName::Kind::cuda, 1}));
  EXPECT_EQ(s.output_dir, "runs/shakespeare");
}

TEST(Config, EmptyFileIsTheDefaults) {
  for (const std::string_view text : {"", "# nothing\n", "---\n", "training:\nmodel: {}\n", "null"}) {
    const Config config = parsed(text);
    for (std::size_t i = 0; i < schema.size(); ++i) {
      const Setting* setting = schema[i].setting();
      if (setting == nullptr) continue;
      // A default is written as it is printed, so that docs and --print-config agree.
      if (schema[i].path == "task") {
        EXPECT_EQ(config.settings.task, "text");
        continue;
      }
      EXPECT_EQ(setting->type.show(config.settings), setting->fallback) << schema[i].path;
      EXPECT_EQ(config.origins[i].text(), "default") << schema[i].path;
    }
  }
}

TEST(Config, FlatAndUpperCaseAndDottedKeysAreTheNestedOnes) {
  const std::string nested = to_yaml(parsed("training: {learning_rate: 3e-4}\nmodel: {n_layer: 2}").settings);
  EXPECT_EQ(to_yaml(parsed("learning_rate: 3e-4\nn_layer: 2").settings), nested);
  EXPECT_EQ(to_yaml(parsed("LEARNING_RATE: 3e-4\nN_LAYER: 2").settings), nested);
  EXPECT_EQ(to_yaml(parsed("training.learning_rate: 3e-4\nmodel.N_LAYER: 2").settings), nested);
  EXPECT_EQ(to_yaml(parsed("TRAINING: {LEARNING_RATE: 0.0003}\nmodel: {n_layer: 2}").settings), nested);
}

TEST(Config, BytesHaveUnits) {
  const std::pair<const char*, std::int64_t> all[] = {{"0", 0},
                                                      {"123", 123},
                                                      {"8 GB", 8'000'000'000},
                                                      {"1.5GB", 1'500'000'000},
                                                      {"\"2 MiB\"", 2 << 20},
                                                      {"1e3 kB", 1'000'000}};
  for (const auto& [text, bytes] : all) {
    const TrainingSettings training = training_of(std::string("offload: stream\ngpu_state_budget: ") + text);
    EXPECT_EQ(training.offload, Offload::stream);
    EXPECT_EQ(training.gpu_state_budget, bytes) << text;
  }
}

TEST(Config, TheOtherGuidesFlatSpellings) {
  const Config config = parsed(
      "USE_4BIT_OPTIMIZER: true\nCOMPUTE_DTYPE: \"float16\"\nUSE_FP8: false\nBATCH_SIZE: 3\n"
      "MAX_ITERS: 9\nLOG_FREQ: 1\nTEST_FREQ: 2\nCHECKPOINT_FREQ: 4\nCHECKPOINT_DIR: here\nBLOCK_SIZE: 64\n");
  const TrainingSettings& training = config.settings.training;
  EXPECT_EQ(training.optimizer, (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::int8}));
  EXPECT_EQ(config.origin("training.optimizer").text(), "run.yaml:1 (use_4bit_optimizer)");
  EXPECT_EQ(training.compute_dtype, ComputeType::float16);
  EXPECT_EQ(training.per_device_train_batch_size, 3);
  EXPECT_EQ(training.max_steps, 9);
  EXPECT_EQ(training.logging_steps, 1);
  EXPECT_EQ(training.eval_steps, 2);
  EXPECT_EQ(training.save_steps, 4);
  EXPECT_EQ(config.settings.output_dir, "here");
  EXPECT_EQ(config.settings.task_settings.get<TextSettings>().block_size, 64);
  EXPECT_EQ(training_of("use_4bit_optimizer: yes").optimizer.state, octavo::StateFormat::int8);
  EXPECT_EQ(training_of("use_4bit_optimizer: false").optimizer.state, octavo::StateFormat::fp32);
}

TEST(Config, KeysOfOtherTrainers) {
  const Settings s =
      parsed(
          "{optim: adamw_torch, lr: 2e-4, lr_scheduler_type: constant_with_warmup, adam_beta1: 0.8, "
          "adam_beta2: 0.95, adam_epsilon: 1e-6, gradient_clip_val: 0.5, num_epochs: 2, num_workers: 5, "
          "seq_len: 128}")
          .settings;
  EXPECT_EQ(s.training.optimizer, (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::fp32}));
  EXPECT_EQ(s.training.learning_rate, 2e-4);
  EXPECT_EQ(s.training.lr_scheduler, Scheduler::constant);
  EXPECT_EQ(s.training.options.at("beta1"), 0.8);
  EXPECT_EQ(s.training.options.at("beta2"), 0.95);
  EXPECT_EQ(s.training.options.at("eps"), 1e-6);
  EXPECT_EQ(s.training.max_grad_norm, 0.5);
  EXPECT_EQ(s.training.num_train_epochs, 2);
  EXPECT_EQ(s.data.dataloader_num_workers, 5);
  EXPECT_EQ(s.task_settings.get<TextSettings>().block_size, 128);
}

TEST(Config, OptimizerNamesInBothSpellings) {
  const auto name_of = [](const std::string& text) { return training_of("optimizer: " + text).optimizer; };
  for (const octavo::Algorithm algorithm : octavo::all_algorithms()) {
    const std::string base(name(algorithm));
    EXPECT_EQ(name_of(base), (OptimizerName{algorithm, octavo::StateFormat::fp32}));
    EXPECT_EQ(name_of(base + "_32bit"), (OptimizerName{algorithm, octavo::StateFormat::fp32}));
    for (const octavo::StateFormat format : octavo::all_state_formats()) {
      const OptimizerName expected{algorithm, format};
      EXPECT_EQ(name_of(base + "_" + std::string(name(format))), expected);
      EXPECT_EQ(name_of(base + std::string(name(format))), expected);
    }
  }
  EXPECT_EQ(name_of("AdamW8bit"), (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::int8}));
  EXPECT_EQ(name_of("adamw_fp8_e5m2"),
            (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::fp8_e5m2}));
  EXPECT_EQ(name_of("adam_4bit_rank1"),
            (OptimizerName{octavo::Algorithm::adam, octavo::StateFormat::int4_rank1}));
  EXPECT_EQ(name_of("adamw_4bit_8bit"),
            (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::int4_int8}));
  for (const char* text : {"8bit_adamw", "adamw_bnb_8bit", "adamw_torch_8bit"})
    EXPECT_EQ(name_of(text), (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::int8})) << text;
  for (const char* text : {"adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_hf"})
    EXPECT_EQ(name_of(text), (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::fp32})) << text;
  EXPECT_EQ(name_of("4bit-rank1-adam"),
            (OptimizerName{octavo::Algorithm::adam, octavo::StateFormat::int4_rank1}));
  // Every described algorithm, in the spellings of transformers and bitsandbytes.
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    const std::string base(info.name);
    EXPECT_EQ(name_of(base + "_bnb_8bit"), (OptimizerName{info.number, octavo::StateFormat::int8})) << base;
    EXPECT_EQ(name_of(std::string(info.title) + "8bit"),
              (OptimizerName{info.number, octavo::StateFormat::int8}));
    EXPECT_EQ(name_of(std::string(info.title) + "32bit"),
              (OptimizerName{info.number, octavo::StateFormat::fp32}));
  }
}

// Paged classes of bitsandbytes mean offload="auto", as in the Python package.
TEST(Config, PagedOptimizersAreOffloaded) {
  const Config config = parsed("optim: paged_adamw_8bit");
  EXPECT_EQ(config.settings.training.optimizer,
            (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::int8}));
  EXPECT_EQ(config.settings.training.offload, Offload::automatic);
  EXPECT_EQ(config.origin("training.offload").text(), "run.yaml:1 (optimizer)");
  EXPECT_THAT(config.notes, testing::ElementsAre(
                                "run.yaml:1:1: paged_adamw_8bit is optimizer: adamw_8bit with offload: auto "
                                "(states in host memory); offload: none keeps them on the GPU"));
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    for (const auto& [suffix, state] :
         {std::pair("", octavo::StateFormat::fp32), std::pair("_32bit", octavo::StateFormat::fp32),
          std::pair("_8bit", octavo::StateFormat::int8)}) {
      const OptimizerName expected{info.number, state};
      EXPECT_EQ(training_of("optimizer: paged_" + std::string(info.name) + suffix).optimizer, expected);
      EXPECT_EQ(training_of("optimizer: Paged" + std::string(info.title) + suffix).optimizer, expected);
    }
  }
  // An explicit `offload` key takes precedence.
  EXPECT_EQ(training_of("{optimizer: paged_lion_32bit, offload: none}").offload, Offload::none);
  EXPECT_TRUE(parsed("{optimizer: paged_lion_32bit, offload: host}").notes.empty());
  EXPECT_EQ(training_of("optimizer: paged_lion", {"offload=none"}).offload, Offload::none);
  EXPECT_EQ(training_of("optimizer: paged_lion", {"optimizer=lion"}).offload, Offload::none);
  EXPECT_EQ(training_of("optimizer: lion", {"optimizer=paged_lion"}).offload, Offload::automatic);
}

double value_of(const TrainingSettings& training, std::string_view option) {
  const octavo::Algorithm algorithm = training.optimizer.algorithm;
  const octavo::Option* const found = find_option(algorithm, option);
  return found == nullptr ? -1.0 : option_value(training, algorithm, *found);
}

TEST(Config, OptionsAreGivenOrTheTrainersOrTheAlgorithms) {
  EXPECT_EQ(value_of(training_of("optimizer: lion"), "beta2"), 0.99);
  EXPECT_EQ(value_of(training_of("optimizer: adamw"), "beta2"), 0.999);
  EXPECT_EQ(value_of(training_of("{optimizer: lion, beta2: 0.95}"), "beta2"), 0.95);
  EXPECT_EQ(value_of(training_of("{optimizer: lion, beta2: null}"), "beta2"), 0.99);
  EXPECT_EQ(value_of(training_of("{optimizer: lion, beta1: null}"), "beta1"), 0.9);
  EXPECT_EQ(value_of(training_of("optimizer: sgd"), "lr"), 1e-3);
  // The defaults of the trainer's own recipes.
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    const TrainingSettings t = training_of("optimizer: " + std::string(info.name));
    if (find_option(info.number, "weight_decay") != nullptr) {
      EXPECT_EQ(value_of(t, "weight_decay"), 0.1);
    }
  }
  EXPECT_EQ(value_of(training_of("optimizer: sgd"), "momentum"), 0.9);
  EXPECT_EQ(value_of(training_of("{optimizer: sgd, momentum: 0}"), "momentum"), 0.0);
  EXPECT_EQ(value_of(training_of("{optimizer: adamw, amsgrad: true}"), "amsgrad"), 1.0);
  EXPECT_EQ(value_of(training_of("optimizer: adamw"), "amsgrad"), 0.0);

  const TrainingSettings nesterov = training_of("{optimizer: sgd, nesterov: yes, momentum: 0.5}");
  EXPECT_TRUE(hyper_params(nesterov, octavo::Algorithm::sgd).nesterov);
  EXPECT_EQ(hyper_params(nesterov, octavo::Algorithm::sgd).momentum, 0.5);
  EXPECT_EQ(slots(octavo::Algorithm::sgd, group_config(nesterov, octavo::Algorithm::sgd).switches).size(),
            1u);
  EXPECT_EQ(group_config(training_of("{optimizer: sgd, momentum: 0}"), octavo::Algorithm::sgd).switches, 0u);
  EXPECT_EQ(group_config(training_of("{optimizer: adam, amsgrad: on}"), octavo::Algorithm::adam).switches,
            1u);
}

// For every algorithm, every option's key sets the value in the formula, and is written and read back.
TEST(Config, EveryOptionOfEveryAlgorithmIsAKey) {
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    for (const octavo::Option& option : info.options) {
      if (option.name == "lr") continue;
      const bool flag = option.range == octavo::Range::flag;
      const double value = flag ? 1.0 - option.value : 0.25;
      const std::string text = option_text(option, value);
      std::string yaml =
          "{optimizer: " + std::string(info.name) + ", " + std::string(option.name) + ": " + text;
      if (option.name == "nesterov") yaml += ", momentum: 0.5";
      if (option.name == "dampening") yaml += ", nesterov: false";
      SCOPED_TRACE(yaml);
      const Settings s = parsed(yaml + "}").settings;
      EXPECT_EQ(option_value(s.training, info.number, option), value);
      if (option.at >= 0) {
        EXPECT_EQ(get(hyper_params(s.training, info.number), option), value);
      }
      const bool on = option.switches;
      const int bit = octavo::switch_bit(info.number, option.name);
      EXPECT_EQ(bit >= 0, on);
      if (on) {
        EXPECT_EQ((group_config(s.training, info.number).switches >> bit) & 1U, 1u);
      }
      const std::string written = to_yaml(s);
      EXPECT_THAT(written, HasSubstr("  " + std::string(option.name) + ": " + text + "\n"));
      EXPECT_EQ(to_yaml(parsed(written).settings), written);
    }
  }
}

TEST(Config, OptionsOfAnotherOptimizer) {
  // Values equal to a key's default request nothing, because configs saved with a run contain every key.
  EXPECT_EQ(value_of(training_of("{optimizer: sgd, beta1: 0.9, beta2: null, eps: 1e-8}"), "momentum"), 0.9);
  EXPECT_EQ(to_yaml(settings_of("{optimizer: sgd}")), to_yaml(settings_of("{optimizer: sgd, beta1: 0.9}")));
  // The command line names another optimizer, so the file's options for the first one are dropped.
  const Config dropped = parsed("{optimizer: adamw, beta1: 0.8, amsgrad: true}", {"optimizer=sgd"});
  EXPECT_EQ(dropped.settings.training.options.at("beta1"), 0.9);
  EXPECT_FALSE(dropped.settings.training.options.contains("amsgrad"));
  EXPECT_EQ(dropped.origin("training.beta1").text(), "default");
  // Configs of earlier versions may have options of optimizer_fallback, which is without effect.
  const Config old = parsed("{optimizer: lion_8bit, optimizer_fallback: adamw, eps: 1e-6}");
  EXPECT_THAT(old.notes,
              ::testing::ElementsAre(HasSubstr(
                  "run.yaml:1:24: training.optimizer_fallback: without effect: every optimizer runs on every "
                  "device that the trainer supports; remove it")));
  EXPECT_THAT(parsed("optimizer_fallback: null").notes, ::testing::IsEmpty());
  const TrainingSettings& t = old.settings.training;
  EXPECT_EQ(hyper_params(t, octavo::Algorithm::adamw).eps, 1e-6);
  EXPECT_EQ(hyper_params(t, octavo::Algorithm::adamw).beta2, 0.999);
  EXPECT_EQ(hyper_params(t, octavo::Algorithm::lion).beta2, 0.99);
}

TEST(Config, SpellingsOfComputeDtype) {
  const auto dtype = [](std::string_view text, const Words& words = {}) {
    return training_of(text, words).compute_dtype;
  };
  EXPECT_EQ(dtype("bf16: true"), ComputeType::bfloat16);
  EXPECT_EQ(dtype("fp16: true"), ComputeType::float16);
  EXPECT_EQ(dtype("bf16: false"), ComputeType::float32);  // the default is bfloat16
  EXPECT_EQ(dtype("fp16: false"), ComputeType::bfloat16);
  EXPECT_EQ(dtype("{bf16: false, fp16: false}"), ComputeType::float32);
  EXPECT_EQ(dtype("{bf16: false, fp16: true}"), ComputeType::float16);
  EXPECT_EQ(dtype("{bf16: true, fp16: false, compute_dtype: bf16}"), ComputeType::bfloat16);
  EXPECT_EQ(dtype("{bf16: false, compute_dtype: float16}"), ComputeType::float16);
  // The command line overrides any spelling in the file.
  EXPECT_EQ(dtype("bf16: true", {"compute_dtype=float16"}), ComputeType::float16);
  EXPECT_EQ(dtype("compute_dtype: float16", {"bf16=true"}), ComputeType::bfloat16);
  EXPECT_EQ(dtype("compute_dtype: float16", {"fp16=false"}), ComputeType::float32);
  EXPECT_EQ(dtype("fp16: true", {"bf16=false"}), ComputeType::float16);
}

TEST(Config, MasterWeights) {
  const auto store = [](std::string_view text) { return weight_store(training_of(text)); };
  EXPECT_EQ(store("compute_dtype: bfloat16"), octavo::WeightStore::residual8);
  EXPECT_EQ(store("master_weights: 24"), octavo::WeightStore::residual8);
  EXPECT_EQ(store("master_weights: \"32\""), octavo::WeightStore::residual16);
  EXPECT_EQ(store("master_weights: stochastic"), octavo::WeightStore::stochastic);
  EXPECT_EQ(store("master_weights: none"), octavo::WeightStore::nearest);
  EXPECT_EQ(store("compute_dtype: float32"), octavo::WeightStore::nearest);
  EXPECT_EQ(store("{compute_dtype: float16, master_weights: none}"), octavo::WeightStore::nearest);
}

TEST(Config, Bfloat16IsSlowBeforeAmpere) {
  const auto text = [](ComputeType type, int major, int minor) {
    return slow_type_text(type, "a card", major, minor);
  };
  EXPECT_EQ(text(ComputeType::bfloat16, 7, 5),
            "compute_dtype: bfloat16 is slow on a card (compute capability 7.5), whose tensor cores support "
            "float16 and not bfloat16; use compute_dtype=float16");
  EXPECT_EQ(text(ComputeType::bfloat16, 8, 0), "");
  for (const int major : {7, 8, 9, 12})
    EXPECT_EQ(text(ComputeType::bfloat16, major, 0).empty(), has_bfloat16_units(major)) << major;
  EXPECT_FALSE(has_bfloat16_units(7));
  EXPECT_EQ(text(ComputeType::float16, 7, 0), "");
  EXPECT_EQ(text(ComputeType::float32, 7, 0), "");
}

TEST(Config, DevicesStagesPathsAndResume) {
  using Kind = DeviceName::Kind;
  const auto device = [](const std::string& text) { return training_of("device: " + text).device; };
  EXPECT_EQ(device("auto"), (DeviceName{Kind::automatic, {}}));
  EXPECT_EQ(device("cpu"), (DeviceName{Kind::cpu, {}}));
  EXPECT_EQ(device("cuda"), (DeviceName{Kind::cuda, {}}));
  EXPECT_EQ(device("cuda:0"), (DeviceName{Kind::cuda, 0}));
  EXPECT_EQ(parsed("data: {stages: [100000, 500000, -1]}").settings.data.stages,
            (std::vector<std::int64_t>{100000, 500000, -1}));
  EXPECT_EQ(parsed("train: [a.txt, 'b c.txt']").settings.task_settings.get<TextSettings>().train,
            (std::vector<std::string>{"a.txt", "b c.txt"}));
  EXPECT_EQ(training_of("resume_from_checkpoint: true").resume_from_checkpoint, (Resume{true, ""}));
  EXPECT_EQ(training_of("resume_from_checkpoint: no").resume_from_checkpoint, (Resume{false, ""}));
  EXPECT_EQ(training_of("resume_from_checkpoint: 'no'").resume_from_checkpoint, (Resume{false, "no"}));
  // `changed` is the former name of allow_changes. In quotes, both are paths.
  for (const std::string name : {"allow_changes", "changed"}) {
    const Config config = parsed("resume_from_checkpoint: " + name);
    EXPECT_EQ(config.settings.training.resume_from_checkpoint, (Resume{true, "", true}));
    EXPECT_EQ(config.value("training.resume_from_checkpoint"), "allow_changes");
    EXPECT_THAT(to_table(config), ::testing::ContainsRegex("resume_from_checkpoint +allow_changes "));
    EXPECT_EQ(training_of("resume_from_checkpoint: '" + name + "'").resume_from_checkpoint,
              (Resume{false, name}));
  }
}

TEST(Config, StepsOrEpochs) {
  EXPECT_EQ(training_of("num_train_epochs: 2").max_steps, std::nullopt);
  EXPECT_EQ(training_of("{max_steps: -1, num_train_epochs: 2.5}").num_train_epochs, 2.5);
  EXPECT_EQ(training_of("max_steps: 5", {"num_train_epochs=2"}).max_steps, std::nullopt);
  const Config config = parsed("num_train_epochs: 5", {"max_steps=7"});
  EXPECT_EQ(config.settings.training.max_steps, 7);
  EXPECT_EQ(config.settings.training.num_train_epochs, std::nullopt);
  EXPECT_EQ(config.origin("training.num_train_epochs").text(), "command line (max_steps)");
}

TEST(Config, OverridesAndOrigins) {
  const Config config =
      parsed(kGuide, {"learning_rate=1", "training.learning_rate=3e-4", "model={n_layer: 2, n_head: 2}",
                      "validation=[a.txt, b.txt]", "optimizer_fallback="});
  EXPECT_EQ(config.settings.training.learning_rate, 3e-4);  // the last value is used
  EXPECT_EQ(config.settings.task_settings.get<BdhSettings>().n_layer, 2);
  EXPECT_EQ(config.settings.task_settings.get<TextSettings>().validation,
            (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(config.settings.training.optimizer_fallback, std::nullopt);
  EXPECT_EQ(config.origin("training.learning_rate").text(), "command line");
  EXPECT_EQ(config.origin("model.n_embd").text(), "run.yaml:2");
  EXPECT_EQ(config.origin("training.weight_decay").where(), "run.yaml:7:3");
  EXPECT_EQ(config.origin("training.eps").text(), "default");
}

TEST(Config, TableShowsEveryKeyItsValueOriginAndMeaning) {
  const Config config = parsed("learning_rate: 3e-4\nbf16: false", {"max_steps=5"});
  const std::string table = to_table(config);
  for (const Key& key : schema.keys()) {
    if (key.setting() == nullptr) continue;
    const bool foreign =
        key.setting()->omit_if_null &&
        find_option(config.settings.training.optimizer.algorithm, key.setting()->option) == nullptr;
    const std::string row = std::string("\n").append(key.path).append(" ");
    EXPECT_EQ(table.find(row) == std::string::npos, foreign) << "options of other algorithms are omitted";
    if (foreign) continue;
    EXPECT_THAT(table, HasSubstr(row));
    EXPECT_THAT(table, HasSubstr(std::string("  ").append(key.meaning).append("\n")));
  }
  EXPECT_THAT(table, ::testing::ContainsRegex("learning_rate +3\\.0e-04 +run\\.yaml:1\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("compute_dtype +float32 +run\\.yaml:2 \\(bf16\\)\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("max_steps +5 +command line\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("beta2 +0\\.999 +default\n")) << "what null stands for";
}

TEST(Config, YamlReadsBackAsTheSameSettings) {
  const std::vector<std::string> paths = {
      "a b",       "null",         "Yes",         "~",      "-",   "1e3",  "a: b", "#x", "\"q\\",
      "tab\there", "line\nbreak",  "caf\xC3\xA9", " edge ", "[x]", "true", "*a",   "x:", "\xEF\xBB\xBF",
      "changed",   "allow_changes"};
  for (const std::string& path : paths) {
    Settings settings = parsed(kGuide).settings;
    settings.output_dir = path;
    settings.task_settings.get<TextSettings>().train = {path, "other"};
    settings.task_settings.get<TextSettings>().validation = {path};
    settings.training.resume_from_checkpoint = {false, path};
    const std::string text = to_yaml(settings);
    const Settings again = parsed(text).settings;
    EXPECT_EQ(again.output_dir, path);
    EXPECT_EQ(again.task_settings.get<TextSettings>().train,
              settings.task_settings.get<TextSettings>().train);
    EXPECT_EQ(again.task_settings.get<TextSettings>().validation,
              settings.task_settings.get<TextSettings>().validation);
    EXPECT_EQ(again.training.resume_from_checkpoint, settings.training.resume_from_checkpoint);
    EXPECT_EQ(to_yaml(again), text);
  }
  EXPECT_EQ(parsed(to_yaml(parsed("learning_rate: 0.1234567890123456789").settings))
                .settings.training.learning_rate,
            0.1234567890123456789);
}

std::string folder_of(const std::string& name, const std::string& text, const Words& words = {}) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << text;
  const auto config = load(path, words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  std::remove(path.c_str());
  return config.ok() ? config->settings.output_dir : std::string();
}

TEST(Config, FoldersAreNamedAfterTheFileAndWhatTheCommandLineChanges) {
  EXPECT_EQ(folder_of("run.yaml", ""), "runs/run");
  EXPECT_EQ(folder_of("my run.v2.yaml", ""), "runs/my_run.v2");
  EXPECT_EQ(folder_of("run", ""), "runs/run");
  EXPECT_EQ(folder_of("run.yaml", "", {"lr=3e-4"}), "runs/run-learning_rate=3.0e-04");
  EXPECT_EQ(folder_of("run.yaml", "", {"training.learning_rate=0.0003"}), "runs/run-learning_rate=3.0e-04");
  EXPECT_EQ(folder_of("run.yaml", "", {"use_4bit_optimizer=true", "n_layer=2", "data.train=a/b c.txt"}),
            "runs/run-n_layer=2-train=a_b_c.txt-optimizer=adamw_8bit");
  // A longer run, other logs or another device do not change the run's folder.
  EXPECT_EQ(folder_of("run.yaml", "",
                      {"max_steps=5", "logging_steps=1", "max_samples=9", "device=cpu",
                       "resume_from_checkpoint=false"}),
            "runs/run");
  // resume_from_checkpoint=allow_changes refers to the existing run.
  EXPECT_EQ(folder_of("run.yaml", "", {"lr=3e-4", "resume_from_checkpoint=allow_changes"}), "runs/run");
  EXPECT_EQ(folder_of("run.yaml", "", {"lr=3e-4", "resume_from_checkpoint=changed"}), "runs/run");
  EXPECT_EQ(folder_of("run.yaml", "output_dir: here", {"lr=3e-4"}), "here");
  EXPECT_EQ(folder_of("run.yaml", "", {"lr=3e-4", "output_dir=there"}), "there");
  const std::string longest = folder_of("run.yaml", "", {"data.train=" + std::string(300, 'x')});
  EXPECT_LT(longest.size(), 140u);
  EXPECT_NE(longest, folder_of("run.yaml", "", {"data.train=" + std::string(301, 'x')}));
}

TEST(Config, DifferencesThatMakeAnotherExperiment) {
  const auto compare = [](const Words& then, const Words& now) {
    return experiment_differences(parsed("", then).settings, parsed("", now).settings);
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(compare({}, {"learning_rate=3e-4", "n_layer=2"}),
              ElementsAre("model.n_layer: 6 -> 2", "training.learning_rate: 0.001 -> 3.0e-04"));
  EXPECT_THAT(compare({}, {"max_steps=1", "save_steps=1", "device=cpu", "max_samples=5", "data.train=x",
                           "gradient_checkpointing=true", "sample_tokens=0", "output_dir=x"}),
              ::testing::IsEmpty());
  EXPECT_THAT(compare({"batch_size=8"}, {"batch_size=2", "gradient_accumulation_steps=4"}),
              ::testing::IsEmpty());
  EXPECT_THAT(compare({"batch_size=8"}, {"batch_size=4"}),
              ElementsAre("training.per_device_train_batch_size: 8 -> 4"));
}

TEST(Schema, PathsAreUniqueAndSwitchesPointAtSettings) {
  std::set<std::string_view> paths;
  for (const Key& key : schema.keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    if (const auto* spelling = std::get_if<Switch>(&key.role)) {
      ASSERT_NE(schema.index(spelling->target), kNoKey) << key.path;
      EXPECT_NE(schema.setting(spelling->target), nullptr) << key.path;
    }
    EXPECT_EQ(key.meaning.empty(), std::holds_alternative<Refused>(key.role)) << key.path;
  }
}

TEST(Schema, FormerNamesMeanOneKey) {
  for (const TaskConfig& task : declared_tasks()) {
    for (const Key& key : schema_of(task).keys()) {
      if (key.setting() == nullptr || key.setting()->formerly.empty()) continue;
      const auto found = find_key(schema_of(task), key.section(), key.setting()->formerly);
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(schema_of(task)[found->key].path, key.path);
    }
  }
}

TEST(Config, TheTaskFollowsFromTheModel) {
  for (const char* text : {"", "task: text", "task: auto", "model: {name: bdh}", "TASK: text", "name: bdh"}) {
    auto config = parse(text, "run.yaml");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->settings.task, "text") << text;
  }
  const auto error = [](const char* text, const Words& words = {}) {
    return parse(text, "run.yaml", words).status().message();
  };
  EXPECT_EQ(error("task: chess"), "run.yaml:1:7: task: got chess, expected one of auto, text, speech");
  EXPECT_EQ(error("", {"task=chess"}), "command line: task: got chess, expected one of auto, text, speech");
  EXPECT_EQ(error("model: {name: gpt9}"),
            "run.yaml:1:15: model.name: got gpt9, expected bdh, fastconformer, nvidia/parakeet-tdt-0.6b-v2, "
            "nvidia/parakeet-tdt-0.6b-v3, or the path of a model in files, such as ./model.nemo or ./FOLDER");
  // A transformers folder may have any name. Only the speech task has models in files.
  for (const char* path : {"./speech-hf", "../a/b", "/models/mine"}) {
    const auto config = parse(std::string("model: {name: ") + path + "}\ndata: {generator: {clips: 4}}", "x");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->settings.task, "speech");
  }
  // If the task is given, the error lists the models of that task.
  EXPECT_THAT(error("{task: text, model: {name: gpt9}}"), HasSubstr("model.name: got gpt9, expected bdh"));
}

TEST(Schema, ReferencePageIsUpToDate) {
  const std::string path = std::string(OCTAVO_TEST_DOCS_DIR) + "/config.md";
  if (std::getenv("OCTAVO_UPDATE_DOCS") != nullptr) {
    std::ofstream file(path, std::ios::binary);
    file << reference_page();
    ASSERT_TRUE(file.good()) << path;
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == reference_page()) << path
                                              << " is not what train/config/schema.cc says; write it with "
                                                 "OCTAVO_UPDATE_DOCS=1 build/tests/train_config_test";
}

TEST(Lookup, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("min_rl", "min_lr"), 1u);  // a swap is one mistake
}

}  // namespace
}  // namespace octavo_train
