// Models with another tokenizer than the one they began with, or with none to begin with: in NeMo's and
// transformers' files.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"
#include "speech/nemo_yaml.h"
#include "train/config/config.h"
#include "train/files_support.h"
#include "train/tasks/speech/archive.h"
#include "train/tasks/speech/archive_tokenizer.h"
#include "train/tasks/speech/entry.h"
#include "train/tasks/speech/feature_tables.h"
#include "train/tasks/speech/kept_model.h"
#include "train/tasks/speech/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cstring>

namespace octavo::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ConfigJson = nlohmann::ordered_json;

Tokenizer tokenizer_of(std::int64_t size, const char* kind = "bpe") {
  int line = 0;
  auto bytes = train_tokenizer({.vocabulary = size, .kind = kind}, [&](std::string& out) {
    out = "three blue boats sail over quiet water " + std::string(static_cast<std::size_t>(line % 7), 'o');
    return line++ < 50;
  });
  return Tokenizer::from_bytes(std::move(bytes).value(), "made.model").value();
}

SpeechModelSettings settings_for(const Tokenizer& tokenizer, SpeechHead head = SpeechHead::tdt) {
  SpeechModelSettings out = read_nemo_config(nemo_yaml(), "x")->model;
  out.joint_width = out.predictor_width;
  out.vocabulary = tokenizer.size();
  out.head = head;
  return out;
}

std::vector<TensorSource> some_weights() {
  return {make_tensor("encoder.layers.0.self_attn.relative_k_proj.weight", "F32", {2, 3}, 2),
          make_tensor("decoder.decoder_projector.bias", "F32", {5}, 3)};
}

TEST(SpeechExport, AModelThatBeganHereAsNemo) {
  const Tokenizer tokenizer = tokenizer_of(40);
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::rnnt, SpeechHead::ctc}) {
    const TempFolder folder;
    const std::string path = folder.at("a.nemo");
    SpeechModelSettings model = settings_for(tokenizer, head);
    FeatureSettings features;
    features.features = model.mel_bands;
    features.preemph = 0.9;
    const std::vector<TensorSource> weights = some_weights();
    const Status done = export_speech_model(weights, model, nullptr, path, features, &tokenizer);
    ASSERT_TRUE(done.ok()) << done.message();
    const auto archive = SpeechArchive::open(path);
    ASSERT_TRUE(archive.ok()) << archive.status().message();
    EXPECT_EQ(archive->kind(), SpeechFiles::nemo);
    const SpeechModelSettings& read = archive->settings();
    EXPECT_EQ(read.head, head);
    EXPECT_EQ(read.vocabulary, tokenizer.size());
    EXPECT_EQ(read.width, model.width);
    EXPECT_EQ(read.feed_forward, model.feed_forward);
    EXPECT_EQ(read.encoder_layers, model.encoder_layers);
    EXPECT_EQ(read.kernel, model.kernel);
    EXPECT_EQ(read.dropout, model.dropout);
    EXPECT_EQ(read.reduction, model.reduction);
    if (head == SpeechHead::tdt) {
      EXPECT_EQ(read.durations, model.durations);
      EXPECT_EQ(read.sigma, model.sigma);
    }
    EXPECT_TRUE(archive->config().notes.empty());
    EXPECT_EQ(archive->features(), features);
    // The tables are those of the features, and the tokenizer is inside.
    const auto tables = archive->feature_tables();
    ASSERT_TRUE(tables.ok()) << tables.status().message();
    EXPECT_EQ(tables->window, make_feature_tables(features).window);
    EXPECT_EQ(tables->filters, make_feature_tables(features).filters);
    const auto inside = archive_tokenizer(*archive);
    ASSERT_TRUE(inside.ok()) << inside.status().message();
    EXPECT_EQ(inside->bytes(), tokenizer.bytes());
    ASSERT_EQ(archive->tensors().size(), 2U);
    EXPECT_EQ(archive->tensors()[0].name, weights[0].name);
    // What NeMo's constructors ask for.
    const ConfigJson config = ConfigJson::parse(archive->config_text());
    EXPECT_EQ(config.at("sample_rate"), 16000);
    EXPECT_EQ(config.at("tokenizer").at("type"), "bpe");
    EXPECT_THAT(config.at("tokenizer").at("vocab_path").get<std::string>(), HasSubstr("nemo:"));
    EXPECT_EQ(config.at("preprocessor").at("features"), model.mel_bands);
    if (head == SpeechHead::ctc) {
      EXPECT_EQ(config.at("decoder").at("num_classes"), tokenizer.size());
      EXPECT_EQ(config.at("decoder").at("vocabulary").size(), static_cast<std::size_t>(tokenizer.size()));
      EXPECT_THAT(config.at("target").get<std::string>(), HasSubstr("EncDecCTCModelBPE"));
    } else {
      EXPECT_EQ(config.at("model_defaults").at("enc_hidden"), model.width);
      EXPECT_EQ(config.at("model_defaults").at("pred_hidden"), model.predictor_width);
      EXPECT_EQ(config.at("joint").at("jointnet").at("joint_hidden"), model.joint_width);
      EXPECT_EQ(config.at("labels")[0], tokenizer.piece(0));
      EXPECT_THAT(config.at("target").get<std::string>(), HasSubstr("EncDecRNNTBPEModel"));
    }
    // Once more from there: nothing changes.
    ASSERT_TRUE(export_speech_model(weights, read, &*archive, folder.at("b.nemo"), features, &*inside).ok());
    EXPECT_EQ(read_bytes(folder.at("b.nemo")), read_bytes(path));
  }
}

