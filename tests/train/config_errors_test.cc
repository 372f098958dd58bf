// Tests the messages for bad configs: each has the place, the key, the given value and the fix.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/config.h"
#include "train/config/yaml.h"

#include <cstdio>
#include <fstream>

namespace octavo_train {
namespace {

TEST(ConfigErrors, UnknownKeysNameTheNearestOne) {
  EXPECT_EQ(error_of("training:\n  learning_rat: 1"),
            "run.yaml:2:3: training.learning_rat: unknown key; did you mean training.learning_rate?");
  EXPECT_EQ(error_of("model: {n_layers: 1}"),
            "run.yaml:1:9: model.n_layers: unknown key; did you mean model.n_layer?");
  EXPECT_EQ(error_of("a: 1\n"), "run.yaml:1:1: a: unknown key; docs/config.md lists all keys");
  EXPECT_THAT(error_of("model: {learning_rate: 1}"), HasSubstr("did you mean training.learning_rate?"));
  EXPECT_THAT(error_of("Learning_Rate: 1"), HasSubstr("did you mean training.learning_rate?"));
  EXPECT_THAT(error_of("trainig: {max_steps: 1}"), HasSubstr("did you mean the section training?"));
  EXPECT_THAT(error_of("trainig.max_steps: 1"), HasSubstr("did you mean training.max_steps?"));
  EXPECT_THAT(error_of("Model: {}"), HasSubstr("did you mean the section model?"));
  EXPECT_THAT(error_of("training: {training.max_steps: 1}"),
              HasSubstr("unknown key; did you mean training.max_steps?"));
  EXPECT_THAT(error_of("<<: {a: 1}"), HasSubstr("unknown key"));
  EXPECT_THAT(error_of("'': 1"), HasSubstr("'': unknown key"));
  EXPECT_EQ(error_of("", {"data.blok_size=3"}),
            "command line: data.blok_size: unknown key; did you mean data.block_size?");
  EXPECT_EQ(error_of("seed: 3"),
            "run.yaml:1:1: seed: more than one section has this key; write data.seed or training.seed");
}

TEST(ConfigErrors, AValueThatYamlReadsAsNothingIsNoNull) {
  const std::string why =
      ", which has no value in YAML; put it in quotes inside the quotes of the shell, or write null";
  for (const std::string value : {"---", "--- ", "...", "%YAML 1.1", "# words", "%TAG ! x"}) {
    const std::string said = error_of("", {"data.validation=" + value});
    EXPECT_THAT(said, StartsWith("command line: data.validation: ")) << value;
    EXPECT_TRUE(said.ends_with(why) || said.find("not YAML") != std::string::npos) << said;
  }
  EXPECT_EQ(error_of("", {"data.validation=---"}), "command line: data.validation: got ---" + why);
  for (const std::string value : {"", " ", "null", "~", " null ", "Null", "NULL"})
    EXPECT_TRUE(parse("", "run.yaml", Words{"data.validation=" + value}).ok()) << value;
}

// The complete file is searched for a task before its first unknown key is reported.
TEST(ConfigErrors, AMegabyteOfUnknownKeysNamesTheFirst) {
  std::string text;
  for (int i = 0; text.size() + 40 < kMaxConfigBytes; ++i) text += "key_" + std::to_string(i) + ": 1\n";
  EXPECT_EQ(error_of(text), "run.yaml:1:1: key_0: unknown key; docs/config.md lists all keys");
}

TEST(ConfigErrors, TypesAndLimits) {
  EXPECT_EQ(error_of("training:\n  learning_rate: fast"),
            "run.yaml:2:18: training.learning_rate: got fast, expected a number above 0");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"learning_rate: 0", "got 0, expected a number above 0"},
      {"learning_rate: '1e-3'", "got the text \"1e-3\", expected a number"},
      {"learning_rate: .inf", "got .inf"},
      {"learning_rate: nan", "got nan"},
      {"learning_rate: inf", "got inf"},
      {"learning_rate: 1e999", "got 1e999"},
      {"learning_rate: 1e308",
       "got 1e+308, expected a number from 0 to 3.4e38 (stored as a 32-bit float) (adamw)"},
      {"learning_rate: 1e-3x", "got 1e-3x"},
      {"learning_rate: null", "got null"},
      {"learning_rate: [1]", "got a list"},
      {"learning_rate: {a: 1}", "got a mapping"},
      {"dropout: 1", "expected a number from 0 to below 1"},
      {"n_layer: 0", "got 0, expected an integer from 1 to 4096"},
      {"n_layer: 1.5", "got 1.5, expected an integer"},
      {"n_layer: 0x10", "got 0x10"},
      {"n_layer: 99999999999999999999", "expected an integer"},
      {"n_layer: +-3", "got +-3"},
      {"gradient_checkpointing: 1", "got 1, expected true or false"},
      {"gradient_checkpointing: 'true'", "got the text \"true\", expected true or false"},
      {"bf16: maybe", "got maybe, expected true or false"},
      {"lr_scheduler: cosin", "got cosin, expected cosine, linear, constant or wsd"},
      {"compute_dtype: fp8", "expected float32, bfloat16 or float16"},
      {"master_weights: 16", "expected auto, 24, 32, stochastic or none"},
      {"optimizer: adamw16bit", "expected one of adam, adamw, sgd, lion"},
      {"optimizer: adamw16bit", "_4bit_rank1"},
      {"optimizer: paged_adafactor", "got paged_adafactor, expected one of"},
      {"offload: gpu", "expected none, host, stream or auto"},
      {"offload_ratio: 1.5", "expected a number from 0 to 1"},
      {"gpu_state_budget: 8 giga", "expected bytes, with a unit (MB, GB, MiB, GiB) or without, or null"},
      {"gpu_state_budget: -1", "expected bytes, with a unit"},
      {"offload_ratio: 0.5", "it applies only to states in host memory: use offload: host, stream or auto"},
      {"gpu_state_budget: 8", "it applies only to states in host memory"},
      {"{offload: host, offload_ratio: 0.5, gpu_state_budget: 1 GB}",
       "both limit the states on the GPU: keep one of them"},
      {"amsgrad: maybe", "got maybe, expected true or false, or null"},
      {"nesterov: 1", "got 1, expected true or false"},
      {"dampening: x", "got x, expected a number, or null"},
      {"beta1: 1", "got 1, expected a number from 0 to below 1, or null"},
      {"optimizer: 8bit_adafactor", "got 8bit_adafactor"},
      {"optimizer: adamww", "got adamww"},
      {"device: 'cuda:'", "got the text \"cuda:\""},
      {"device: cuda:-1", "got cuda:-1"},
      {"device: cuda:99999999999", "expected auto, cpu, cuda"},
      {"device: gpu", "got gpu"},
      {"device: mps", "no code for Apple's GPUs, and runs on Linux only; use device: cpu"},
      {"max_samples: 0", "got 0, expected an integer ≥ 1, or -1 for all"},
      {"stages: 5", "expected a list of rising sizes"},
      {"stages: []", "expected a list"},
      {"stages: [5, 5]", "rising"},
      {"stages: [-1, 5]", "-1 (all) can only be the last"},
      {"stages: [0]", "rising"},
      {"train: []", "expected a path or a list of paths"},
      {"train: ''", "expected a path"},
      {"train: [a, null]", "expected a path"},
      {"output_dir: \"a\\0b\"", "expected a path"},
      {"max_steps: 0", "or null (also -1)"},
      {"model: bdh", "run.yaml:1:8: model: got bdh, expected a mapping"},
      {"training: [1]", "training: got a list, expected a mapping"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(error_of(text), HasSubstr(expected)) << text;
    EXPECT_THAT(error_of(text), StartsWith("run.yaml:1:")) << text;
  }
  EXPECT_EQ(error_of("", {"n_layer=x"}),
            "command line: model.n_layer: got x, expected an integer from 1 to 4096");
}

TEST(ConfigErrors, OptionsThatTheAlgorithmDoesNotHave) {
  EXPECT_EQ(error_of("training:\n  optimizer: sgd_8bit\n  beta1: 0.8"),
            "run.yaml:3:3: training.beta1: got 0.8, but training.optimizer is sgd_8bit (run.yaml:2:3), which "
            "does not have it; the options of sgd are learning_rate, momentum, dampening, weight_decay, "
            "nesterov");
  EXPECT_EQ(error_of("", {"optimizer=lion", "amsgrad=true"}),
            "command line: training.amsgrad: got true, but training.optimizer is lion (command line), which "
            "does not have it; the options of lion are learning_rate, beta1, beta2, weight_decay");
  EXPECT_THAT(error_of("nesterov: false"), HasSubstr("training.optimizer is adamw_8bit (default)"));
  EXPECT_THAT(error_of("momentum: 0.5"), HasSubstr("the options of adamw are learning_rate, beta1"));
  EXPECT_THAT(error_of("optimizer: adamw", {"momentum=0.5"}), StartsWith("command line: training.momentum"));
  // Neither the optimizer nor the fallback has this option.
  EXPECT_THAT(error_of("{optimizer: lion, optimizer_fallback: adamw, momentum: 0.5}"),
              HasSubstr("the options of lion are"));
}

TEST(ConfigErrors, OptionsThatDoNotGoTogether) {
  EXPECT_EQ(error_of("{optimizer: sgd,\n nesterov: true, momentum: 0}"),
            "run.yaml:2:2: training.nesterov: got true with momentum 0 and dampening 0, expected a positive "
            "momentum and no dampening (sgd)");
  EXPECT_THAT(error_of("{optimizer: lion, optimizer_fallback: sgd, nesterov: true, dampening: 0.5}"),
              HasSubstr("training.nesterov: got true with momentum 0.9 and dampening 0.5"));
  EXPECT_THAT(error_of("{optimizer: adamw, eps: 1e300}"),
              HasSubstr("training.eps: got 1e+300, expected a number from 0 to 3.4e38 (stored as a "
                        "32-bit float) (adamw)"));
  EXPECT_THAT(error_of("learning_rate: 1e300"), HasSubstr("training.learning_rate: got 1e+300, expected"));
}

TEST(ConfigErrors, WhatIsNotBuiltIn) {
  EXPECT_THAT(error_of("warmup_ratio: 0.03"),
              HasSubstr("write warmup_steps, which is warmup_ratio times max_steps"));
  EXPECT_THAT(error_of("betas: [0.9, 0.95]"), HasSubstr("write beta1 and beta2"));
  EXPECT_THAT(error_of("zero_optimization: {stage: 2}"), HasSubstr("name the file in training.deepspeed"));
  EXPECT_THAT(error_of("USE_4BIT: true"), HasSubstr("4-bit weights are not built in"));
}

TEST(ConfigErrors, ContradictionsNameBothPlaces) {
  EXPECT_EQ(error_of("training:\n  compute_dtype: float16\n  bf16: true"),
            "run.yaml:3:3: bf16: got true, but training.compute_dtype is float16 (run.yaml:2:3); remove one "
            "of them");
  EXPECT_EQ(error_of("bf16: true\nfp16: true"),
            "run.yaml:2:1: fp16: got true, but training.compute_dtype is bfloat16 (run.yaml:1:1 (bf16)); "
            "remove one of them");
  EXPECT_EQ(error_of("fp16: false\ncompute_dtype: float16"),
            "run.yaml:1:1: fp16: got false, but training.compute_dtype is float16 (run.yaml:2:1); remove one "
            "of them");
  EXPECT_EQ(error_of("", {"bf16=true", "compute_dtype=float16"}),
            "command line: bf16: got true, but training.compute_dtype is float16 (command line); remove one "
            "of them");
  EXPECT_EQ(error_of("optimizer: adamw\nUSE_4BIT_OPTIMIZER: true"),
            "run.yaml:2:1: USE_4BIT_OPTIMIZER: got true, but training.optimizer is adamw (run.yaml:1:1); "
            "remove one of them");
  EXPECT_THAT(error_of("max_steps: null"), HasSubstr("run.yaml:1:1: training.max_steps: got null"));
  EXPECT_EQ(error_of("min_lr: 0.5"),
            "run.yaml:1:1: training.min_lr: got 0.5, but training.learning_rate is 0.001 (default); the "
            "learning rate decays to min_lr: make min_lr the smaller one");
  EXPECT_THAT(error_of("{compute_dtype: float32, master_weights: 24}"),
              HasSubstr("training.compute_dtype is float32 (run.yaml:1:2)"));
  EXPECT_THAT(error_of("stages: [5, -1]", {"max_samples=7"}),
              HasSubstr("data.max_samples is 7 (command line)"));
  EXPECT_THAT(error_of("{n_embd: 3, n_head: 5, mlp_internal_dim_multiplier: 2}"),
              HasSubstr("a multiple of 2 * n_head"));
  EXPECT_THAT(error_of("decay_steps: 5"), HasSubstr("training.lr_scheduler is cosine (default)"));
}

TEST(ConfigErrors, KeysGivenTwice) {
  EXPECT_EQ(error_of("training:\n  eps: 1\n  eps: 1"),
            "run.yaml:3:3: eps: given twice; training.eps has a value at run.yaml:2:3: remove one");
  EXPECT_THAT(error_of("learning_rate: 1\ntraining: {learning_rate: 1}"),
              HasSubstr("run.yaml:1:1: remove one"));
  EXPECT_THAT(error_of("max_steps: 1\nMAX_ITERS: 1"),
              HasSubstr("MAX_ITERS: given twice; training.max_steps"));
  EXPECT_THAT(error_of("training: {eps: 1}\ntraining: {eps: 1}"), HasSubstr("given twice"));
}

TEST(ConfigErrors, TextThatIsNoConfig) {
  EXPECT_EQ(error_of("just words"), "run.yaml:1:1: got just words, expected lines of `key: value`");
  EXPECT_THAT(error_of("- a\n- b"), StartsWith("run.yaml:1:1: got a list"));
  EXPECT_THAT(error_of("training:\n  eps: [1"), AllOf(StartsWith("run.yaml:"), HasSubstr("not YAML")));
  EXPECT_THAT(error_of("training:\n\teps: 1"), StartsWith("run.yaml:2:"));
  EXPECT_THAT(error_of("eps: 1\n---\neps: 1"), StartsWith("run.yaml:2:1: the config ends before this line"));
  EXPECT_THAT(error_of("eps: &x 1\nmin_lr: *x"), StartsWith("run.yaml:1:6: anchors"));
  EXPECT_THAT(error_of("eps: !!float 1"), HasSubstr("tags"));
  EXPECT_THAT(error_of("[a]: 1"), HasSubstr("a key must be a word"));
  EXPECT_EQ(error_of("eps: 1\nx\x01: 2"), "run.yaml:2:2: byte 0x01 is not text; save the file as UTF-8");
  EXPECT_THAT(error_of("eps: \xFF"), HasSubstr("byte 0xff"));
  EXPECT_THAT(error_of(std::string_view("a\0b", 3)), HasSubstr("byte 0x00"));
  EXPECT_THAT(error_of(std::string(kMaxConfigBytes + 1, '#')), HasSubstr("at most 1048576"));
  EXPECT_THAT(error_of(std::string(5000, '[')), StartsWith("run.yaml:1:"));
  EXPECT_THAT(error_of(std::string(1000, 'k') + ": 1"), HasSubstr("k…: unknown key"));
  EXPECT_EQ(error_of("", {"learning_rate"}),
            "command line: learning_rate: expected key=value, such as learning_rate=3e-4");
  EXPECT_THAT(error_of("", {"=3"}), HasSubstr("expected key=value"));
  EXPECT_THAT(error_of("", {"eps=[1"}), StartsWith("command line: eps: not YAML"));
}

TEST(ConfigErrors, Files) {
  const auto missing = load("/nowhere/run.yaml");
  EXPECT_EQ(missing.status().code(), StatusCode::failed);
  EXPECT_EQ(missing.status().message(), "/nowhere/run.yaml: cannot be opened: No such file or directory");
  EXPECT_THAT(load(::testing::TempDir()).status().message(), HasSubstr("cannot be read: Is a directory"));

  const std::string path = ::testing::TempDir() + "octavo_config_test.yaml";
  std::ofstream(path) << "eps: 1e-6\ndata: {train: a.txt}\n";
  const auto config = load(path);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->settings.training.options.at("eps"), 1e-6);
  EXPECT_EQ(config->origin("training.eps").text(), path + ":1");
  EXPECT_TRUE(check_complete(*config).ok());
  EXPECT_THAT(check_complete(*parse("", "run.yaml")).message(), StartsWith("data.train: not given"));
  EXPECT_THAT(check_complete(*parse("train: null", "run.yaml")).message(),
              StartsWith("run.yaml:1:1: data.train"));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace octavo_train
