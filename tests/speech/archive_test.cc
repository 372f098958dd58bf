// Tests speech models in files of NeMo and transformers: names, configs, the hub's cache, and exported files.
// The same files are checked with Python's torch, tarfile and transformers in
// tests/speech/test_speech_archives.py.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/archive.h"
#include "speech/nemo_yaml.h"
#include "support/random.h"
#include "train/files_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>

namespace octavo_train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(SpeechNames, AllOfV3BothWays) {
  std::ifstream file(OCTAVO_TEST_SPEECH_DIR "/parakeet_v3_names.txt");
  std::set<std::string> others;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    const std::string name = line.substr(0, line.find('\t'));
    const auto other = nemo_name(name, 0.2);
    ASSERT_TRUE(other) << name;
    EXPECT_EQ(transformers_name(*other), name);
    others.insert(*other);
  }
  EXPECT_EQ(others.size(), 723u);
  EXPECT_EQ(nemo_name("encoder.layers.7.self_attn.relative_k_proj.weight", 0.2),
            "encoder.layers.7.self_attn.linear_pos.weight");
  EXPECT_EQ(nemo_name("encoder.layers.7.conv.norm.running_var", 0.2),
            "encoder.layers.7.conv.batch_norm.running_var");
  EXPECT_EQ(nemo_name("decoder.decoder_projector.bias", 0.2), "joint.pred.bias");
  EXPECT_EQ(nemo_name("decoder.lstm.weight_hh_l1", 0.2), "decoder.prediction.dec_rnn.lstm.weight_hh_l1");
  EXPECT_EQ(nemo_name("ctc_head.weight", 0.2), "decoder.decoder_layers.0.weight");
  EXPECT_EQ(transformers_name("decoder.decoder_layers.0.bias"), "ctc_head.bias");
}

// If its dropout is 0, NeMo's joint network has no dropout module, so its last layer has a different number.
TEST(SpeechNames, TheJointNetworkWithoutDropout) {
  EXPECT_EQ(nemo_name("joint.head.weight", 0.2), "joint.joint_net.2.weight");
  EXPECT_EQ(nemo_name("joint.head.weight", 0), "joint.joint_net.1.weight");
  EXPECT_EQ(transformers_name("joint.joint_net.1.bias"), "joint.head.bias");
  EXPECT_EQ(nemo_name("decoder.decoder_projector.bias", 0), "joint.pred.bias");
}

TEST(SpeechNames, OthersAreNone) {
  for (const char* name :
       {"", "encoder", "encoder.layers.", "encoder.layers.1", "encoder.layers.1.",
        "encoder.layers.x.norm_out.weight", "encoder.layers..norm_out.weight",
        "encoder.layers.-1.norm_out.bias", "encoder.layers.1.self_attn.x", "encoder.layers.1.conv.weight",
        "preprocessor.featurizer.fb", "bert.embeddings.weight"}) {
    EXPECT_EQ(nemo_name(name, 0.2), std::nullopt) << name;
    EXPECT_EQ(transformers_name(name), std::nullopt) << name;
  }
  // A name of one format is not valid in the other; otherwise two tensors could get the same name.
  EXPECT_EQ(transformers_name("encoder.layers.1.conv.norm.weight"), std::nullopt);
  EXPECT_EQ(nemo_name("encoder.layers.1.conv.batch_norm.weight", 0.2), std::nullopt);
  EXPECT_TRUE(is_preprocessor_name("preprocessor.featurizer.window"));
  EXPECT_FALSE(is_preprocessor_name("encoder.layers.0.norm_out.weight"));
}

std::string nemo_error(const std::string& from, const std::string& to) {
  const auto config = read_nemo_config(replaced(nemo_yaml(), from, to), "x.nemo: model_config.yaml");
  EXPECT_FALSE(config.ok()) << to;
  return config.ok() ? "" : config.status().message();
}

TEST(SpeechConfig, OfNemo) {
  const auto config = read_nemo_config(nemo_yaml(), "x").value();
  const SpeechModelSettings wanted = {.mel_bands = 32,
                                      .subsampling_channels = 16,
                                      .encoder_layers = 2,
                                      .width = 64,
                                      .heads = 4,
                                      .feed_forward = 256,
                                      .kernel = 9,
                                      .head = SpeechHead::tdt,
                                      .vocabulary = 3,
                                      .predictor_width = 48,
                                      .predictor_layers = 2,
                                      .joint_width = 40,
                                      .durations = {0, 1, 2, 3, 4},
                                      .sigma = 0.03,
                                      .omega = 0.2,
                                      .reduction = "mean_volume",
                                      .dropout = 0.1,
                                      .attention_dropout = 0.05,
                                      .input_dropout = 0.15,
                                      .predictor_dropout = 0.2,
                                      .joint_dropout = 0.25};
  EXPECT_EQ(config.model, wanted);
  EXPECT_EQ(config.pad, 2);
  EXPECT_THAT(config.notes, ElementsAre());
}

