// Tests the configs of other trainers' guides, block by block as the guides have them: their meaning in
// Octavo, and the errors for features that are not built in. Numbers and keys are those of the guides.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "tests/train/text_files.h"
#include "train/config/checks.h"
#include "train/config/config.h"
#include "train/config/yaml.h"
#include "train/tasks/speech/config/keys.h"
#include "train/tasks/text/settings.h"

namespace octavo_train {
namespace {

const OptimizerName kFloat{octavo::Algorithm::adamw, octavo::StateFormat::fp32};
const OptimizerName kEightBits{octavo::Algorithm::adamw, octavo::StateFormat::int8};
const OptimizerName kFourBits{octavo::Algorithm::adamw, octavo::StateFormat::int4};

// Returns the error for a block that requests a feature which is not built in.
std::string refusal(std::string_view text, const Words& words = {}) {
  const auto config = parse(text, "run.yaml", words);
  EXPECT_FALSE(config.ok()) << text;
  EXPECT_EQ(config.status().code(), StatusCode::unsupported) << config.status().message();
  EXPECT_THAT(config.status().message(), Not(HasSubstr("unknown key")));
  return config.status().message();
}

// ---- BDH in low precision: assignments as in a script ----

TEST(BdhGuide, FourBitOptimizer) {
  const Config config = parsed(R"(USE_4BIT_OPTIMIZER = True
COMPUTE_DTYPE = "bfloat16"
)");
  EXPECT_EQ(config.settings.task, "text");
  EXPECT_EQ(config.settings.training.optimizer, kEightBits);
  EXPECT_EQ(config.settings.training.compute_dtype, ComputeType::bfloat16);
  EXPECT_EQ(config.origin("training.optimizer").where(), "run.yaml:1:1 (use_4bit_optimizer)");
  EXPECT_THAT(
      config.notes,
      ElementsAre("run.yaml:1:1: use_4bit_optimizer: true is 8-bit AdamW (optimizer: adamw_8bit); the "
                  "states of optimizer: adamw_4bit take about half of its memory"));
  EXPECT_EQ(config.origin("training.compute_dtype").where(), "run.yaml:2:1");
  EXPECT_EQ(training_of(R"(USE_4BIT_OPTIMIZER = True  # Use 8-bit AdamW optimizer
COMPUTE_DTYPE = "bfloat16"  # Compute dtype for mixed precision
)")
                .optimizer,
            kEightBits);
  const Config off = parsed("USE_4BIT_OPTIMIZER = False\n");
  EXPECT_EQ(off.settings.training.optimizer, kFloat);
  EXPECT_THAT(off.notes,
              ElementsAre("run.yaml:1:1: use_4bit_optimizer: false is AdamW with fp32 states (optimizer: "
                          "adamw); the states of optimizer: adamw_8bit take about a quarter of its memory"));
}

// The switch applies if no optimizer is set. A set optimizer must agree with it.
TEST(BdhGuide, FourBitOptimizerBesideAnOptimizer) {
  const auto chosen = [](const std::string& text, const Words& words = {}) {
    const Config config = parsed(text, words);
    return config.settings.training.optimizer;
  };
  const std::string on = "use_4bit_optimizer: true\n", off = "use_4bit_optimizer: false\n";
  EXPECT_EQ(chosen(on + "optimizer: adamw_4bit"), kFourBits);
  EXPECT_EQ(chosen("optimizer: lion_8bit\n" + on),
            (OptimizerName{octavo::Algorithm::lion, octavo::StateFormat::int8}));
  EXPECT_EQ(chosen(off + "optimizer: sgd"),
            (OptimizerName{octavo::Algorithm::sgd, octavo::StateFormat::fp32}));
  EXPECT_TRUE(parsed(on + "optimizer: adamw_4bit").notes.empty()) << "the switch has chosen nothing";
  for (const auto& [text, named] : {std::pair(on + "optimizer: adamw", "adamw"),
                                    std::pair(off + "optimizer: adamw_8bit", "adamw_8bit")}) {
    EXPECT_EQ(parse(text, "run.yaml").status().message(),
              "run.yaml:1:1: use_4bit_optimizer: got " +
                  std::string(text == on + "optimizer: adamw" ? "true" : "false") +
                  ", but training.optimizer is " + named + " (run.yaml:2:1); remove one of them");
  }
  // On the command line, the switch replaces the file's optimizer, unless they agree.
  EXPECT_EQ(chosen("", {"use_4bit_optimizer=false"}), kFloat);
  EXPECT_EQ(chosen("", {"USE_4BIT_OPTIMIZER=True"}), kEightBits);
  EXPECT_EQ(chosen("optimizer: adamw_8bit", {"use_4bit_optimizer=false"}), kFloat);
  EXPECT_EQ(chosen("optimizer: adamw", {"use_4bit_optimizer=true"}), kEightBits);
  EXPECT_EQ(chosen("optimizer: adamw_4bit", {"use_4bit_optimizer=true"}), kFourBits);
  EXPECT_EQ(chosen(on, {"use_4bit_optimizer=false"}), kFloat);
  EXPECT_EQ(chosen(on, {"optimizer=adamw"}), kFloat);
  EXPECT_THAT(parsed("", {"use_4bit_optimizer=false"}).notes,
              ElementsAre(StartsWith("command line: use_4bit_optimizer: false is AdamW with fp32 states")));
}

TEST(BdhGuide, MixedPrecision) {
  EXPECT_EQ(training_of("COMPUTE_DTYPE = \"bfloat16\"  # or \"float16\"\n").compute_dtype,
            ComputeType::bfloat16);
  EXPECT_EQ(training_of("COMPUTE_DTYPE = \"float16\"").compute_dtype, ComputeType::float16);
}

TEST(BdhGuide, NativeFp8) {
  const Config config = parsed(R"(USE_FP8 = True
FP8_FORMAT = "hybrid"  # Uses both E4M3 and E5M2 formats optimally
)");
  EXPECT_TRUE(config.settings.training.fp8.enabled);
  EXPECT_EQ(config.settings.training.fp8.recipe.format, octavo::fp8::Format::hybrid);
  EXPECT_EQ(config.origin("training.fp8.enabled").where(), "run.yaml:1:1");
  EXPECT_EQ(config.origin("training.fp8.format").where(), "run.yaml:2:1");
  const Fp8Settings all = training_of(R"(USE_FP8 = True  # Enable FP8 training

# Format selection
FP8_FORMAT = "e5m2"  # "hybrid", "e4m3", or "e5m2"

# Scaling configuration
FP8_AMAX_HISTORY_LEN = 512  # History length for scaling factors
FP8_AMAX_COMPUTE_ALGO = "most_recent"  # "max" or "most_recent"
)")
                              .fp8;
  EXPECT_TRUE(all.enabled);
  EXPECT_EQ(all.recipe.format, octavo::fp8::Format::e5m2);
  EXPECT_EQ(all.recipe.recipe, octavo::fp8::Recipe::delayed);
  EXPECT_EQ(all.recipe.amax_history_len, 512);
  EXPECT_EQ(all.recipe.amax_compute_algo, octavo::fp8::AmaxAlgo::most_recent);
}

// The guide's four complete configs, from the fastest to the one for tests.
TEST(BdhGuide, ExampleConfigs) {
  const auto is = [](std::string_view text, const OptimizerName& optimizer, bool fp8, ComputeType type) {
    const TrainingSettings training = training_of(text);
    EXPECT_EQ(training.optimizer, optimizer) << text;
    EXPECT_EQ(training.fp8.enabled, fp8) << text;
    EXPECT_EQ(training.compute_dtype, type) << text;
    if (fp8) {
      EXPECT_EQ(training.fp8.recipe.format, octavo::fp8::Format::hybrid) << text;
    }
  };
  is(R"(USE_FP8 = True
USE_4BIT_OPTIMIZER = False  # Optimizer overhead not needed on H100
FP8_FORMAT = "hybrid"
COMPUTE_DTYPE = "bfloat16"
)",
     kFloat, true, ComputeType::bfloat16);
  is(R"(USE_FP8 = True
USE_4BIT_OPTIMIZER = True  # Combine both optimizations
FP8_FORMAT = "hybrid"
COMPUTE_DTYPE = "bfloat16"
)",
     kEightBits, true, ComputeType::bfloat16);
  is(R"(USE_FP8 = False
USE_4BIT_OPTIMIZER = True
COMPUTE_DTYPE = "bfloat16"
)",
     kEightBits, false, ComputeType::bfloat16);
  is(R"(USE_FP8 = False
USE_4BIT_OPTIMIZER = False
COMPUTE_DTYPE = "float32"
)",
     kFloat, false, ComputeType::float32);
}

