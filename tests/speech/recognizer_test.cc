// Tests transcription with models from files and from checkpoints: results equal those of the single parts,
// and models that cannot transcribe are errors.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/recognizer.h"

#include "tests/speech/model_support.h"
#include "tests/train/files_support.h"
#include "train/checkpoint/folder/checkpoint_writer.h"
#include "train/checkpoint/tensors.h"
#include "train/model/model.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/run_model.h"
#include "train/tasks/speech/features/featurizer.h"
#include "train/tasks/speech/recognition/greedy.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

namespace octavo_train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kTokens = 30;

const std::string& pieces() {
  static const std::string bytes = [] {
    int line = 0;
    return train_tokenizer({.vocabulary = kTokens},
                           [&](std::string& out) {
                             out = "three blue boats sail by the quiet harbour";
                             return line++ < 20;
                           })
        .value();
  }();
  return bytes;
}

SpeechModelSettings model_settings(SpeechHead head) {
  SpeechModelSettings out = tiny_model();
  out.vocabulary = kTokens;
  out.head = head;
  return out;
}

// Returns a model with random weights that emits labels at some frames.
SpeechModel make_model(SpeechHead head) {
  torch::manual_seed(5);
  SpeechModel out(model_settings(head));
  const torch::NoGradGuard no_grad;
  const std::string name = head == SpeechHead::ctc ? "ctc_head.weight" : "joint.head.weight";
  out->named_parameters()[name].mul_(20);
  return out;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string write_folder(const TempFolder& folder, SpeechHead head) {
  const std::string path = folder.at("model");
  const SpeechModel model = make_model(head);
  EXPECT_TRUE(
      write_transformers_model(path, model_settings(head), nullptr, sources_of(tensors_of(*model))).ok());
  write_file(path + "/tokenizer.model", pieces());
  return path;
}

std::vector<float> sound(std::size_t samples, double pitch) {
  std::vector<float> out(samples);
  for (std::size_t i = 0; i < samples; ++i) {
    const double t = static_cast<double>(i) / 16000;
    out[i] = static_cast<float>(0.3 * std::sin(pitch * t * (1 + t)) * std::sin(9 * t));
  }
  return out;
}

// Runs the parts of the pipeline on a single clip.
Transcript decoded_alone(SpeechModelImpl& model, const std::vector<float>& samples) {
  const torch::NoGradGuard no_grad;
  model.eval();
  FeatureSettings settings;
  settings.features = model.settings().mel_bands;
  const std::int64_t count = std::ssize(samples);
  const torch::Tensor audio = torch::from_blob(const_cast<float*>(samples.data()), {1, count});
  const Features features = Featurizer(settings, torch::kCPU)(audio, std::span(&count, 1));
  const Encoded encoded = model.encode(features.frames, features.lengths, {});
  return (model.settings().head == SpeechHead::ctc
              ? decode_ctc(model.ctc_logits(encoded.frames), encoded.lengths)
              : decode_greedy(model, encoded.frames, encoded.lengths))[0];
}

const RecognizerOptions kOnCpu{.device = {DeviceName::Kind::cpu, {}}};

TEST(Recognizer, EqualsTheSinglePartsForAnyBatch) {
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::rnnt, SpeechHead::ctc}) {
    const TempFolder folder;
    auto recognizer = Recognizer::open(write_folder(folder, head), kOnCpu);
    ASSERT_TRUE(recognizer.ok()) << recognizer.status().message();
    EXPECT_EQ(recognizer->rate(), 16000);
    EXPECT_DOUBLE_EQ(recognizer->frame_seconds(), 0.08);
    EXPECT_EQ(recognizer->tokenizer().size(), kTokens);
    const std::vector<std::vector<float>> sounds = {
        sound(40000, 900), {}, sound(16000, 2000), sound(200, 500), sound(60001, 300)};
    const std::vector<std::span<const float>> clips(sounds.begin(), sounds.end());
    const std::vector<Transcription> results = recognizer->transcribe(clips);
    ASSERT_EQ(results.size(), 5U);
    SpeechModel model = make_model(head);
    std::size_t labels = 0;
    for (const std::size_t i : {0, 2, 4}) {
      EXPECT_EQ(results[i].tokens, decoded_alone(*model, sounds[i])) << i;
      labels += results[i].tokens.size();
      std::string text;
      for (const TranscribedWord& word : results[i].words) text += (text.empty() ? "" : " ") + word.text;
      EXPECT_EQ(results[i].text, text);
    }
    EXPECT_GT(labels, 0U);
    for (const std::size_t i : {1, 3}) EXPECT_TRUE(results[i].tokens.empty() && results[i].text.empty());
  }
}