TEST(SpeechConfig, OfNemoWithOtherHeads) {
  const std::string plain = replaced(replaced(nemo_yaml(), "loss_name: tdt", "loss_name: default"),
                                     "num_extra_outputs: 5", "num_extra_outputs: 0");
  const auto rnnt = read_nemo_config(plain, "x").value();
  EXPECT_EQ(rnnt.model.head, SpeechHead::rnnt);
  EXPECT_EQ(rnnt.model.outputs(), 4);
  const auto ctc = read_nemo_config(replaced(nemo_yaml(), "RNNTDecoder", "ConvASRDecoder"), "x").value();
  EXPECT_EQ(ctc.model.head, SpeechHead::ctc);
  EXPECT_EQ(ctc.model.reduction, "mean_batch");
  // If the config omits them, the loss's numbers are NeMo's defaults, not ours.
  const auto bare =
      read_nemo_config(replaced(nemo_yaml(), "    sigma: 0.03\n    omega: 0.2\n", ""), "x").value();
  EXPECT_EQ(bare.model.sigma, 0);
  EXPECT_EQ(bare.model.omega, 0);
  const auto standard =
      read_nemo_config(replaced(nemo_yaml(), "rnnt_reduction: mean_volume\n", ""), "x").value();
  EXPECT_EQ(standard.model.reduction, "mean_batch");
  const auto wide =
      read_nemo_config(
          replaced(nemo_yaml(), "subsampling_conv_channels: 16", "subsampling_conv_channels: -1"), "x")
          .value();
  EXPECT_EQ(wide.model.subsampling_channels, 64);
}

TEST(SpeechConfig, OfNemoThatTheModelIsNot) {
  EXPECT_THAT(nemo_error("modules.ConformerEncoder", "modules.ConvASREncoder"),
              AllOf(HasSubstr("EncDecRNNTBPEModel"), HasSubstr("ConvASREncoder"),
                    HasSubstr("expected a model with")));
  EXPECT_EQ(nemo_error("xscaling: false", "xscaling: true"),
            "x.nemo: model_config.yaml:27:13: encoder.xscaling: got true, expected false; the model here has "
            "no other");
  EXPECT_THAT(nemo_error("  xscaling: false\n", ""), HasSubstr("encoder.xscaling: got true, expected false"));
  EXPECT_THAT(nemo_error("use_bias: false", "use_bias: True"), HasSubstr("encoder.use_bias: got True"));
  EXPECT_THAT(nemo_error("subsampling_factor: 8", "subsampling_factor: 4"), HasSubstr("got 4, expected 8"));
  EXPECT_THAT(nemo_error("batch_norm\n", "layer_norm\n"), HasSubstr("encoder.conv_norm_type"));
  EXPECT_THAT(nemo_error("  - -1\n  - -1\n", "  - 70\n  - 13\n"), HasSubstr("encoder.att_context_size"));
  EXPECT_THAT(nemo_error("  - -1\n  - -1\n", "  - [-1, -1]\n  - [70, 0]\n"),
              HasSubstr("encoder.att_context_size"));
  EXPECT_THAT(nemo_error("conv_context_size: null", "conv_context_size: causal"),
              HasSubstr("encoder.conv_context_size"));
  EXPECT_THAT(nemo_error("conv_kernel_size: 9", "conv_kernel_size: 8"),
              HasSubstr("encoder.conv_kernel_size"));
  EXPECT_THAT(nemo_error("n_heads: 4", "n_heads: 5"), HasSubstr("encoder.n_heads"));
  EXPECT_THAT(nemo_error("d_model: 64", "d_model: ${model.width}"), HasSubstr("encoder.d_model: got"));
  EXPECT_THAT(nemo_error("  d_model: 64\n", ""), HasSubstr("encoder.d_model is missing"));
  EXPECT_THAT(nemo_error("modules.RNNTDecoder", "modules.StatelessTransducerDecoder"),
              HasSubstr("another model"));
  EXPECT_THAT(nemo_error("activation: relu", "activation: tanh"), HasSubstr("joint.jointnet.activation"));
  EXPECT_THAT(nemo_error("num_extra_outputs: 5", "num_extra_outputs: 4"),
              HasSubstr("expected 5, one for each"));
  EXPECT_THAT(nemo_error("durations: [0, 1, 2, 3, 4]\n    sigma", "durations: [0, 1, 1]\n    sigma"),
              HasSubstr("no two equal"));
  EXPECT_THAT(nemo_error("rnnt_reduction: mean_volume", "rnnt_reduction: sum"), HasSubstr("mean_volume"));
  EXPECT_THAT(nemo_error("vocab_size: 3", "vocab_size: 4"),
              HasSubstr("decoder.vocab_size has 4 tokens, but joint.vocabulary has 3"));
  EXPECT_THAT(nemo_error("dropout: 0.25", "dropout: 1.5"), HasSubstr("joint.jointnet.dropout: got 1.5"));
  EXPECT_THAT(nemo_error("sample_rate: 16000", "a: [1, 2"), StartsWith("x.nemo: model_config.yaml:"));
  EXPECT_FALSE(read_nemo_config("", "x").ok());
  EXPECT_FALSE(read_nemo_config("encoder: [1]", "x").ok());
}

