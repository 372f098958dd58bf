// Tests DeepSpeed's config files: the settings that their keys become, the notes, and the errors with their
// places. The file of a guide is in config_guides_test.cc.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/deepspeed.h"

#include "tests/support/random.h"
#include "tests/train/text_files.h"
#include "train/config/config.h"

#include <array>

namespace octavo_train {
namespace {

constexpr std::string_view kWhole = R"({
	"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
	"gradient_clipping": 0.5, "communication_data_type": "fp32", "steps_per_print": 2000,
	"optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.01}},
	"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000},
	"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "none"}, "reduce_bucket_size": 5e8}
})";

class DeepSpeed : public testing::Test {
 protected:
  [[nodiscard]] Result<Config> given(std::string_view json, const std::string& yaml = "",
                                     const Words& words = {}) const {
    files_.write("ds.json", std::string(json));
    files_.write("run.yaml", "training:\n  deepspeed: ds.json\n" + yaml);
    return load(files_.path("run.yaml"), words);
  }
  // Returns the error message without the folder.
  [[nodiscard]] std::string error(std::string_view json, const std::string& yaml = "",
                                  const Words& words = {}) const {
    std::string text = given(json, yaml, words).status().message();
    const std::string folder = files_.path("");
    for (auto at = text.find(folder); at != std::string::npos; at = text.find(folder))
      text.erase(at, folder.size());
    return text;
  }
  TextFiles files_;
};

TEST_F(DeepSpeed, EveryKeyThatMapsHasItsValue) {
  const auto config = given(kWhole);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const TrainingSettings& training = config->settings.training;
  EXPECT_EQ(training.global_batch_size, 64);
  EXPECT_EQ(training.per_device_train_batch_size, 4);
  EXPECT_EQ(training.gradient_accumulation_steps, 2);
  EXPECT_FALSE(training.accumulation_is_auto);
  EXPECT_EQ(training.max_grad_norm, 0.5);
  EXPECT_EQ(training.reduce_dtype, ReduceType::float32);
  EXPECT_EQ(training.optimizer, (OptimizerName{octavo::Algorithm::adamw, octavo::StateFormat::fp32}));
  EXPECT_EQ(training.learning_rate, 3e-4);
  EXPECT_EQ(training.options.at("beta1"), 0.8);
  EXPECT_EQ(training.options.at("beta2"), 0.99);
  EXPECT_EQ(training.options.at("eps"), 1e-7);
  EXPECT_EQ(training.options.at("weight_decay"), 0.01);
  EXPECT_EQ(training.compute_dtype, ComputeType::float16);
  EXPECT_EQ(training.parallel, Parallel::zero1);
  const std::string json = files_.path("ds.json");
  EXPECT_EQ(config->origin("training.parallel").text(), json + ":6 (zero_optimization.stage)");
  EXPECT_EQ(config->origin("training.compute_dtype").where(), json + ":5:11 (fp16.enabled)");
  EXPECT_THAT(config->notes, ElementsAre(HasSubstr(":3:63: steps_per_print: without effect"),
                                         HasSubstr("fp16.loss_scale: without effect"),
                                         HasSubstr("fp16.loss_scale_window: without effect"),
                                         HasSubstr("zero_optimization.reduce_bucket_size: without effect")));
  EXPECT_THAT(to_table(*config), HasSubstr("training.deepspeed"));
  // The config saved with the run contains the values and does not need the DeepSpeed file.
  const std::string saved = to_yaml(config->settings);
  EXPECT_THAT(saved, AllOf(HasSubstr("parallel: zero1\n"), testing::Not(HasSubstr("deepspeed"))));
  EXPECT_THAT(differences(parse(saved, "saved.yaml").value().settings, config->settings), IsEmpty());
}

TEST_F(DeepSpeed, StagesAndPrecisions) {
  const auto parallel = [&](const std::string& stage) {
    return given(R"({"zero_optimization": {"stage": )" + stage + "}}").value().settings.training.parallel;
  };
  EXPECT_EQ(parallel("0"), Parallel::ddp);
  EXPECT_EQ(parallel("2"), Parallel::zero2);
  EXPECT_EQ(parallel("null"), Parallel::automatic);
  const auto computes = [&](const std::string& json, const std::string& yaml = "") {
    return given(json, yaml).value().settings.training.compute_dtype;
  };
  EXPECT_EQ(computes(R"({"bf16": {"enabled": false}})"), ComputeType::float32);
  EXPECT_EQ(computes(R"({"bf16": {"enabled": "auto"}})", "  compute_dtype: float16\n"), ComputeType::float16);
  EXPECT_EQ(computes(R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}})", "  bf16: true\n"),
            ComputeType::bfloat16);
  EXPECT_EQ(error(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
            "ds.json:1:38: fp16.enabled: got true, but training.compute_dtype is bfloat16 (ds.json:1:11 "
            "(bf16.enabled)); remove one of them");
}