constexpr const char* kSmall = R"(task: speech
model:
  {name: fastconformer, vocab_size: 30, joint: {joint_hidden: 48}, decoder: {pred_hidden: 48, pred_rnn_layers: 2},
   encoder: {feat_in: 32, subsampling_conv_channels: 16, n_layers: 2, d_model: 64, n_heads: 4}}
data: {generator: {clips: 8}}
training: {max_steps: 7}
)";
constexpr const char* kOfFiles = R"(task: speech
model: {name: /gone/away.nemo}
data: {generator: {clips: 8}}
training: {max_steps: 7}
)";

// Writes a checkpoint like a run does.
std::string write_checkpoint(const TempFolder& folder, const std::string& config,
                             const std::map<std::string, std::string>& kept) {
  auto writer = CheckpointWriter::begin(folder.at("run"), 7, 1000);
  EXPECT_TRUE(writer.ok());
  const SpeechModel model = make_model(SpeechHead::tdt);
  EXPECT_TRUE(writer->add_tensors("model.safetensors", sources_of(tensors_of(*model))).ok());
  EXPECT_TRUE(writer->add_text("config.yaml", config).ok());
  for (const auto& [name, bytes] : kept) EXPECT_TRUE(writer->add_text(name, bytes).ok());
  EXPECT_TRUE(writer->commit().ok());
  return folder.at("run");
}

std::map<std::string, std::string> all_files() {
  FeatureSettings features;
  features.features = 32;
  return checkpoint_extra_files({model_settings(SpeechHead::tdt), features}, pieces());
}

TEST(Recognizer, OfARunAndOfACheckpoint) {
  const TempFolder folder;
  const std::string run = write_checkpoint(folder, kSmall, {{"tokenizer.model", pieces()}});
  const std::vector<float> samples = sound(48000, 700);
  const std::vector<std::span<const float>> clips = {samples};
  SpeechModel model = make_model(SpeechHead::tdt);
  RecognizerOptions options = kOnCpu;
  for (const std::string& name : {run, run + "/checkpoint-7"}) {
    auto recognizer = Recognizer::open(name, options);
    ASSERT_TRUE(recognizer.ok()) << recognizer.status().message();
    EXPECT_EQ(recognizer->transcribe(clips)[0].tokens, decoded_alone(*model, samples));
  }
  options.checkpoint = "8";
  EXPECT_THAT(Recognizer::open(run, options).status().message(), AllOf(HasSubstr("8"), HasSubstr("7")));
  options.checkpoint = "7";
  EXPECT_TRUE(Recognizer::open(run, options).ok());
  // The compute type differs from the type of the file's weights.
  options.dtype = ComputeType::bfloat16;
  auto narrow = Recognizer::open(run, options);
  ASSERT_TRUE(narrow.ok()) << narrow.status().message();
  EXPECT_EQ(narrow->transcribe(clips).size(), 1U);
}

TEST(Recognizer, NeedsNoFilesButTheCheckpoints) {
  const TempFolder folder, other;
  const std::vector<float> samples = sound(48000, 700);
  const std::vector<std::span<const float>> clips = {samples};
  auto recognizer = Recognizer::open(write_checkpoint(folder, kOfFiles, all_files()), kOnCpu);
  ASSERT_TRUE(recognizer.ok()) << recognizer.status().message();
  EXPECT_EQ(recognizer->transcribe(clips)[0].tokens, decoded_alone(*make_model(SpeechHead::tdt), samples));
  EXPECT_THAT(Recognizer::open(write_checkpoint(other, kOfFiles, {}), kOnCpu).status().message(),
              HasSubstr("/gone/away.nemo: does not exist"));
}

TEST(Recognizer, CannotTranscribeIsAnError) {
  const auto problem = [](const std::string& name) {
    return Recognizer::open(name, kOnCpu).status().message();
  };
  {
    const TempFolder folder;
    EXPECT_THAT(problem(write_checkpoint(folder, kSmall, {})),
                AllOf(HasSubstr("no tokenizer"), HasSubstr("generated clips")));
  }
  const TempFolder folder;
  EXPECT_THAT(problem(folder.at("nothing")), HasSubstr("does not exist"));
  const std::string model = write_folder(folder, SpeechHead::tdt);
  RecognizerOptions best = kOnCpu;
  best.checkpoint = "best";
  EXPECT_THAT(Recognizer::open(model, best).status().message(), HasSubstr("is not a run's folder"));
  int line = 0;
  const auto other = train_tokenizer({.vocabulary = 20}, [&](std::string& out) {
    out = "a boat";
    return line++ < 9;
  });
  write_file(model + "/tokenizer.model", *other);
  EXPECT_THAT(problem(model), AllOf(HasSubstr("tokenizer.model"), HasSubstr("30")));
  std::filesystem::remove(model + "/tokenizer.model");
  EXPECT_THAT(problem(model), HasSubstr("tokenizer.model"));
}

}  // namespace
}  // namespace octavo_train