TEST(BdhGuide, WithoutFp8ItsDetailsHaveNoEffect) {
  constexpr std::string_view kBlock = R"(USE_FP8 = True
FP8_FORMAT = "e4m3"
FP8_AMAX_HISTORY_LEN = 1024
FP8_AMAX_COMPUTE_ALGO = "max"
USE_4BIT_OPTIMIZER = True
)";
  const std::string off = "USE_FP8 = False" + std::string(kBlock.substr(kBlock.find('\n')));
  EXPECT_FALSE(training_of(off).fp8.enabled);
  EXPECT_THAT(parsed(off).notes, ElementsAre(HasSubstr("use_4bit_optimizer: true is 8-bit AdamW")))
      << "and no note about FP8";
  EXPECT_FALSE(parsed(kBlock, {"use_fp8=false"}).settings.training.fp8.enabled);
  EXPECT_TRUE(parsed(off, {"USE_FP8=True"}).settings.training.fp8.enabled);
}

// ---- Parakeet: config parts that name no task; their keys are valid in any run ----

struct Part {
  std::string_view text;
  std::int64_t train, eval, accumulation;
};
constexpr Part kParts[] = {{R"(training:
  optimizer: "adamw_8bit"  # ← Already set!
  per_device_train_batch_size: 8
  per_device_eval_batch_size: 4
  gradient_accumulation_steps: 16
)",
                            8, 4, 16},
                           {R"(training:
  optimizer: "adamw_8bit"  # ← Already set!
  per_device_train_batch_size: 20
  per_device_eval_batch_size: 10
  gradient_accumulation_steps: 6
)",
                            20, 10, 6},
                           {R"(training:
  optimizer: "adamw_8bit"  # Change from "adamw" to "adamw_8bit"
  per_device_train_batch_size: 16
  per_device_eval_batch_size: 8
  gradient_accumulation_steps: 8
)",
                            16, 8, 8},
                           {R"(model:
  gradient_checkpointing: true  # Add this line

training:
  per_device_train_batch_size: 24  # Can use larger batch
  per_device_eval_batch_size: 12
  gradient_accumulation_steps: 5
)",
                            24, 12, 5}};