TEST_F(DeepSpeed, TheConfigMustAgree) {
  const char* const clipped = R"({"gradient_clipping": 1.0})";
  EXPECT_TRUE(given(clipped, "  max_grad_norm: 1\n").ok());
  EXPECT_EQ(error(clipped, "  grad_clip: 0.5\n"),
            "ds.json:1:2: gradient_clipping (training.max_grad_norm): got 1.0, but training.max_grad_norm is "
            "0.5 (run.yaml:3:3); remove one of them");
  EXPECT_THAT(error(R"({"bf16": {"enabled": true}})", "  compute_dtype: float32\n"),
              HasSubstr("bf16.enabled: got true, but training.compute_dtype is float32 (run.yaml:3:3)"));
  EXPECT_THAT(
      error(R"({"optimizer": {"type": "AdamW"}})", "  optimizer: adamw_8bit\n"),
      AllOf(StartsWith("ds.json:1:16: optimizer.type (training.optimizer): got the text \"AdamW\", but "),
            HasSubstr("is adamw_8bit (run.yaml:3:3)")));
  // The command line overrides both. A file named on the command line overrides the config.
  EXPECT_EQ(given(clipped, "", {"max_grad_norm=2"})->settings.training.max_grad_norm, 2);
  const std::string other = "deepspeed=" + files_.write("other.json", R"({"gradient_clipping": 3})");
  const auto config = given("not read", "  max_grad_norm: 1\n", {other});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->settings.training.max_grad_norm, 3);
  EXPECT_EQ(config->origin("training.max_grad_norm").text(),
            files_.path("other.json") + ":1 (gradient_clipping)");
  EXPECT_THAT(error("{}", "", {other, "max_grad_norm=2"}),
              HasSubstr("other.json:1:2: gradient_clipping (training.max_grad_norm): got 3, but "
                        "training.max_grad_norm is 2 (command line)"));
  EXPECT_EQ(given("not read", "", {"deepspeed=null"})->settings.training.max_grad_norm, 1);
}

TEST_F(DeepSpeed, StandsInTheConfigToo) {
  const auto config = parse("deepspeed: {zero_optimization: {stage: 2, overlap_comm: true}}", "run.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->settings.training.parallel, Parallel::zero2);
  EXPECT_EQ(config->origin("training.parallel").where(), "run.yaml:1:33 (zero_optimization.stage)");
  EXPECT_THAT(config->notes, ElementsAre(StartsWith("run.yaml:1:43: zero_optimization.overlap_comm: ")));
  EXPECT_THAT(parse("deepspeed: {stage: 2}", "run.yaml").status().message(),
              StartsWith("run.yaml:1:13: stage: the trainer has no such feature"));
  EXPECT_THAT(parse("deepspeed: [a]", "run.yaml").status().message(),
              HasSubstr("training.deepspeed: got a list, expected a path or a mapping"));
  EXPECT_TRUE(parse("deepspeed: false", "run.yaml").ok());
}

TEST_F(DeepSpeed, OptimizerStatesInHostMemory) {
  const auto config = given(
      R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": true, "ratio": 0.5},
          "offload_param": {"device": "none"}}})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->settings.training.offload, Offload::host);
  EXPECT_EQ(config->settings.training.offload_ratio, 0.5);
  EXPECT_FALSE(config->settings.training.offload_gradients);
  EXPECT_THAT(config->notes,
              ElementsAre(HasSubstr("offload_optimizer.pin_memory: without effect: host memory is "
                                    "always pinned if that is possible")));
  EXPECT_EQ(given(R"({"zero_optimization": {"cpu_offload": true}})")->settings.training.offload,
            Offload::host);
  for (const char* nothing :
       {R"({"device": "none", "ratio": 0.5})", R"({"device": null})", "false", "null"}) {
    const auto none = given(std::string(R"({"zero_optimization": {"offload_optimizer": )") + nothing + "}}");
    ASSERT_TRUE(none.ok()) << none.status().message();
    EXPECT_EQ(none->settings.training.offload, Offload::none) << nothing;
  }
  EXPECT_THAT(
      error(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})", "  offload: stream\n"),
      AllOf(HasSubstr("offload"), HasSubstr("stream"), HasSubstr("host")));
}

