// Tests exports of models whose tokenizer was replaced, and of models without an original tokenizer, to
// NeMo's and transformers' files.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"
#include "tests/speech/nemo_yaml.h"
#include "tests/train/files_support.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/config/config.h"
#include "train/tasks/entry.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/run_model.h"
#include "train/tasks/speech/features/feature_tables.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <cstdio>
#include <cstring>

namespace octavo_train {
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

// NeMo numbers the modules of the joint network, which has one module less without dropout.
TEST(SpeechExport, NamesTheJointNetworkByItsDropout) {
  const Tokenizer tokenizer = tokenizer_of(40);
  const TempFolder folder;
  for (const double dropout : {0.0, 0.1}) {
    SpeechModelSettings model = settings_for(tokenizer);
    model.joint_dropout = dropout;
    const std::vector<TensorSource> weights = {make_tensor("joint.head.weight", "F32", {2, 3}, 2)};
    const std::string path = folder.at(std::to_string(dropout) + ".nemo");
    const Status done = export_speech_model(weights, model, nullptr, path, std::nullopt, &tokenizer);
    ASSERT_TRUE(done.ok()) << done.message();
    const auto archive = NemoArchive::open(path).value();
    EXPECT_EQ(archive.weights().tensors().back().name,
              dropout == 0 ? "joint.joint_net.1.weight" : "joint.joint_net.2.weight");
  }
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
    const auto archive = SpeechArchive::open(path).value();
    EXPECT_EQ(archive.kind(), SpeechFiles::nemo);
    const SpeechModelSettings& read = archive.settings();
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
    EXPECT_TRUE(archive.config().notes.empty());
    EXPECT_EQ(archive.features(), features);
    // The tables match the features, and the archive contains the tokenizer.
    const auto tables = archive.feature_tables().value();
    EXPECT_EQ(tables.window, make_feature_tables(features).window);
    EXPECT_EQ(tables.filters, make_feature_tables(features).filters);
    const auto inside = archive_tokenizer(archive).value();
    EXPECT_EQ(inside.bytes(), tokenizer.bytes());
    ASSERT_EQ(archive.tensors().size(), 2U);
    EXPECT_EQ(archive.tensors()[0].name, weights[0].name);
    // NeMo's constructors require these keys.
    const ConfigJson config = ConfigJson::parse(archive.config_text());
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
    // NeMo's transcribe() reads validation_ds, and NeMo pads the features unless pad_to is 0.
    for (const char* section : {"train_ds", "validation_ds"}) {
      EXPECT_TRUE(config.at(section).at("manifest_filepath").is_null());
      EXPECT_EQ(config.at(section).at("sample_rate"), 16000);
      EXPECT_EQ(config.at(section).at("batch_size"), 16);
      EXPECT_EQ(config.at(section).at("shuffle"), section == std::string("train_ds"));
      EXPECT_EQ(config.at(section).at("use_start_end_token"), false);
    }
    EXPECT_EQ(config.at("preprocessor").at("pad_to"), 0);
    if (head != SpeechHead::ctc) {
      EXPECT_EQ(config.at("decoding").at("greedy").at("max_symbols"), 10);
    }
    // A second export from this archive gives the same bytes.
    ASSERT_TRUE(export_speech_model(weights, read, &archive, folder.at("b.nemo"), features, &inside).ok());
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
  const auto nemo = SpeechArchive::open(folder.at("a.nemo")).value();
  ASSERT_TRUE(export_speech_model(weights, after, &nemo, folder.at("b.nemo"), {}, &second).ok());
  const auto other = SpeechArchive::open(folder.at("b.nemo")).value();
  EXPECT_EQ(other.settings().vocabulary, second.size());
  EXPECT_EQ(archive_tokenizer(other)->bytes(), second.bytes());
  EXPECT_EQ(other.other_files()->size(), 3U) << "no file of the first one";

  // The exports are repeated with folders for transformers.
  ASSERT_TRUE(export_speech_model(weights, before, &nemo, folder.at("hub"), {}, &first).ok());
  const std::vector<std::string> names = {
      "config.json",           "generation_config.json", "model.safetensors", "preprocessor_config.json",
      "processor_config.json", "tokenizer.json",         "tokenizer.model",   "tokenizer_config.json"};
  EXPECT_EQ(names_in(folder.at("hub")), names);
  const auto hub = SpeechArchive::open(folder.at("hub")).value();
  EXPECT_EQ(archive_tokenizer(hub)->bytes(), first.bytes());
  write_bytes(folder.at("hub/special_tokens_map.json"), "{}");
  ASSERT_TRUE(export_speech_model(weights, after, &hub, folder.at("hub2"), {}, &second).ok());
  EXPECT_EQ(names_in(folder.at("hub2")), names);
  EXPECT_EQ(ConfigJson::parse(read_bytes(folder.at("hub2/config.json"))).at("pad_token_id"), second.size());
  const ConfigJson json = ConfigJson::parse(read_bytes(folder.at("hub2/tokenizer.json")));
  EXPECT_EQ(json.at("added_tokens").back().at("id"), second.size());
  EXPECT_EQ(json.at("added_tokens").back().at("content"),
            ConfigJson::parse(read_bytes(folder.at("hub2/tokenizer_config.json"))).at("pad_token"));
  // With the same tokenizer, the folder's files stay unchanged.
  ASSERT_TRUE(export_speech_model(weights, before, &hub, folder.at("hub3"), {}, &first).ok());
  EXPECT_EQ(read_bytes(folder.at("hub3/special_tokens_map.json")), "{}");
  // An export from a folder to NeMo needs the tokenizer's model.
  ASSERT_TRUE(export_speech_model(weights, before, &hub, folder.at("c.nemo"), {}, &first).ok());
  EXPECT_EQ(archive_tokenizer(*SpeechArchive::open(folder.at("c.nemo")))->bytes(), first.bytes());
}

// transformers needs a config for generate(). It treats a tokenizer without `<blank>` as a CTC tokenizer and
// merges its repeated tokens.
TEST(SpeechExport, FoldersSayHowToDecode) {
  const Tokenizer tokenizer = tokenizer_of(40);
  const std::int64_t blank = tokenizer.size();
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::rnnt, SpeechHead::ctc}) {
    const TempFolder folder;
    const SpeechModelSettings model = settings_for(tokenizer, head);
    const auto json = [&](const std::string& name) {
      return ConfigJson::parse(read_bytes(folder.at("a/" + name)));
    };
    ASSERT_TRUE(export_speech_model(some_weights(), model, nullptr, folder.at("a"), {}, &tokenizer).ok());
    const std::string word = head == SpeechHead::ctc ? "<pad>" : "<blank>";
    EXPECT_EQ(json("tokenizer_config.json").at("pad_token"), word);
    EXPECT_EQ(json("tokenizer.json").at("added_tokens").back().at("content"), word);
    EXPECT_EQ(json("tokenizer.json").at("added_tokens").back().at("id"), blank);
    const ConfigJson processor = json("processor_config.json");
    EXPECT_EQ(processor.at("processor_class"), "ParakeetProcessor");
    if (head == SpeechHead::ctc) {
      EXPECT_EQ(processor.at("decoder_type"), "ctc");
      EXPECT_FALSE(path_exists(folder.at("a/generation_config.json")));
      continue;
    }
    const bool tdt = head == SpeechHead::tdt;
    EXPECT_EQ(processor.at("decoder_type"), tdt ? "tdt" : "rnnt");
    EXPECT_EQ(processor.at("blank_token"), word);
    ConfigJson wanted = {
        {"decoder_start_token_id", blank}, {"eos_token_id", blank + 1}, {"pad_token_id", blank}};
    if (tdt) wanted["suppress_tokens"] = {blank + 1, blank + 2, blank + 3, blank + 4, blank + 5};
    EXPECT_EQ(json("generation_config.json"), wanted);
  }
}