constexpr std::string_view kParakeet = "nvidia/parakeet-tdt-0.6b-v3";

TEST(ParakeetGuide, PartsWithoutAModelAreKeysOfAnyRun) {
  for (const Part& part : kParts) {
    const TrainingSettings training = training_of(part.text);
    EXPECT_EQ(training.optimizer, kEightBits) << part.text;
    EXPECT_EQ(training.per_device_train_batch_size, part.train);
    EXPECT_EQ(training.per_device_eval_batch_size, part.eval);
    EXPECT_EQ(training.gradient_accumulation_steps, part.accumulation);
  }
  EXPECT_TRUE(parsed(kParts[3].text).settings.task_settings.get<BdhSettings>().gradient_checkpointing);

  EXPECT_EQ(training_of("# With underscore\noptimizer: \"adamw_8bit\"\n").optimizer, kEightBits);
  EXPECT_EQ(training_of("# Without underscore\noptimizer: \"adamw8bit\"\n").optimizer, kEightBits);
  const TrainingSettings plain = training_of(
      "training:\n  optimizer: \"adamw\"  # Standard optimizer\n  per_device_train_batch_size: 8  # Might "
      "need to reduce further\n");
  EXPECT_EQ(plain.optimizer, kFloat);
  EXPECT_EQ(plain.per_device_train_batch_size, 8);
  // Indented, as in a list of the guide.
  const TrainingSettings smaller = training_of(
      "   per_device_train_batch_size: 4  # From 8\n   gradient_accumulation_steps: 32  # From 16\n");
  EXPECT_EQ(smaller.per_device_train_batch_size, 4);
  EXPECT_EQ(smaller.gradient_accumulation_steps, 32);
  EXPECT_TRUE(parsed("   model:\n     gradient_checkpointing: true\n")
                  .settings.task_settings.get<BdhSettings>()
                  .gradient_checkpointing);
  EXPECT_EQ(
      parsed("   data:\n     max_samples: 100000  # Make sure it's not higher\n").settings.data.max_samples,
      100000);
  EXPECT_EQ(training_of("per_device_eval_batch_size: 2  # Minimal\n").per_device_eval_batch_size, 2);
  EXPECT_EQ(training_of("training:\n  bf16: true\n  fp16: false\n").compute_dtype, ComputeType::bfloat16);
  EXPECT_EQ(training_of("# Add to config.yaml temporarily:\ntraining:\n  max_steps: 100  # Only 100 steps\n")
                .max_steps,
            100);
}