TEST(SpeechExport, AnotherTokenizerTakesThePlaceOfTheFirst) {
  const TempFolder folder;
  const Tokenizer first = tokenizer_of(40), second = tokenizer_of(30);
  ASSERT_NE(first.size(), second.size());
  const std::vector<TensorSource> weights = some_weights();
  const SpeechModelSettings before = settings_for(first), after = settings_for(second);
  ASSERT_TRUE(export_speech_model(weights, before, nullptr, folder.at("a.nemo"), {}, &first).ok());
  const auto nemo = SpeechArchive::open(folder.at("a.nemo"));
  ASSERT_TRUE(nemo.ok()) << nemo.status().message();
  ASSERT_TRUE(export_speech_model(weights, after, &*nemo, folder.at("b.nemo"), {}, &second).ok());
  const auto other = SpeechArchive::open(folder.at("b.nemo"));
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->settings().vocabulary, second.size());
  EXPECT_EQ(archive_tokenizer(*other)->bytes(), second.bytes());
  EXPECT_EQ(other->other_files()->size(), 3U) << "no file of the first one";

  // Folders of transformers.
  ASSERT_TRUE(export_speech_model(weights, before, &*nemo, folder.at("hub"), {}, &first).ok());
  const std::vector<std::string> names = {"config.json",    "model.safetensors", "preprocessor_config.json",
                                          "tokenizer.json", "tokenizer.model",   "tokenizer_config.json"};
  EXPECT_EQ(names_in(folder.at("hub")), names);
  const auto hub = SpeechArchive::open(folder.at("hub"));
  ASSERT_TRUE(hub.ok()) << hub.status().message();
  EXPECT_EQ(archive_tokenizer(*hub)->bytes(), first.bytes());
  write_bytes(folder.at("hub/special_tokens_map.json"), "{}");
  ASSERT_TRUE(export_speech_model(weights, after, &*hub, folder.at("hub2"), {}, &second).ok());
  EXPECT_EQ(names_in(folder.at("hub2")), names);
  EXPECT_EQ(ConfigJson::parse(read_bytes(folder.at("hub2/config.json"))).at("pad_token_id"), second.size());
  const ConfigJson json = ConfigJson::parse(read_bytes(folder.at("hub2/tokenizer.json")));
  EXPECT_EQ(json.at("added_tokens").back().at("id"), second.size());
  EXPECT_EQ(json.at("added_tokens").back().at("content"),
            ConfigJson::parse(read_bytes(folder.at("hub2/tokenizer_config.json"))).at("pad_token"));
  // The same one: the folder's files stay as they are.
  ASSERT_TRUE(export_speech_model(weights, before, &*hub, folder.at("hub3"), {}, &first).ok());
  EXPECT_EQ(read_bytes(folder.at("hub3/special_tokens_map.json")), "{}");
  // From a folder to NeMo, which was not possible without the tokenizer's model.
  ASSERT_TRUE(export_speech_model(weights, before, &*hub, folder.at("c.nemo"), {}, &first).ok());
  EXPECT_EQ(archive_tokenizer(*SpeechArchive::open(folder.at("c.nemo")))->bytes(), first.bytes());
}