// NeMo passes null to its constructors, where it has the effect of false.
TEST(SpeechConfig, NullOfNemoIsOff) {
  const std::string off = replaced(replaced(nemo_yaml(), "xscaling: false", "xscaling: null"),
                                   "use_bias: false", "use_bias: null");
  EXPECT_TRUE(read_nemo_config(off, "x").ok()) << read_nemo_config(off, "x").status().message();
  EXPECT_THAT(nemo_error("untie_biases: true", "untie_biases: null"),
              HasSubstr("encoder.untie_biases: got null, expected true"));
  EXPECT_THAT(nemo_error("blank_as_pad: true", "blank_as_pad: null"),
              HasSubstr("decoder.blank_as_pad: got null, expected true"));
}

TEST(SpeechConfig, SymbolsAtOneFrameOfNemo) {
  const auto read = [](const std::string& decoding) {
    auto config = read_nemo_config(nemo_yaml() + decoding, "x");
    EXPECT_TRUE(config.ok()) << config.status().message();
    return std::move(*config);
  };
  EXPECT_EQ(read("").model.max_symbols, 10);
  const SpeechConfig given = read("decoding: {strategy: greedy_batch, greedy: {max_symbols: 3}}\n");
  EXPECT_EQ(given.model.max_symbols, 3);
  EXPECT_THAT(given.notes, ElementsAre());
  EXPECT_EQ(read("decoding: {greedy: {max_symbols: null, max_symbols_per_step: 30}}\n").model.max_symbols,
            30);
  for (const char* text : {"decoding: {greedy: {max_symbols: null}}\n", "decoding: {greedy: {x: 1}}\n"}) {
    const SpeechConfig open = read(text);
    EXPECT_EQ(open.model.max_symbols, 10);
    EXPECT_THAT(open.notes, ElementsAre(HasSubstr("decoding.greedy.max_symbols is not given")));
  }
  EXPECT_THAT(
      read_nemo_config(nemo_yaml() + "decoding: {greedy: {max_symbols: 0}}\n", "x").status().message(),
      HasSubstr("decoding.greedy.max_symbols: got 0, expected"));
  // The key has a different name in transformers.
  SpeechConfig rnnt;
  rnnt.model.head = SpeechHead::rnnt;
  rnnt.model.max_symbols = 7;
  const auto text = transformers_config(rnnt, "float32").value();
  EXPECT_EQ(read_transformers_config(text, "x")->model.max_symbols, 7);
}

// NeMo's hybrid model has an additional CTC head; its transducer is read like any other.
TEST(SpeechArchive, ReadsTheTransducerOfAHybrid) {
  const TempFolder folder;
  const std::string path = folder.at("a.nemo");
  const std::vector<TensorSource> sources = {
      make_tensor("joint.pred.bias", "F32", {5}, 3),
      make_tensor("ctc_decoder.decoder_layers.0.weight", "F32", {4, 64, 1}, 1),
      make_tensor("ctc_decoder.decoder_layers.0.bias", "F32", {4}, 2)};
  const std::string yaml = replaced(nemo_yaml(), "rnnt_bpe_models.EncDecRNNTBPEModel",
                                    "hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel") +
                           "aux_ctc: {ctc_loss_weight: 0.3, ctc_reduction: mean_batch}\n";
  ASSERT_TRUE(write_nemo(path, yaml, sources, {}).ok());
  const auto archive = SpeechArchive::open(path).value();
  EXPECT_EQ(archive.settings().head, SpeechHead::tdt);
  ASSERT_EQ(archive.tensors().size(), 1U);
  EXPECT_EQ(archive.tensors()[0].name, "decoder.decoder_projector.bias");
  EXPECT_THAT(archive.config().notes, ElementsAre(HasSubstr("hybrid of a transducer and CTC")));
  // Its config describes both heads, so an archive with only the transducer cannot keep it.
  const std::vector<TensorSource> weights = {make_tensor("decoder.decoder_projector.bias", "F32", {5}, 3)};
  EXPECT_THAT(write_nemo_model(folder.at("b.nemo"), archive, weights).message(), HasSubstr("is a hybrid"));
}

