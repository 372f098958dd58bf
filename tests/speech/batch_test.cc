// Tests batches of the task `speech`: their contents, rejected batches, and the effect of SpecAugment.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/data/batch.h"

#include "tests/train/shares.h"
#include "train/config/config.h"
#include "train/tasks/speech/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace octavo_train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kConfig =
    "task: speech\nmodel: {vocab_size: 6, encoder: {feat_in: 16, subsampling_conv_channels: 4, n_layers: 1, "
    "d_model: 16, n_heads: 2}, decoder: {pred_hidden: 8}, joint: {joint_hidden: 8}}\n"
    "data: {generator: {clips: 32, seconds: 0.64, tokens: 3}}\n";

Settings settings(const std::vector<std::string>& words = {}) {
  auto config = parse(kConfig, "run.yaml", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config->settings;
}

struct Made {
  explicit Made(const std::vector<std::string>& words = {}) : all(settings(words)) {
    auto opened = task.open({all, none, nullptr});
    EXPECT_TRUE(opened.ok());
    samples = opened->samples;
    torch::manual_seed(1);
    model = task.build(all).module;
    model->train();
  }
  Settings all;
  std::string none;
  SpeechTask task;
  std::int64_t samples = 0;
  std::shared_ptr<torch::nn::Module> model;
};

std::string refused(const Batch& batch, std::int64_t vocabulary = 6) {
  try {
    check_batch(batch, vocabulary);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(SpeechBatch, HasClipsOfAnyLengthPaddedWithZeros) {
  const Made made;
  const Order order(made.samples, 1, 40);
  const Batch batch = made.task.read(order, 44, 4);
  EXPECT_THAT(batch.draws, ElementsAre(44, 45, 46, 47));
  const SpeechClips clips = clips_of(batch);
  EXPECT_EQ(clips.features.scalar_type(), torch::kFloat32);
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t frames = clips.feature_lengths_on_host[static_cast<std::size_t>(i)];
    EXPECT_EQ(clips.feature_lengths[i].item<std::int64_t>(), frames);
    longest = std::max(longest, frames);
    EXPECT_EQ(clips.features[i].slice(0, frames).abs().sum().item<float>(), 0);
    EXPECT_GT(clips.features[i][frames - 1].abs().sum().item<float>(), 0);
  }
  EXPECT_EQ(clips.features.size(1), longest);
  EXPECT_EQ(refused(batch), "");
  // A clip has the same features in another batch.
  const Batch alone = made.task.read(order, 46, 1);
  EXPECT_TRUE(torch::equal(clips_of(alone).features[0],
                           clips.features[2].slice(0, 0, clips.feature_lengths_on_host[2])));
  const Batch largest = made.task.largest_batch(order, 3, Task::BatchUse::training);
  EXPECT_EQ(clips_of(largest).features.sizes(), (std::vector<std::int64_t>{3, 64, 16}));
  EXPECT_EQ(clips_of(largest).targets.sizes(), (std::vector<std::int64_t>{3, 3}));
  EXPECT_EQ(largest.draws.size(), 3U);
}

TEST(SpeechBatch, WhatDoesNotFitIsNamed) {
  const Made made;
  const Batch good = made.task.read(Order(32, 1, 0), 0, 3);
  const auto with = [&](const char* name, std::int64_t row, std::int64_t value) {
    Batch bad = good;
    for (NamedTensors* each : {&bad.tensors, &bad.host}) {
      for (auto& [called, tensor] : *each) {
        if (called != name) continue;
        tensor = tensor.clone();
        tensor.view({3, -1})[row][0].fill_(value);
      }
    }
    return bad;
  };
  EXPECT_THAT(refused(with("targets", 1, 6)),
              HasSubstr("clip 1 of a batch has the label 6, expected 0 to 5"));
  EXPECT_THAT(refused(with("targets", 2, -1)), HasSubstr("the label -1"));
  EXPECT_THAT(refused(with("feature_lengths", 0, 65)), HasSubstr("clip 0 of a batch has 65 frames"));
  EXPECT_THAT(refused(with("feature_lengths", 0, 0)), HasSubstr("expected 1 to "));
  EXPECT_THAT(refused(with("target_lengths", 2, 4)), HasSubstr("clip 2 of a batch has 4 labels"));
  EXPECT_THAT(refused(good, 1), HasSubstr("model.vocab_size"));
}

TEST(SpeechBatch, TrainingFramesAreThoseOfNemo) {
  FeatureSettings settings;  // Parakeet's settings: pad_to is 0
  EXPECT_EQ(settings.padded_frames(64), 65);
  const torch::Tensor features = torch::ones({2, 64, 3});
  const torch::Tensor padded = padded_for_training(features, 64, settings);
  EXPECT_EQ(padded.sizes(), (std::vector<std::int64_t>{2, 65, 3}));
  EXPECT_EQ(padded.sum().item<float>(), features.sum().item<float>());
  settings.pad_to = 16;
  EXPECT_EQ(settings.padded_frames(64), 80);
  EXPECT_EQ(settings.padded_frames(63), 64);
  EXPECT_EQ(padded_for_training(features, 64, settings).size(1), 80);
}

TEST(SpecAugmentMasks, AreZerosWhereTheySayAndNothingElsewhere) {
  const torch::Tensor features = torch::ones({2, 10, 6});
  const std::vector<Masks> masks = {{{{2, 4}, {3, 5}}, {{0, 1}}}, {{{0, 0}, {9, 10}}, {{4, 6}}}};
  const torch::Tensor out = masked(features, masks);
  for (std::int64_t clip = 0; clip < 2; ++clip) {
    for (std::int64_t t = 0; t < 10; ++t) {
      for (std::int64_t band = 0; band < 6; ++band) {
        const bool hidden = clip == 0 ? (t >= 2 && t < 5) || band == 0 : t == 9 || band >= 4;
        EXPECT_EQ(out[clip][t][band].item<float>(), hidden ? 0 : 1) << clip << ' ' << t << ' ' << band;
      }
    }
  }
  EXPECT_EQ(features.sum().item<float>(), 120) << "the batch itself stays";
  EXPECT_TRUE(torch::equal(masked(features, std::vector<Masks>(2)), features));
}

TEST(SpeechBatch, MasksAreOfTrainingAloneAndOfDrawAndStep) {
  Made made({"encoder.dropout=0", "encoder.dropout_pre_encoder=0", "encoder.dropout_att=0",
             "decoder.dropout=0", "joint.dropout=0", "loss.omega=0", "freeze_batch_norm=true",
             "spec_augment.freq_width=3"});
  const Batch batch = made.task.read(Order(32, 1, 0), 0, 2);
  const auto loss = [&](std::int64_t step, std::uint64_t seed = 1) {
    const torch::NoGradGuard no_grad;
    return made.task.loss(batch, {seed, step}).item<float>();
  };
  EXPECT_EQ(loss(1), loss(1));
  EXPECT_NE(loss(1), loss(2));
  EXPECT_NE(loss(1), loss(1, 2));
  made.model->eval();
  EXPECT_EQ(loss(1), loss(2));
}

// The guard of the training step checks the loss.
TEST(SpeechBatch, OneFeatureThatIsNoNumberMakesTheLossNone) {
  Made made({"spec_augment.freq_masks=0", "spec_augment.time_masks=0"});
  Batch batch = made.task.read(Order(32, 1, 0), 0, 2);
  EXPECT_TRUE(std::isfinite(made.task.loss(batch, {1, 1}).item<float>()));
  clips_of(batch).features[1][7][3] = std::nanf("");
  const torch::Tensor loss = made.task.loss(batch, {1, 1});
  EXPECT_FALSE(std::isfinite(loss.item<float>()));
}

TEST(SpeechTask, SharesOfAnEvaluationAddUp) {
  Made made({"generator.validation_clips=29", "per_device_eval_batch_size=2"});
  expect_shares_add_up(made.task);
}

TEST(SpeechBatch, AdviceAndWords) {
  const Made made, thrifty({"gradient_checkpointing=true", "head=ctc"});
  EXPECT_TRUE(made.task.text().memory_advice.empty()) << "its clips cannot be shorter than a second";
  EXPECT_EQ(made.task.text().batch(5), "5 clips of up to 0.64 s and 3 tokens (160 cells of the loss)");
  EXPECT_EQ(thrifty.task.text().batch(5), "5 clips of up to 0.64 s and 3 tokens");
  EXPECT_THAT(made.task.text().speed_advice, HasSubstr("encoder.d_model is 16"));
}

}  // namespace
}  // namespace octavo_train