// Folders of version 0.2 named the blank `<pad>` for every head and had no generation_config.json.
TEST(SpeechExport, AFolderOfVersion02IsRepaired) {
  const TempFolder folder;
  const Tokenizer tokenizer = tokenizer_of(40);
  const SpeechModelSettings model = settings_for(tokenizer);
  ASSERT_TRUE(export_speech_model(some_weights(), model, nullptr, folder.at("a"), {}, &tokenizer).ok());
  for (const char* name : {"a/generation_config.json", "a/processor_config.json"})
    ASSERT_EQ(std::remove(folder.at(name).c_str()), 0);
  std::string json = read_bytes(folder.at("a/tokenizer.json"));
  write_bytes(folder.at("a/tokenizer.json"), json.replace(json.find("<blank>"), 7, "<pad>"));
  const auto old = SpeechArchive::open(folder.at("a")).value();
  ASSERT_TRUE(export_speech_model(some_weights(), model, &old, folder.at("b"), {}, &tokenizer).ok());
  EXPECT_THAT(read_bytes(folder.at("b/tokenizer.json")), HasSubstr("<blank>"));
  EXPECT_TRUE(path_exists(folder.at("b/generation_config.json")));
  EXPECT_TRUE(path_exists(folder.at("b/processor_config.json")));
}