// Stage 2 with the optimizer on the CPU: DeepSpeed then keeps gradients in host memory too.
TEST_F(DeepSpeed, Stage2OffloadsGradientsWithTheOptimizer) {
  const std::string offload = R"("offload_optimizer": {"device": "cpu"})";
  const std::string both = R"({"zero_optimization": {"stage": 2, )" + offload + "}}";
  const auto config = given(both);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->settings.training.offload_gradients);
  EXPECT_EQ(config->origin("training.offload_gradients").text(),
            files_.path("ds.json") + ":1 (zero_optimization.offload_optimizer.device)");
  EXPECT_THAT(config->notes, IsEmpty());
  const auto goes = [&](const std::string& json, const std::string& yaml = "", const Words& words = {}) {
    const auto it = given(json, yaml, words);
    EXPECT_TRUE(it.ok()) << it.status().message();
    return it.ok() && it->settings.training.offload_gradients;
  };
  EXPECT_TRUE(goes("{\"zero_optimization\": {" + offload + ", \"stage\": 2}}")) << "in either order";
  EXPECT_TRUE(goes(R"({"zero_optimization": {"stage": 2, "cpu_offload": true}})"));
  EXPECT_TRUE(goes(both, "  gradient_accumulation_steps: 6\n  max_grad_norm: 1\n  compute_dtype: float16\n"));
  EXPECT_FALSE(goes(R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}})"));
  EXPECT_FALSE(goes(R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}})"));
  EXPECT_FALSE(goes(R"({"zero_optimization": {"stage": 2}})"));
  // Explicit settings take precedence.
  EXPECT_FALSE(goes(both, "  offload_gradients: false\n"));
  EXPECT_FALSE(goes(both, "", {"offload_gradients=false"}));
  EXPECT_FALSE(goes(both, "", {"offload=none"}));
  EXPECT_FALSE(goes(both, "", {"parallel=ddp"}));
  EXPECT_FALSE(goes(both, "", {"deepspeed=null"}));
  // Ranks sum gradients on their GPUs, so gradients are not offloaded.
  const auto ranks = given(both, "  num_gpus: 2\n");
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  EXPECT_FALSE(ranks->settings.training.offload_gradients);
  EXPECT_THAT(ranks->notes,
              ElementsAre(AllOf(HasSubstr("ds.json:1:58 (zero_optimization.offload_optimizer.device): "),
                                HasSubstr("gradients stay on the GPUs, because 2 ranks sum them there"))));
}