// A checkpoint that keeps tokenizer and sizes is exported when the archive that it began with is gone.
TEST(SpeechExport, ACheckpointNeedsNoOtherFiles) {
  const TempFolder folder;
  const Tokenizer tokenizer = tokenizer_of(40);
  const SpeechModelSettings model = settings_for(tokenizer);
  FeatureSettings features;
  features.features = model.mel_bands;
  const auto config = parse("task: speech\nmodel: {name: " + folder.at("gone.nemo") + "}\n", "c.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const std::vector<TensorSource> weights = some_weights();
  const std::string target = folder.at("a.nemo"), checkpoint = folder.path();
  const ModelExport request{config->settings, checkpoint, weights, target};
  EXPECT_THAT(SpeechEntry::export_model(request).message(), HasSubstr("gone.nemo"));
  for (const auto& [name, bytes] : kept_files({model, features}, tokenizer.bytes()))
    write_bytes(folder.at(name), bytes);
  const Status done = SpeechEntry::export_model(request);
  ASSERT_TRUE(done.ok()) << done.message();
  const auto archive = SpeechArchive::open(target);
  ASSERT_TRUE(archive.ok()) << archive.status().message();
  EXPECT_EQ(archive->settings().vocabulary, tokenizer.size());
  EXPECT_EQ(archive->features(), features);
  EXPECT_EQ(archive_tokenizer(*archive)->bytes(), tokenizer.bytes());
}

TEST(SpeechExport, WhatDoesNotFitIsNamed) {
  const TempFolder folder;
  const Tokenizer tokenizer = tokenizer_of(40);
  SpeechModelSettings model = settings_for(tokenizer);
  const auto error = [&](const char* target) {
    return export_speech_model(some_weights(), model, nullptr, folder.at(target), {}, &tokenizer).message();
  };
  model.vocabulary += 1;
  EXPECT_THAT(error("a.nemo"), HasSubstr("made.model has " + std::to_string(tokenizer.size()) +
                                         " tokens, but the model has "));
  model.vocabulary -= 1;
  model.feed_forward += 1;
  EXPECT_THAT(error("a.nemo"), AllOf(HasSubstr("feed-forward"), HasSubstr("write a folder of transformers")));
  EXPECT_EQ(error("folder"), "");
  // A tokenizer of characters has no tokenizer.json.
  model.feed_forward -= 1;
  const Tokenizer letters = tokenizer_of(30, "char");
  model.vocabulary = letters.size();
  ASSERT_TRUE(export_speech_model(some_weights(), model, nullptr, folder.at("letters"), {}, &letters).ok());
  EXPECT_EQ(read_bytes(folder.at("letters/tokenizer.model")), letters.bytes());
  EXPECT_TRUE(archive_tokenizer(*SpeechArchive::open(folder.at("letters"))).ok());
}

}  // namespace
}  // namespace octavo::train