TEST(ParakeetGuide, ProgressiveTraining) {
  for (const std::int64_t samples : {100000, 500000, 1000000, -1}) {
    const Config config = parsed("data:\n  max_samples: " + std::to_string(samples) +
                                 "\ntraining:\n  resume_from_checkpoint: true\n");
    EXPECT_EQ(config.settings.data.max_samples, samples);
    EXPECT_TRUE(config.settings.training.resume_from_checkpoint.latest);
  }
  EXPECT_FALSE(training_of("resume_from_checkpoint: false").resume_from_checkpoint.latest);
}

// As in transformers, max_steps takes precedence if both are given.
TEST(ParakeetGuide, StepsForATestBesideEpochs) {
  const Config config = parsed("training:\n  num_train_epochs: 3\n  max_steps: 100  # Only 100 steps\n");
  EXPECT_EQ(config.settings.training.max_steps, 100);
  EXPECT_EQ(config.settings.training.num_train_epochs, std::nullopt);
  EXPECT_EQ(config.origin("training.num_train_epochs").text(), "run.yaml:3 (max_steps)");
  EXPECT_THAT(
      config.notes,
      ElementsAre("run.yaml:2:3: training.num_train_epochs: without effect: training.max_steps is 100 "
                  "(run.yaml:3:3) and takes precedence; set max_steps to null to train for 3 epochs"));
  EXPECT_EQ(parsed("", {"max_steps=5", "num_train_epochs=1"}).settings.training.max_steps, 5);
  const Config open = parsed("max_steps: -1\nnum_train_epochs: 2");
  EXPECT_EQ(open.settings.training.num_train_epochs, 2);
  EXPECT_TRUE(open.notes.empty());
}

TEST(ParakeetGuide, WorkersBelowEitherSection) {
  const auto workers = [](std::string_view text) {
    return parsed(text).settings.data.dataloader_num_workers;
  };
  EXPECT_EQ(workers("training:\n  dataloader_num_workers: 16\n"), 16);
  EXPECT_EQ(workers("data:\n  dataloader_num_workers: 16\n"), 16);
  EXPECT_EQ(workers("training: {num_workers: 3}"), 3);
  EXPECT_EQ(workers("training.dataloader_num_workers: 5"), 5);
  EXPECT_EQ(parsed("dataloader_num_workers: 8", {"training.dataloader_num_workers=1"})
                .settings.data.dataloader_num_workers,
            1);
  EXPECT_EQ(parse("data: {dataloader_num_workers: 8}\ntraining: {dataloader_num_workers: 16}", "run.yaml")
                .status()
                .message(),
            "run.yaml:2:12: dataloader_num_workers: given twice; data.dataloader_num_workers has a value at "
            "run.yaml:1:8: remove one");
  EXPECT_THAT(parse("model: {dataloader_num_workers: 8}", "run.yaml").status().message(),
              HasSubstr("did you mean data.dataloader_num_workers?"));
}

// ---- Parakeet: configs with its model, which belong to the task `speech` ----

constexpr std::string_view kWhole = R"(# config.yaml - Optimized for Full Dataset
model:
  name: "nvidia/parakeet-tdt-0.6b-v3"
  gradient_checkpointing: true  # Add this

data:
  max_samples: -1  # Full dataset

training:
  optimizer: "adamw_8bit"  # Use 8-bit optimizer
  per_device_train_batch_size: 20
  per_device_eval_batch_size: 10
  gradient_accumulation_steps: 6
  # Effective batch size: 20 * 6 = 120
)";