TEST_F(DeepSpeed, WhatDoesNotMapIsNamed) {
  const std::array<std::pair<const char*, const char*>, 24> all = {{
      {R"({"zero_optimization": {"stage": 3}})",
       "ds.json:1:33: zero_optimization.stage: got 3, but weights that are divided among ranks are not built "
       "in; use 0, 1 or 2"},
      {R"({"zero_optimization": {"stage": "two"}})", "stage: got the text \"two\", expected 0, 1 or 2"},
      {R"({"zero_optimization": true})", "ds.json:1:23: zero_optimization: got true, expected a section"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})",
       "ds.json:1:56: zero_optimization.offload_optimizer.device: got the text \"nvme\", expected cpu "
       "(training.offload: host) or none; states on a disk are not built in"},
      {R"({"zero_optimization": {"offload_optimizer": {"ratio": 0.5}}})",
       "ds.json:1:24: zero_optimization.offload_optimizer: has no device; write \"device\": \"cpu\""},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "nvme_path": "/x"}}})",
       "zero_optimization.offload_optimizer.nvme_path: the trainer has no such feature"},
      {R"({"zero_optimization": {"offload_param": {}}})",
       "ds.json:1:24: zero_optimization.offload_param: weights stay on their device; remove it. Optimizer "
       "states and gradients can be in host memory: offload_optimizer, or training.offload: host or stream"},
      {R"({"zero_optimization": {"cpu_offload": "yes, please"}})", "expected true or false"},
      {R"({"zero_optimization": {"stage3_max_live_parameters": 1e9}})",
       "zero_optimization.stage3_max_live_parameters: the trainer has no such feature"},
      {"{\n \"flops_profiler\": {\"enabled\": true}}",
       "ds.json:2:2: flops_profiler: the trainer has no such feature"},
      {R"({"scheduler": {"type": "WarmupLR"}})",
       "scheduler: is not read from DeepSpeed's file; remove it, and write lr_scheduler"},
      {R"({"activation_checkpointing": {}})", "gradient_checkpointing: true"},
      {R"({"optimizer": {"type": "Adam"}})", "optimizer.type: got Adam, which is AdamW in DeepSpeed"},
      {R"({"optimizer": {"type": "OneBitAdam"}})",
       "(training.optimizer): got the text \"OneBitAdam\", expected one of"},
      {R"({"optimizer": {"params": {"betas": [0.9]}}})", "betas: got a list, expected a list of two numbers"},
      {R"({"optimizer": {"params": {"momentum": 0.9}}})",
       "optimizer.params.momentum: the trainer has no such feature"},
      {R"({"fp16": {"loss_scale": 128}})", "fp16.loss_scale: got 128, but a fixed scale"},
      {R"({"gradient_clipping": "1.0"})",
       "ds.json:1:23: gradient_clipping (training.max_grad_norm): got the text \"1.0\", expected a number"},
      {R"({"gradient_clipping": -1})", "got -1, expected a number"},
      {R"({"bf16": {"enabled": 1}})", "bf16.enabled: got 1, expected true or false"},
      {R"({"communication_data_type": "fp16"})",
       "(training.reduce_dtype): got the text \"fp16\", expected auto or float32"},
      {R"({"gradient_clipping": 1, "gradient_clipping": 1})",
       "ds.json:1:26: gradient_clipping: given twice; the first is at ds.json:1:2"},
      {R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})",
       "ds.json:1:2 (train_batch_size): training.global_batch_size: got 10"},
      {"[]", "ds.json:1:1: got a list, expected DeepSpeed's keys in braces"},
  }};
  for (const auto& [json, message] : all) EXPECT_THAT(error(json), HasSubstr(message)) << json;
}

TEST_F(DeepSpeed, AFileThatCannotBeRead) {
  EXPECT_THAT(error("{\"a\": 1"), StartsWith("ds.json:1:"));
  EXPECT_THAT(error("{\"bf16\": {\"enabled\": true}\n  \"fp16\": 1}"), StartsWith("ds.json:2:"));
  EXPECT_THAT(error("{\"bf16\": \x01}"), StartsWith("ds.json:1:10: byte 0x01 is not text"));
  EXPECT_THAT(error(""), StartsWith("ds.json:1:1: got null"));
  const std::string yaml = files_.write("none.yaml", "deepspeed: none.json\n");
  EXPECT_THAT(load(yaml).status().message(),
              AllOf(StartsWith(yaml + ":1:1: training.deepspeed: none.json: cannot be opened: No such file"),
                    HasSubstr(files_.path("none.json") + " (beside the config) and "),
                    HasSubstr("(from the working directory)")));
}

// Every text gives settings or an error with a place, never a crash.
TEST_F(DeepSpeed, AnyTextIsReadOrAnErrorWithItsPlace) {
  constexpr std::array<std::string_view, 16> kPieces = {
      "{", "}",  "[", "]", ",", ":", "\"", "\\", "null", "true", "1e999", "\"auto\"", "\"stage\": 2",
      "#", "&a", "\t"};
  int read = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    test::Random random(seed);
    std::string text(kWhole);
    for (std::uint64_t i = 1 + random.below(3); i > 0; --i) {
      const std::size_t at = random.below(text.size() + 1);
      if (random.chance(3))
        text.erase(at, random.below(12));
      else if (random.chance(3))
        text.insert(at, 1, static_cast<char>(random.below(256)));
      else
        text.insert(at, kPieces[random.below(kPieces.size())]);
    }
    SCOPED_TRACE(text);
    const auto settings = parse_deepspeed(text, {"ds.json", true});
    (settings.ok() ? read : refused) += 1;
    if (settings.ok()) continue;
    ASSERT_THAT(settings.status().message(), StartsWith("ds.json:"));
    ASSERT_EQ(settings.status().message().find('\n'), std::string::npos);
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace octavo_train