TEST(SpeechConfig, WhatTheModelDoesOtherwiseIsNoted) {
  const auto config = read_nemo_config(replaced(replaced(nemo_yaml(), "dropout_emb: 0.0", "dropout_emb: 0.1"),
                                                "fastemit_lambda: 0.0", "fastemit_lambda: 0.001"),
                                       "x")
                          .value();
  EXPECT_THAT(config.notes, ElementsAre(HasSubstr("encoder.dropout_emb is 0.1"),
                                        HasSubstr("loss.tdt_kwargs.fastemit_lambda is 0.001")));
}

TEST(SpeechConfig, OfTransformers) {
  SpeechConfig given;
  given.model = {.mel_bands = 32, .subsampling_channels = 16, .encoder_layers = 3, .width = 48, .heads = 6};
  given.model.feed_forward = 100;
  given.model.kernel = 5;
  given.model.vocabulary = 20;
  given.model.predictor_width = given.model.joint_width = 24;
  given.model.durations = {0, 1, 4};
  given.pad = 7;
  const auto text = transformers_config(given, "bfloat16").value();
  EXPECT_THAT(text, AllOf(HasSubstr("\"model_type\": \"parakeet_tdt\""), HasSubstr("\"vocab_size\": 21"),
                          HasSubstr("\"dtype\": \"bfloat16\""), HasSubstr("\"blank_token_id\": 20")));
  const auto read = read_transformers_config(text, "config.json").value();
  EXPECT_EQ(read.model, given.model);
  EXPECT_EQ(read.pad, 7);
  EXPECT_THAT(read.notes, ElementsAre());

  const auto error = [&](const std::string& from, const std::string& to) {
    return read_transformers_config(replaced(text, from, to), "config.json").status().message();
  };
  EXPECT_THAT(error("parakeet_tdt", "whisper"),
              AllOf(StartsWith("config.json:3:"), HasSubstr("model_type is whisper")));
  EXPECT_THAT(error("\"scale_input\": false", "\"scale_input\": true"),
              HasSubstr("encoder_config.scale_input: got true"));
  EXPECT_THAT(error("\"attention_bias\": false,", ""), HasSubstr("encoder_config.attention_bias: got true"));
  EXPECT_THAT(error("\"blank_token_id\": 20", "\"blank_token_id\": 3"),
              HasSubstr("blank is token 3, expected 20"));
  given.model.joint_width = 30;
  EXPECT_THAT(transformers_config(given, "float32").status().message(),
              HasSubstr("one size for predictor and joint"));
  for (const SpeechHead head : {SpeechHead::rnnt, SpeechHead::ctc}) {
    given.model.head = head;
    given.model.joint_width = 24;
    const auto other = read_transformers_config(*transformers_config(given, "float32"), "x").value();
    EXPECT_EQ(other.model.head, head);
    EXPECT_EQ(other.model.vocabulary, 20);
  }
}

// Mutated configs are either read or rejected with a one-line message.
TEST(SpeechConfig, MutatedTexts) {
  const std::string yaml = nemo_yaml();
  const std::string json = *transformers_config(
      {read_nemo_config(replaced(yaml, "joint_hidden: 40", "joint_hidden: 48"), "x")->model, 0, {}},
      "float32");
  const std::vector<std::string> pieces = {
      "[",     "]",    "{",  "}", ": ", "- ",  "\n", "  ", "-1", "9223372036854775808",
      "1e999", "null", "''", "~", "\"", "&a ", "*a", "\t"};
  test::Random random(1);
  int read = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = i % 2 == 0 ? yaml : json;
    const auto at = static_cast<std::size_t>(random.below(text.size()));
    const std::string& piece = pieces[static_cast<std::size_t>(random.below(pieces.size()))];
    text.replace(at, static_cast<std::size_t>(random.below(9)), piece);
    const auto config = i % 2 == 0 ? read_nemo_config(text, "x") : read_transformers_config(text, "x");
    read += config.ok() ? 1 : 0;
    if (config.ok()) {
      EXPECT_GT(config->model.width, 0);
      EXPECT_EQ(config->model.width % config->model.heads, 0);
      continue;
    }
    EXPECT_THAT(config.status().message(), StartsWith("x:"));
    EXPECT_LT(config.status().message().size(), 1000u);
  }
  EXPECT_GT(read, 20);
  EXPECT_LT(read, 380);
  for (const char* piece : {"[", "{a: ", "- "}) {
    std::string deep;
    while (deep.size() < 200'000) deep += piece;
    EXPECT_FALSE(read_nemo_config(deep, "x").ok());
    EXPECT_FALSE(read_transformers_config(deep, "x").ok());
  }
}