TEST(ParakeetGuide, TheModelTellsTheTask) {
  const Config config = parsed(kWhole);
  const Settings& s = config.settings;
  EXPECT_EQ(s.task, "speech");
  EXPECT_EQ(s.model.name, kParakeet);
  EXPECT_TRUE(s.task_settings.get<SpeechKeys>().gradient_checkpointing);
  EXPECT_TRUE(s.task_settings.get<SpeechKeys>().pretrained);
  EXPECT_EQ(s.data.max_samples, -1);
  EXPECT_EQ(s.training.optimizer, kEightBits);
  EXPECT_EQ(s.training.per_device_train_batch_size * s.training.gradient_accumulation_steps, 120);
  // With its recordings, each block is a complete config.
  const Words recordings = {"model.name=" + std::string(kParakeet), "train_manifest=train.json",
                            "val_manifest=val.json"};
  EXPECT_TRUE(check_complete(parsed(kWhole, recordings)).ok());
  for (const Part& part : kParts) {
    const Config of_part = parsed(part.text, recordings);
    EXPECT_EQ(of_part.settings.task, "speech") << part.text;
    EXPECT_EQ(of_part.settings.training.per_device_train_batch_size, part.train);
    EXPECT_TRUE(check_complete(of_part).ok()) << part.text;
  }
  for (const char* block :
       {"# With underscore\noptimizer: \"adamw_8bit\"\n", "optimizer: \"adamw8bit\"\n",
        "training:\n  optimizer: \"adamw\"  # Standard optimizer\n  per_device_train_batch_size: 8\n",
        "   per_device_train_batch_size: 4  # From 8\n   gradient_accumulation_steps: 32  # From 16\n",
        "   model:\n     gradient_checkpointing: true\n",
        "   data:\n     max_samples: 100000  # Make sure it's not higher\n",
        "per_device_eval_batch_size: 2  # Minimal\n", "training:\n  bf16: true\n  fp16: false\n",
        "training:\n  max_steps: 100  # Only 100 steps\n", "dataloader_num_workers: 16\n",
        "data:\n  max_samples: 500000\ntraining:\n  resume_from_checkpoint: true\n"}) {
    const Config of_block = parsed(block, recordings);
    EXPECT_EQ(of_block.settings.task, "speech") << block;
    EXPECT_TRUE(check_complete(of_block).ok()) << block;
  }
  // Without recordings, the error is reported before the run begins.
  EXPECT_THAT(check_complete(config).message(),
              AllOf(StartsWith("data.train_manifest: not given"), HasSubstr("train.jsonl")));
  EXPECT_THAT(check_complete(parsed(kWhole, {"train_manifest=a"})).message(),
              AllOf(StartsWith("data.val_manifest: not given"), HasSubstr("octavo data split")));
  EXPECT_EQ(parse("task: asr", "run.yaml").status().message(),
            "run.yaml:1:7: task: got asr, expected one of auto, text, speech");
}

SpeechModelSettings model_of(std::string_view text, const Words& words = {}) {
  const Settings s = parsed(text, words).settings;
  return with_speech_keys(*known_speech_model(s.model.name), s.task_settings.get<SpeechKeys>());
}

// The guide's script sets checkpointing separately for the encoder and the decoder.
TEST(ParakeetGuide, CheckpointingOfThePartsApart) {
  const SpeechModelSettings both = model_of(kWhole);
  EXPECT_TRUE(both.checkpoint_encoder && both.checkpoint_decoder);
  const std::string name = "model:\n  name: " + std::string(kParakeet) + "\n";
  const SpeechModelSettings encoder = model_of(name + R"(  encoder:
    gradient_checkpointing: true
  decoder:
    gradient_checkpointing: false
)");
  EXPECT_TRUE(encoder.checkpoint_encoder);
  EXPECT_FALSE(encoder.checkpoint_decoder);
  const SpeechModelSettings decoder = model_of(kWhole, {"model.encoder.gradient_checkpointing=false"});
  EXPECT_FALSE(decoder.checkpoint_encoder);
  EXPECT_TRUE(decoder.checkpoint_decoder);
  EXPECT_EQ(both.width, 1024);
  EXPECT_EQ(both.vocabulary, 8192);
  EXPECT_EQ(model_of("name: parakeet-tdt-0.6b-v2").vocabulary, 1024);
}