TEST(SpeechExport, ATargetWithAnotherSuffixIsRefused) {
  const TempFolder folder;
  const Tokenizer tokenizer = tokenizer_of(40);
  const SpeechModelSettings model = settings_for(tokenizer);
  const auto written = [&](const std::string& name) {
    return export_speech_model(some_weights(), model, nullptr, folder.at(name), {}, &tokenizer).message();
  };
  for (const char* suffix : {".onnx", ".safetensors", ".bin", ".Nemo"}) {
    EXPECT_THAT(written(std::string("speech") + suffix),
                AllOf(HasSubstr("models are not written as " + std::string(suffix)),
                      HasSubstr("a name that ends with .nemo"), HasSubstr("the name of a folder")));
    EXPECT_FALSE(path_exists(folder.at(std::string("speech") + suffix)));
  }
  EXPECT_EQ(written("parakeet-0.6b"), "") << "not a suffix";
  EXPECT_EQ(written("parakeet-tdt-0.6b-v3"), "");
  ASSERT_EQ(::mkdir(folder.at("mine.hf").c_str(), 0777), 0);
  EXPECT_EQ(written("mine.hf"), "") << "a folder that is there";
}

// A hybrid's config does not fit its transducer alone, so a new config is written.
TEST(SpeechExport, AHybridBecomesATransducer) {
  const TempFolder folder;
  const Tokenizer tokenizer = tokenizer_of(40);
  const SpeechModelSettings model = settings_for(tokenizer);
  const std::vector<TensorSource> weights = some_weights();
  ASSERT_TRUE(export_speech_model(weights, model, nullptr, folder.at("a.nemo"), {}, &tokenizer).ok());
  const auto plain = SpeechArchive::open(folder.at("a.nemo")).value();
  ConfigJson config = ConfigJson::parse(plain.config_text());
  config["aux_ctc"] = {{"ctc_loss_weight", 0.3}};
  ASSERT_TRUE(write_nemo(folder.at("hybrid.nemo"), config.dump(), weights, *plain.other_files()).ok());
  const auto hybrid = SpeechArchive::open(folder.at("hybrid.nemo")).value();
  ASSERT_TRUE(export_speech_model(weights, model, &hybrid, folder.at("b.nemo"), {}, &tokenizer).ok());
  EXPECT_FALSE(SpeechArchive::open(folder.at("b.nemo"))->config().hybrid);
}

// A checkpoint that contains its tokenizer and sizes can be exported after its original archive was deleted.
TEST(SpeechExport, ACheckpointNeedsNoOtherFiles) {
  const TempFolder folder;
  const Tokenizer tokenizer = tokenizer_of(40);
  const SpeechModelSettings model = settings_for(tokenizer);
  FeatureSettings features;
  features.features = model.mel_bands;
  const auto config =
      parse("task: speech\nmodel: {name: " + folder.at("gone.nemo") + "}\n", "c.yaml").value();
  const std::vector<TensorSource> weights = some_weights();
  const std::string target = folder.at("a.nemo"), checkpoint = folder.path();
  const ModelExport request{config.settings, checkpoint, weights, target};
  EXPECT_THAT(export_speech_task(request).message(), HasSubstr("gone.nemo"));
  for (const auto& [name, bytes] : checkpoint_extra_files({model, features}, tokenizer.bytes()))
    write_bytes(folder.at(name), bytes);
  const Status done = export_speech_task(request);
  ASSERT_TRUE(done.ok()) << done.message();
  const auto archive = SpeechArchive::open(target).value();
  EXPECT_EQ(archive.settings().vocabulary, tokenizer.size());
  EXPECT_EQ(archive.features(), features);
  EXPECT_EQ(archive_tokenizer(archive)->bytes(), tokenizer.bytes());
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
  // A tokenizer of type char has no tokenizer.json.
  model.feed_forward -= 1;
  const Tokenizer letters = tokenizer_of(30, "char");
  model.vocabulary = letters.size();
  ASSERT_TRUE(export_speech_model(some_weights(), model, nullptr, folder.at("letters"), {}, &letters).ok());
  EXPECT_EQ(read_bytes(folder.at("letters/tokenizer.model")), letters.bytes());
  EXPECT_TRUE(archive_tokenizer(*SpeechArchive::open(folder.at("letters"))).ok());
}

}  // namespace
}  // namespace octavo_train