class SpeechHub : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"})
      unsetenv(name);
  }
  void TearDown() override { unsetenv("HF_HUB_CACHE"); }
  std::string error_of(const std::string& name) {
    const auto found = find_speech_model(name);
    EXPECT_FALSE(found.ok());
    return found.ok() ? "" : found.status().message();
  }
  void make(const std::string& path) { ASSERT_EQ(::mkdir(folder.at(path).c_str(), 0777), 0) << path; }

  TempFolder folder;
};

TEST_F(SpeechHub, WhereTheCacheIs) {
  setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(hub_cache(), "/caches/huggingface/hub");
  setenv("HF_HOME", "~/face", 1);
  EXPECT_EQ(hub_cache(), std::string(std::getenv("HOME")) + "/face/hub");
  setenv("HF_HUB_CACHE", "/there", 1);
  EXPECT_EQ(hub_cache(), "/there");
  for (const char* name : {"HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
}

TEST_F(SpeechHub, NamesAndPaths) {
  setenv("HF_HUB_CACHE", folder.path().c_str(), 1);
  EXPECT_THAT(error_of("nvidia/parakeet-tdt-0.6b-v3"),
              AllOf(HasSubstr(folder.path()), HasSubstr("hf download nvidia/parakeet-tdt-0.6b-v3")));
  for (const char* name :
       {"parakeet", "a/b/c", "./a", "../a", "/a/b", "a/", "/b", "a/b.nemo", "a/b;rm", "a--b/c", ""}) {
    EXPECT_THAT(error_of(name), HasSubstr("does not exist; expected a .nemo file")) << name;
  }
  make("models--a--b");
  EXPECT_THAT(error_of("a/b"),
              HasSubstr("refs/main names no folder of snapshots, so a/b is not there as a whole"));
  make("models--a--b/refs");
  make("models--a--b/snapshots");
  make("models--a--b/snapshots/12ab");
  for (const char* commit : {"", "34", "..", "../../models--a--b", "x\ny"}) {
    write_bytes(folder.at("models--a--b/refs/main"), commit);
    EXPECT_THAT(error_of("a/b"), HasSubstr("hf download a/b")) << commit;
  }
  write_bytes(folder.at("models--a--b/refs/main"), "12ab\n");
  EXPECT_THAT(error_of("a/b"),
              AllOf(HasSubstr("no .nemo archive and no config.json"), HasSubstr("hf download a/b")));
  const std::string snapshot = folder.at("models--a--b/snapshots/12ab");
  write_bytes(snapshot + "/config.json", "{}");
  EXPECT_EQ(find_speech_model("a/b")->path, snapshot);
  EXPECT_EQ(find_speech_model("a/b")->kind, SpeechFiles::transformers);
  EXPECT_EQ(find_speech_model(snapshot)->path, snapshot);
  EXPECT_THAT(
      SpeechArchive::open("a/b").status().message(),
      AllOf(HasSubstr("model_type is missing"), HasSubstr("if that is not all of it: hf download a/b")));
  EXPECT_THAT(SpeechArchive::open(snapshot).status().message(), Not(HasSubstr("hf download")));
  write_bytes(snapshot + "/b.nemo", "");
  EXPECT_EQ(find_speech_model("a/b")->path, snapshot + "/b.nemo");
  EXPECT_EQ(find_speech_model("a/b")->kind, SpeechFiles::nemo);
  EXPECT_EQ(find_speech_model(snapshot + "/b.nemo")->path, snapshot + "/b.nemo");
  write_bytes(snapshot + "/c.nemo", "");
  EXPECT_THAT(error_of("a/b"), HasSubstr("has 2 archives, such as b.nemo and c.nemo; name one"));
  write_bytes(folder.at("model.safetensors"), "");
  EXPECT_THAT(error_of(folder.at("model.safetensors")), HasSubstr("give the folder"));
}

TEST(SpeechArchive, SaysWhatItsFeaturesAre) {
  const auto read = [](const std::string& from, const std::string& to) {
    return read_nemo_config(replaced(nemo_yaml(), from, to), "config");
  };
  const std::string section = "  features: 32\n";
  // Absent keys have the defaults of NeMo's constructor.
  const auto plain = read(section, section).value();
  EXPECT_TRUE(plain.notes.empty());
  FeatureSettings wanted;
  wanted.features = 32;
  wanted.window_size = 0.02;
  wanted.pad_to = 16;
  EXPECT_EQ(plain.features, wanted);
  EXPECT_EQ(plain.features.window(), 320);
  const auto all = read(section, section +
                                     "  sample_rate: 8000\n  normalize: per_feature\n  window_size: 0.025\n"
                                     "  window_stride: 0.0125\n  window: hann\n  n_fft: 256\n  dither: 0.0\n"
                                     "  preemph: 0.9\n  pad_to: 0\n  highfreq: 3800\n  lowfreq: 20\n"
                                     "  log_zero_guard_value: 1.0e-6\n  frame_splicing: 1\n  mag_power: 2\n")
                       .value();
  EXPECT_EQ(all.features, (FeatureSettings{8000, 0.025, 0.0125, 256, 32, 20, 3800, 0.9, 0, 1e-6}));
  const auto refused = [&](const std::string& line) {
    return read(section, section + line).status().message();
  };
  EXPECT_THAT(refused("  normalize: all_features\n"),
              AllOf(HasSubstr("preprocessor.normalize: got"), HasSubstr("expected \"per_feature\"")));
  EXPECT_THAT(refused("  window_size: 0.05\n  n_fft: 512\n"),
              HasSubstr("window_size: got 0.05 (800 samples)"));
  EXPECT_THAT(refused("  mag_power: 1.0\n"), HasSubstr("preprocessor.mag_power"));
  EXPECT_THAT(refused("  pad_to: max\n"), HasSubstr("preprocessor.pad_to: got max"));
  // NeMo reads null as "off": preemph is then 0, and steps that this model cannot skip are rejected.
  const auto without = read(section, section + "  preemph: null\n").value();
  EXPECT_EQ(without.features.preemph, 0);
  EXPECT_THAT(refused("  normalize: null\n"),
              HasSubstr("preprocessor.normalize: got null, expected \"per_feature\""));
  EXPECT_THAT(refused("  log: null\n"), HasSubstr("preprocessor.log: got null, expected true"));
  EXPECT_THAT(refused("  window: null\n"), HasSubstr("preprocessor.window: got null, expected \"hann\""));
  EXPECT_TRUE(read(section, section + "  n_fft: null\n  highfreq: null\n").ok());
  EXPECT_THAT(read(section, "  features: 40\n").status().message(),
              HasSubstr("preprocessor.features: got 40, expected 32, the bands that the encoder takes"));
}

TEST(SpeechArchive, HasTheTablesOfItsFeatures) {
  const TempFolder folder;
  const std::string path = folder.at("a.nemo");
  std::vector<TensorSource> sources = {make_tensor("preprocessor.featurizer.window", "F32", {320}, 1),
                                       make_tensor("preprocessor.featurizer.fb", "F32", {1, 32, 257}, 2)};
  ASSERT_TRUE(write_nemo(path, nemo_yaml(), sources, {}).ok());
  const auto tables = SpeechArchive::open(path)->feature_tables().value();
  EXPECT_EQ(tables.window.size(), 320U);
  EXPECT_EQ(tables.filters.size(), 32U * 257U);
  const Result<Bytes> bytes = sources[0].bytes();
  EXPECT_EQ(std::memcmp(tables.window.data(), bytes->data(), bytes->size()), 0);
  sources[0] = make_tensor("preprocessor.featurizer.window", "F32", {400}, 1);
  ASSERT_TRUE(write_nemo(path, nemo_yaml(), sources, {}).ok());
  EXPECT_THAT(SpeechArchive::open(path)->feature_tables().status().message(),
              HasSubstr("preprocessor.featurizer.window is [400], expected 320 numbers"));
}

TEST(SpeechArchive, KeepsItsFeaturesInTransformersFolders) {
  const TempFolder folder;
  SpeechModelSettings model;
  model.mel_bands = 32;
  const std::vector<TensorSource> weights = {make_tensor("joint.head.bias", "F32", {2}, 3)};
  FeatureSettings features;
  features.window_size = 0.02;
  features.preemph = 0.9;
  features.features = 32;
  ASSERT_TRUE(write_transformers_model(folder.at("a"), model, nullptr, weights, features).ok());
  const auto archive = SpeechArchive::open(folder.at("a")).value();
  EXPECT_EQ(archive.features(), features);
  EXPECT_TRUE(archive.feature_tables()->window.empty());
  // The preprocessor config is copied unchanged, including unknown keys; different features write a new file.
  std::string text = read_bytes(folder.at("a/preprocessor_config.json"));
  text.insert(text.find('{') + 1, "\"mine\": 1, ");
  write_bytes(folder.at("a/preprocessor_config.json"), text);
  ASSERT_TRUE(write_transformers_model(folder.at("b"), model, &archive, weights).ok());
  EXPECT_EQ(read_bytes(folder.at("b/preprocessor_config.json")), text);
  features.preemph = 0.8;
  ASSERT_TRUE(write_transformers_model(folder.at("c"), model, &archive, weights, features).ok());
  EXPECT_EQ(SpeechArchive::open(folder.at("c"))->features(), features);
  // transformers 5 writes the features into processor_config.json.
  ASSERT_EQ(::unlink(folder.at("c/preprocessor_config.json").c_str()), 0);
  write_bytes(folder.at("c/processor_config.json"), "{\"feature_extractor\": " + text + "}");
  EXPECT_EQ(SpeechArchive::open(folder.at("c"))->features().preemph, 0.9);
  write_bytes(folder.at("c/processor_config.json"), "{\"feature_extractor\": {\"feature_size\": 80}}");
  EXPECT_THAT(SpeechArchive::open(folder.at("c")).status().message(),
              HasSubstr("feature_size is 80, but num_mel_bins of config.json is 32"));
  features.lowfreq = 100;
  EXPECT_THAT(write_transformers_model(folder.at("d"), model, nullptr, weights, features).message(),
              HasSubstr("go from 0 Hz to half the rate"));
}

TEST(SpeechArchive, ComesBackInBothKinds) {
  const TempFolder folder;
  const std::vector<TensorSource> sources = {
      make_tensor("preprocessor.featurizer.window", "F32", {4}, 1),
      make_tensor("encoder.layers.0.self_attn.linear_pos.weight", "F32", {2, 3}, 2),
      make_tensor("joint.pred.bias", "F32", {5}, 3)};
  const std::string path = folder.at("a.nemo");
  ASSERT_TRUE(
      write_nemo(path, nemo_yaml(), sources, {{"0a_tokenizer.model", "pieces"}, {"run.py", "exit()"}}).ok());
  const auto archive = SpeechArchive::open(path).value();
  EXPECT_EQ(archive.settings().joint_width, 40);
  ASSERT_EQ(archive.tensors().size(), 2u);
  EXPECT_EQ(archive.tensors()[0].name, "encoder.layers.0.self_attn.relative_k_proj.weight");
  EXPECT_EQ(archive.preprocessor().size(), 1u);

  std::vector<TensorSource> weights = {
      make_tensor("encoder.layers.0.self_attn.relative_k_proj.weight", "F32", {2, 3}, 2),
      make_tensor("decoder.decoder_projector.bias", "F32", {5}, 3)};
  ASSERT_TRUE(write_nemo_model(folder.at("b.nemo"), archive, weights).ok());
  EXPECT_EQ(read_bytes(folder.at("b.nemo")), read_bytes(path));

  weights.push_back(make_tensor("joint.head.bias", "F32", {2}, 3));
  weights[0].shape = {3, 2};
  EXPECT_THAT(write_nemo_model(folder.at("c.nemo"), archive, weights).message(),
              AllOf(HasSubstr("relative_k_proj.weight is [3, 2], expected [2, 3]"),
                    HasSubstr("joint.head.bias is not in it")));
  weights.resize(1);
  EXPECT_THAT(write_nemo_model(folder.at("c.nemo"), archive, weights).message(),
              HasSubstr("decoder.decoder_projector.bias is missing"));
  EXPECT_FALSE(SpeechArchive::open(folder.at("c.nemo")).ok());

  SpeechModelSettings model = archive.settings();
  EXPECT_FALSE(write_transformers_model(folder.at("hub"), model, &archive, weights).ok());  // two sizes
  model.joint_width = model.predictor_width;
  ASSERT_TRUE(write_transformers_model(folder.at("hub"), model, &archive, weights).ok());
  EXPECT_EQ(read_bytes(folder.at("hub/0a_tokenizer.model")), "pieces");
  EXPECT_EQ(::access(folder.at("hub/run.py").c_str(), F_OK), -1);
  const auto other = SpeechArchive::open(folder.at("hub")).value();
  EXPECT_EQ(other.kind(), SpeechFiles::transformers);
  EXPECT_EQ(other.config().pad, 2);
  EXPECT_EQ(other.tensors().size(), 1u);
  EXPECT_THAT(write_nemo_model(folder.at("d.nemo"), other, weights).message(),
              HasSubstr("needs the config and the tokenizer"));
  ASSERT_TRUE(write_transformers_model(folder.at("again"), other.settings(), &other, weights).ok());
  for (const char* file : {"config.json", "model.safetensors", "0a_tokenizer.model"}) {
    EXPECT_EQ(read_bytes(folder.at(std::string("again/") + file)),
              read_bytes(folder.at(std::string("hub/") + file)));
  }
  // The suffix of the target's name selects the format.
  weights.push_back(make_tensor("decoder.decoder_projector.bias", "F32", {5}, 3));
  weights[0].shape = {2, 3};
  const auto error = [&](const SpeechModelSettings& as, const SpeechArchive* origin, const char* target) {
    return export_speech_model(weights, as, origin, folder.at(target)).message();
  };
  EXPECT_EQ(error(archive.settings(), &archive, "e.nemo"), "");
  EXPECT_EQ(read_bytes(folder.at("e.nemo")), read_bytes(path));
  EXPECT_EQ(error(model, nullptr, "bare"), "");
  EXPECT_EQ(names_in(folder.at("bare")),
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                      "preprocessor_config.json"}));
  EXPECT_THAT(error(model, nullptr, "f.nemo"), HasSubstr("began with random weights; write a folder"));
  EXPECT_THAT(error(model, nullptr, "f.safetensors"), HasSubstr("expected a name that ends with .nemo"));
  SpeechModelSettings longer = archive.settings();
  longer.durations.back() += 1;
  EXPECT_THAT(error(longer, &archive, "f.nemo"), HasSubstr("the durations of the model are not those"));
  // Exports into an existing folder. A failed write leaves no loadable model, and nothing of a new folder.
  write_bytes(folder.at("bare/notes.txt"), "mine");
  EXPECT_EQ(error(model, nullptr, "bare"), "");
  EXPECT_EQ(read_bytes(folder.at("bare/notes.txt")), "mine");
  EXPECT_THAT(error(model, nullptr, "a.nemo/x"), HasSubstr("a.nemo/"));
  weights[0].bytes = []() -> Result<Bytes> { return Status::failed("no bytes"); };
  EXPECT_THAT(error(model, nullptr, "bare"), HasSubstr("no bytes"));
  EXPECT_EQ(names_in(folder.at("bare")),
            (std::vector<std::string>{"generation_config.json", "model.safetensors", "notes.txt",
                                      "preprocessor_config.json"}));
  const auto before = names_in(folder.path());
  EXPECT_THAT(error(model, nullptr, "new"), HasSubstr("no bytes"));
  EXPECT_EQ(names_in(folder.path()), before);
  // Two names in NeMo's archive would become the same name here.
  const std::vector<TensorSource> twins = {make_tensor("joint.pred.bias", "F32", {5}, 3),
                                           make_tensor("decoder.decoder_projector.bias", "F32", {5}, 3)};
  ASSERT_TRUE(write_nemo(folder.at("twins.nemo"), nemo_yaml(), twins).ok());
  EXPECT_THAT(SpeechArchive::open(folder.at("twins.nemo")).status().message(),
              HasSubstr("tensor \"decoder.decoder_projector.bias\": given twice"));
  // A damaged config next to good weights, and missing weights next to a good config.
  write_bytes(folder.at("again/config.json"), "{\"model_type\": \"bert\"}");
  EXPECT_THAT(SpeechArchive::open(folder.at("again")).status().message(), HasSubstr("model_type is bert"));
  ASSERT_EQ(::unlink(folder.at("hub/model.safetensors").c_str()), 0);
  EXPECT_THAT(SpeechArchive::open(folder.at("hub")).status().message(),
              StartsWith(folder.at("hub/model.safetensors") + ": cannot open"));
  write_bytes(folder.at("hub/model.safetensors.index.json"), "{}");
  EXPECT_THAT(SpeechArchive::open(folder.at("hub")).status().message(), HasSubstr("in several files"));
}

}  // namespace
}  // namespace octavo_train