TEST(ParakeetGuide, NeMosOwnConfig) {
  const std::string where = "data.train_manifest and data.val_manifest (manifest_filepath)";
  // NeMo's own config, which names neither a task nor a model.
  constexpr std::string_view kNeMo = R"(model:
  train_ds:
    manifest_filepath: train.json
  encoder: {gradient_checkpointing: false}
)";
  EXPECT_THAT(refusal(kNeMo), AllOf(StartsWith("run.yaml:2:3: model.train_ds: a key of the task speech: "),
                                    HasSubstr(where)));
  EXPECT_THAT(refusal(kNeMo, {"task=speech"}),
              AllOf(StartsWith("run.yaml:2:3: train_ds: "), HasSubstr(where)));
  EXPECT_THAT(parse("", "run.yaml", Words{"data.sample_rate=16000"}).status().message(),
              AllOf(StartsWith("command line: data.sample_rate: a key"), HasSubstr("write task: speech")));
  EXPECT_THAT(refusal("model: {init_from_pretrained_model: " + std::string(kParakeet) + "}"),
              HasSubstr("write model.name"));
  EXPECT_THAT(refusal("task: speech\nmodel: {freeze: [encoder.*]}"), HasSubstr("training.groups: [{params:"));
  EXPECT_EQ(parse("model: {spec_augment: {time_masks: 2}}", "run.yaml").status().message(),
            "run.yaml:1:24: model.spec_augment.time_masks: a key of the task speech, but the config names no "
            "task and no model; write task: speech");
  // In a config that names its task or its model, such a key is a mistake.
  for (const char* text : {"task: text\nsample_rate: 16000", "model: {name: bdh}\nsample_rate: 16000"})
    EXPECT_THAT(parse(text, "run.yaml").status().message(),
                HasSubstr("run.yaml:2:1: sample_rate: unknown key"));
}

TEST(ParakeetGuide, DeepSpeedAndSeveralGpus) {
  const std::string offload = R"("offload_optimizer": {
      "device": "cpu",
      "pin_memory": true
    },
    )";
  const auto file = [](const std::string& in_zero) {
    return R"({
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": 1.0,
  "fp16": {
    "enabled": false
  },
  "bf16": {
    "enabled": true
  },
  "zero_optimization": {
    "stage": 2,
    )" + in_zero +
           R"("contiguous_gradients": true,
    "overlap_comm": true
  }
}
)";
  };
  const TextFiles files;
  const std::string json = files.path("deepspeed_config.json"), yaml = files.path("config.yaml");
  files.write("config.yaml", "training:\n  deepspeed: deepspeed_config.json\n  batch_size: 16\n");
  files.write("deepspeed_config.json", file(offload));
  const auto offloaded = load(yaml);
  ASSERT_TRUE(offloaded.ok()) << offloaded.status().message();
  EXPECT_EQ(offloaded->settings.training.offload, Offload::host);
  EXPECT_TRUE(offloaded->settings.training.offload_gradients);
  EXPECT_EQ(offloaded->settings.training.parallel, Parallel::zero2);
  files.write("deepspeed_config.json", file(""));
  const auto config = load(yaml);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const TrainingSettings& training = config->settings.training;
  EXPECT_EQ(training.parallel, Parallel::zero2);
  EXPECT_EQ(training.compute_dtype, ComputeType::bfloat16);
  EXPECT_EQ(training.max_grad_norm, 1.0);
  EXPECT_EQ(training.per_device_train_batch_size, 16) << "auto is the config's";
  EXPECT_EQ(training.gradient_accumulation_steps, 1);
  EXPECT_FALSE(training.global_batch_size);
  EXPECT_THAT(
      config->notes,
      ElementsAre(StartsWith(json + ":14:5: zero_optimization.contiguous_gradients: without effect: "),
                  StartsWith(json + ":15:5: zero_optimization.overlap_comm: without effect: ")));
  // Keys of DeepSpeed's file are not keys of a config.
  EXPECT_THAT(refusal(file("")), AllOf(StartsWith("run.yaml:2:3: train_batch_size: "),
                                       HasSubstr("per_device_train_batch_size"), HasSubstr("DeepSpeed")));
  EXPECT_THAT(refusal("gradient_accumulation_steps: now\nzero_optimization: {stage: 2}\n"),
              StartsWith("run.yaml:2:1: zero_optimization: a section of DeepSpeed's config file"))
      << "before the values of other keys are read";
  const TrainingSettings two = parsed(R"(training:
  num_gpus: 2  # Or 4, 8, etc.
  per_device_train_batch_size: 32
  per_device_eval_batch_size: 16
  gradient_accumulation_steps: 2
)")
                                   .settings.training;
  EXPECT_EQ(two.num_gpus, 2);
  EXPECT_EQ(two.parallel, Parallel::automatic);
  EXPECT_EQ(accumulation_for(two, 2).value(), 2);
}

