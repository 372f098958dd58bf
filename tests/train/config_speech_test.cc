// Tests the keys of the task `speech`: sizes, nested sections, and contradictions.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/config.h"
#include "train/config/task_config.h"
#include "train/tasks/speech/config/keys.h"

namespace octavo_train {
namespace {

Settings parsed(const std::string& text, const Words& words = {}) {
  auto config = parse(text, "run.yaml", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? config->settings : parse("task: speech", "none")->settings;
}
std::string error(const std::string& text, const Words& words = {}) {
  return parse(text, "run.yaml", words).status().message();
}
SpeechModelSettings model_of(const Settings& settings) {
  return with_speech_keys(*known_speech_model(settings.model.name), settings.task_settings.get<SpeechKeys>());
}

constexpr const char* kSizes = R"(model:
  name: fastconformer
  head: rnnt
  vocab_size: 40
  encoder: {feat_in: 16, subsampling_conv_channels: 8, n_layers: 2, d_model: 32, n_heads: 2,
            ff_expansion_factor: 3, conv_kernel_size: 5, dropout: 0.2, dropout_pre_encoder: 0.3, dropout_att: 0}
  decoder: {pred_hidden: 24, pred_rnn_layers: 2, dropout: 0.4}
  joint: {joint_hidden: 48, dropout: 0.25}
  loss: {durations: [1, 2, 8], sigma: 0.05, omega: 0, reduction: mean_volume}
  spec_augment: {freq_masks: 1, time_masks: 3, freq_width: 4, time_width: 20}
  freeze_batch_norm: true
)";

TEST(SpeechConfig, SizesAndSectionsInSections) {
  const Settings s = parsed(kSizes);
  EXPECT_EQ(s.task, "speech");
  EXPECT_EQ(model_of(s), (SpeechModelSettings{.mel_bands = 16,
                                              .subsampling_channels = 8,
                                              .encoder_layers = 2,
                                              .width = 32,
                                              .heads = 2,
                                              .feed_forward = 96,
                                              .kernel = 5,
                                              .freeze_batch_norm = true,
                                              .head = SpeechHead::rnnt,
                                              .vocabulary = 40,
                                              .predictor_width = 24,
                                              .predictor_layers = 2,
                                              .joint_width = 48,
                                              .durations = {1, 2, 8},
                                              .sigma = 0.05,
                                              .omega = 0,
                                              .reduction = "mean_volume",
                                              .dropout = 0.2,
                                              .attention_dropout = 0,
                                              .input_dropout = 0.3,
                                              .predictor_dropout = 0.4,
                                              .joint_dropout = 0.25}));
  const auto& augment = s.task_settings.get<SpecAugmentSettings>();
  EXPECT_EQ(augment.freq_masks, 1);
  EXPECT_EQ(augment.time_masks, 3);
  EXPECT_EQ(augment.freq_width, 4);
  EXPECT_EQ(augment.time_width, 20);
  // Covers the config as saved with a run, and flat keys.
  EXPECT_EQ(to_yaml(parsed(to_yaml(s))), to_yaml(s));
  EXPECT_THAT(to_yaml(s), HasSubstr("\n  encoder.d_model: 32\n"));
  for (const Words& words : {Words{"encoder.d_model=64"}, Words{"model.encoder.d_model=64"},
                             Words{"MODEL.ENCODER.D_MODEL=64"}, Words{"model.encoder={d_model: 64}"}})
    EXPECT_EQ(model_of(parsed(kSizes, words)).width, 64) << words[0];
  EXPECT_EQ(model_of(parsed(kSizes, {"encoder.d_model=64"})).feed_forward, 192);
}

TEST(SpeechConfig, WhatIsLeftOutIsAsTheModelHasIt) {
  const SpeechModelSettings v3 = model_of(parsed("name: nvidia/parakeet-tdt-0.6b-v3\npretrained: false"));
  EXPECT_EQ(v3.encoder_layers, 24);
  EXPECT_EQ(v3.outputs(), 8198);
  const SpeechModelSettings wide = model_of(parsed("name: parakeet-tdt-0.6b-v2", {"encoder.d_model=512"}));
  EXPECT_EQ(wide.feed_forward, 2048);
  EXPECT_EQ(wide.outputs(), 1030);
  EXPECT_LT(model_of(parsed("task: speech")).width, 512) << "small, for a first run";
}

TEST(SpeechConfig, MistakesHaveTheirPlaces) {
  const std::string name = "model:\n  name: fastconformer\n";
  EXPECT_THAT(
      error(name + "  encoder:\n    d_modle: 4\n"),
      HasSubstr("run.yaml:4:5: model.encoder.d_modle: unknown key; did you mean model.encoder.d_model?"));
  EXPECT_THAT(error(name + "  n_layers: 4\n"),
              HasSubstr("run.yaml:3:3: model.n_layers: unknown key; did you mean model.encoder.n_layers?"));
  EXPECT_THAT(error(name + "  encoder: 4\n"), HasSubstr("run.yaml:3:12: encoder: got 4, expected a mapping"));
  EXPECT_THAT(error(name + "  encoder: {d_model: 4}\n  encoder.d_model: 5\n"), HasSubstr("given twice"));
  EXPECT_THAT(error(name + "  encoder: {n_heads: 3}\n"),
              AllOf(StartsWith("run.yaml:3:13: model.encoder.n_heads: got 3"), HasSubstr("d_model (128)")));
  EXPECT_THAT(error(name + "  encoder: {conv_kernel_size: 4}\n"),
              HasSubstr("got 4, expected an odd number from 1 to 999"));
  for (const char* list : {"[]", "[0]", "[1, 1]", "[-1, 2]", "4", "[1, x]"})
    EXPECT_THAT(error(name + "  loss: {durations: " + list + "}\n"), HasSubstr("such as [0, 1, 2, 3, 4]"));
  EXPECT_THAT(error(name + "  head: attention\n"), HasSubstr("expected tdt, rnnt or ctc"));
  EXPECT_THAT(error(name + "  loss: {reduction: sum}\n"), HasSubstr("mean_batch, mean or mean_volume"));
  EXPECT_THAT(error("name: ./mine.nemo\npretrained: false"),
              AllOf(HasSubstr("model.name: got \"./mine.nemo\""), HasSubstr("in its file")));
}

TEST(SpeechConfig, ClipsFitTheModel) {
  EXPECT_THAT(error("task: speech\ngenerator.vocabulary: 65"),
              AllOf(StartsWith("run.yaml:2:1: data.generator.vocabulary: got 65"),
                    HasSubstr("the model has 64 tokens")));
  EXPECT_EQ(error("task: speech\ngenerator.vocabulary: 65", {"vocab_size=65"}), "");
  EXPECT_THAT(error("task: speech\ndata: {generator: {seconds: 20, tokens: 126}}"),
              HasSubstr("at least 16 frames of 10 ms: use tokens: 125 or less"));
  const Config config = *parse("task: speech", "run.yaml");
  EXPECT_THAT(check_complete(config).message(),
              HasSubstr("data.generator.clips=512 generates synthetic clips"));
  EXPECT_TRUE(check_complete(*parse("task: speech", "run.yaml", Words{"generator.clips=3"})).ok());
}

}  // namespace
}  // namespace octavo_train