// ---- torchao: names of classes, and offloading ----

TEST(TorchaoGuide, OptimizersAndOffloading) {
  const std::pair<const char*, OptimizerName> names[] = {
      {"Adam8bit", {octavo::Algorithm::adam, octavo::StateFormat::int8}},
      {"Adam4bit", {octavo::Algorithm::adam, octavo::StateFormat::int4}},
      {"AdamFp8", {octavo::Algorithm::adam, octavo::StateFormat::fp8_e4m3}},
      {"AdamW8bit", kEightBits},
      {"AdamW4bit", kFourBits},
      {"AdamWFp8", {octavo::Algorithm::adamw, octavo::StateFormat::fp8_e4m3}}};
  for (const auto& [name, expected] : names)
    EXPECT_EQ(training_of(std::string("optimizer: ") + name).optimizer, expected) << name;
  EXPECT_EQ(parse("optimizer: adamw\noffload_gradients: true\n", "run.yaml").status().message(),
            "run.yaml:2:1: training.offload_gradients: got true, but training.offload is none (default); "
            "it applies only to states in host memory: use offload: host, stream or auto");
  EXPECT_THAT(refusal("offload_optimizer: true\n"), HasSubstr("write offload: host or offload: stream"));
  const TrainingSettings both = training_of("offload: host\noffload_gradients: true");
  EXPECT_EQ(both.offload, Offload::host);
  EXPECT_TRUE(both.offload_gradients);
  EXPECT_EQ(training_of("offload_gradients: false").optimizer, kEightBits);
}

// ---- Assignments ----

TEST(Assignments, BecomeYamlWithEverythingInItsPlace) {
  EXPECT_EQ(assignments_as_yaml("A = 1\nB=2 # c\n\n  x = 3\nC = None\nD = None # c\nE = Nonesuch\n"),
            "A : 1\nB: 2 # c\n\n  x = 3\nC : null\nD : null # c\nE : Nonesuch\n");
  EXPECT_EQ(assignments_as_yaml("A ="), "A :");
  EXPECT_EQ(assignments_as_yaml("A == 1\nb\n= 1"), "A == 1\nb\n= 1");
  EXPECT_EQ(assignments_as_yaml("A = 1\r\nB = None\r\n"), "A : 1\r\nB : null\r\n");
  EXPECT_TRUE(has_assignments("\n  # a = 1\nmodel.n_layer = 2"));
  for (const char* text : {"", "\n#\n", "a: b = c", "a: 1\nb = 2", " a = 1", "1 = 2", "a == 1", "just words"})
    EXPECT_FALSE(has_assignments(text)) << text;
}

TEST(Assignments, AreReadAndCheckedLikeOtherKeys) {
  const Settings s = parsed(R"(LEARNING_RATE = 3e-4
EVAL_STEPS = None
train = ["a.txt",
         'b = c.txt']
model.n_layer=2
)")
                         .settings;
  EXPECT_EQ(s.training.learning_rate, 3e-4);
  EXPECT_EQ(s.training.eval_steps, std::nullopt);
  EXPECT_EQ(s.task_settings.get<TextSettings>().train, (std::vector<std::string>{"a.txt", "b = c.txt"}));
  EXPECT_EQ(s.task_settings.get<BdhSettings>().n_layer, 2);
  const auto error = [](std::string_view text) { return parse(text, "run.py").status().message(); };
  EXPECT_THAT(error("\nLEARNING_RAT = 1"), HasSubstr("run.py:2:1: LEARNING_RAT: unknown key; did you mean"));
  EXPECT_THAT(error("BATCH_SIZE = 1_000"),
              HasSubstr("run.py:1:14: training.per_device_train_batch_size: got 1_000, expected an integer"));
}

// A script with code around its settings is not executed; the error has the command that copies the settings.
TEST(Assignments, CodeIsNamedWithWhatToDo) {
  const auto error = [](std::string_view text, std::string_view name = "train.py") {
    return parse(text, name).status().message();
  };
  EXPECT_EQ(
      error("# BDH\nimport torch\n\nUSE_FP8 = True\n"),
      "train.py:2:1: import torch: Python code is not executed; a config is lines of NAME = value, or "
      "YAML. Copy the script's settings: grep -E \"^[A-Z0-9_]+ *= *(True|False|None|[-.0-9'\\\"])\" train.py "
      "> settings.py; remove the names that docs/config.md does not have, and run octavo train settings.py");
  const std::pair<const char*, const char*> all[] = {
      {"LEARNING_RATE = 1e-3\nprint(LEARNING_RATE)\n", "train.py:2:1: print(LEARNING_RATE): Python code"},
      {"A = 1\n\ndef main():\n    B = 2\n", "train.py:3:1: def main():: Python code"},
      {"from bdh import BDH\r\n", "train.py:1:1: from bdh import BDH: Python code"},
      {"\"\"\"Trains it.\"\"\"\nA = 1\n", "train.py:1:1: "},
      {"A = 1\nif __name__ == \"__main__\":\n  main()\n", "train.py:2:1: if __name__"},
      {"A = 1\n@torch.no_grad()\ndef f(): pass\n", "train.py:2:1: @torch.no_grad(): Python code"},
      {"try:\n  import x\n", "train.py:1:1: try:: Python code"},
      {"torch.manual_seed(1)\n", "train.py:1:1: torch.manual_seed(1): Python code"}};
  for (const auto& [text, message] : all) EXPECT_THAT(error(text), StartsWith(message)) << text;
  EXPECT_THAT(error("import x", "my train.py"), HasSubstr(" SCRIPT.py > settings.py"));
  // Values that are Python expressions are not YAML.
  const std::pair<const char*, const char*> values[] = {
      {"USE_FP8 = True\n\nCOMPUTE_DTYPE = \"bfloat16\" if x else \"float16\"\nLR = 1\n",
       "train.py:3:1: COMPUTE_DTYPE = \"bfloat16\" if x else \"float16\": Python code is not executed; "},
      {"A = 1\r\nB = \"a\" + \"b\"\r\n", "train.py:2:1: B = \"a\" + \"b\": Python code is not executed; "},
      {"train = [\"a\",\n  \"b\" + x]\nA = 1\n", "train.py:2:1: \"b\" + x]: Python code is not executed; "},
      {"B = \"\"\"abc\ndef\"\"\"\n", "train.py:1:1: B = \"\"\"abc: Python code is not executed; "}};
  for (const auto& [text, message] : values) {
    EXPECT_THAT(error(text), StartsWith(message)) << text;
    EXPECT_THAT(error(text), HasSubstr("Write the value itself in this line; ")) << text;
    EXPECT_THAT(error(text), HasSubstr(" train.py > settings.py; ")) << text;
    EXPECT_THAT(error(text, "my_settings.py"), HasSubstr(" my_settings.py > config.py; ")) << text;
  }
  // Mistakes that are not Python code keep YAML's message, such as a bracket that is not closed, or a YAML
  // file.
  EXPECT_EQ(error("A = 1\ntrain = [\"a\"\n"), "train.py:3:1: not YAML: end of sequence flow not found");
  EXPECT_EQ(error("a: \"b\" if c\n", "a.yaml"), "a.yaml:1:8: not YAML: end of map not found");
  EXPECT_EQ(line_of(" a \r\n\n b", 1).text, "a");
  EXPECT_EQ(line_of(" a \r\n\n b", 2).text, "");
  EXPECT_EQ(line_of(" a \r\n\n b", 3).text, "b");
  EXPECT_EQ(line_of(" a \r\n\n b", 4).text, "");
  for (const char* text : {"", "A = 1\n", "from: x", "class = 2", "if", "a: f(x)", "  import x", "# import x",
                           "format: 1", "import_x = 2", "train: [a,\n  b(c)]\n"})
    EXPECT_FALSE(find_code(text)) << text;
}

}  // namespace
}  // namespace octavo_train
