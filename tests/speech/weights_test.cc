// Tests loading an archive's weights into a model: every dtype that converts, and the names of all tensors
// that do not fit.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/weights.h"

#include "tests/speech/nemo_yaml.h"
#include "tests/train/files_support.h"
#include "train/checkpoint/tensors.h"
#include "train/model/model.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/model/speech_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

namespace octavo_train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

NamedTensors make_model(torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(3);
  return {{"encoder.layers.0.self_attn.q_proj.weight", torch::randn({5, 7}).to(type).requires_grad_()},
          {"encoder.layers.0.conv.norm.running_mean", torch::randn({5})},
          {"encoder.layers.0.conv.norm.num_batches_tracked", torch::tensor(std::int64_t{9})}};
}

SpeechModelSettings settings() {
  SpeechModelSettings model;
  model.vocabulary = 4;
  return model;
}

TEST(SpeechWeights, AreTakenInAnyPrecision) {
  const TempFolder folder;
  const NamedTensors saved = make_model(torch::kBFloat16);
  ASSERT_TRUE(write_transformers_model(folder.at("a"), settings(), nullptr, sources_of(saved)).ok());
  const auto archive = SpeechArchive::open(folder.at("a"));
  ASSERT_TRUE(archive.ok()) << archive.status().message();
  NamedTensors model = make_model();
  for (auto& [name, tensor] : model)
    tensor = torch::zeros_like(tensor).requires_grad_(tensor.requires_grad());
  const auto line = load_archive(*archive, model);
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_THAT(*line, ElementsAre("weights from " + folder.at("a") +
                                 ": 3 tensors, 1 of them converted to another precision"));
  for (std::size_t i = 0; i < model.size(); ++i) {
    EXPECT_TRUE(model[i].second.equal(saved[i].second.to(model[i].second.scalar_type()))) << model[i].first;
  }
}

// Checks that the model's tensor names and shapes equal the archive's, and that an export gives the same
// bytes.
void expect_the_same_archive(const std::string& yaml) {
  const TempFolder folder;
  const auto config = read_nemo_config(yaml, "x");
  ASSERT_TRUE(config.ok()) << config.status().message();
  torch::manual_seed(1);
  const SpeechModel first(config->model);
  std::vector<TensorSource> sources = sources_of(tensors_of(*first));
  for (TensorSource& source : sources) {
    const auto name = nemo_name(source.name, config->model.joint_dropout);
    ASSERT_TRUE(name) << source.name;
    source.name = *name;
  }
  sources.insert(sources.begin(), make_tensor("preprocessor.featurizer.fb", "F32", {1, 32, 257}, 1));
  ASSERT_TRUE(write_nemo(folder.at("a.nemo"), yaml, sources, {{"0a_tokenizer.model", "pieces"}}).ok());

  const auto archive = SpeechArchive::open(folder.at("a.nemo"));
  ASSERT_TRUE(archive.ok()) << archive.status().message();
  torch::manual_seed(2);
  const SpeechModel second(archive->settings());
  const auto line = load_archive(*archive, tensors_of(*second));
  ASSERT_TRUE(line.ok()) << line.status().message();
  const NamedTensors before = tensors_of(*first), after = tensors_of(*second);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(after[i].second.equal(before[i].second)) << after[i].first;
  ASSERT_TRUE(write_nemo_model(folder.at("b.nemo"), *archive, sources_of(after)).ok());
  EXPECT_EQ(read_bytes(folder.at("b.nemo")), read_bytes(folder.at("a.nemo")));
}

TEST(SpeechWeights, AModelOfNemoAndBack) { expect_the_same_archive(nemo_yaml()); }

TEST(SpeechWeights, AModelOfNemoWithoutDropoutInTheJointNetworkAndBack) {
  std::string yaml = nemo_yaml();
  yaml.replace(yaml.find("dropout: 0.25"), 13, "dropout: 0.0");
  expect_the_same_archive(yaml);
}

TEST(SpeechWeights, EveryHeadAsTransformersHasIt) {
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::rnnt, SpeechHead::ctc}) {
    const TempFolder folder;
    SpeechModelSettings small = read_nemo_config(nemo_yaml(), "x")->model;
    small.joint_width = small.predictor_width;
    small.head = head;
    const SpeechModel first(small);
    ASSERT_TRUE(
        write_transformers_model(folder.at("a"), small, nullptr, sources_of(tensors_of(*first))).ok());
    const auto archive = SpeechArchive::open(folder.at("a"));
    ASSERT_TRUE(archive.ok()) << archive.status().message();
    const SpeechModel second(archive->settings());
    ASSERT_TRUE(load_archive(*archive, tensors_of(*second)).ok());
    const NamedTensors before = tensors_of(*first), after = tensors_of(*second);
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(after[i].second.equal(before[i].second)) << after[i].first;
    // Loading into a model with another head lists the differences.
    small.head = head == SpeechHead::ctc ? SpeechHead::rnnt : SpeechHead::ctc;
    const std::string message = load_archive(*archive, tensors_of(*SpeechModel(small))).status().message();
    EXPECT_THAT(message, AllOf(HasSubstr("missing in it"), HasSubstr("left over from it")));
  }
}

// With another vocabulary, the encoder's weights are loaded, and decoder and joint keep their initial
// weights, like NeMo's change_vocabulary.
TEST(SpeechWeights, AnotherVocabularyBeginsDecoderAndJointAnew) {
  for (const SpeechHead head : {SpeechHead::tdt, SpeechHead::ctc}) {
    const TempFolder folder;
    SpeechModelSettings small = read_nemo_config(nemo_yaml(), "x")->model;
    small.joint_width = small.predictor_width;
    small.head = head;
    const SpeechModel first(small);
    ASSERT_TRUE(
        write_transformers_model(folder.at("a"), small, nullptr, sources_of(tensors_of(*first))).ok());
    const auto archive = SpeechArchive::open(folder.at("a"));
    ASSERT_TRUE(archive.ok()) << archive.status().message();
    small.vocabulary += 5;
    const SpeechModel second(small);
    std::map<std::string, torch::Tensor> then, before;
    for (const auto& [name, tensor] : tensors_of(*first)) then[name] = tensor;
    for (const auto& [name, tensor] : tensors_of(*second)) before[name] = tensor.detach().clone();
    const auto lines = load_archive(*archive, tensors_of(*second));
    ASSERT_TRUE(lines.ok()) << lines.status().message();
    const std::string tensors = head == SpeechHead::ctc ? "(2 tensors)" : "(15 tensors)";
    EXPECT_THAT(*lines,
                ElementsAre(HasSubstr("weights from"),
                            AllOf(HasSubstr("another vocabulary: "),
                                  HasSubstr(" has 9 rows here and 4 there, so decoder and joint start anew " +
                                            tensors))));
    for (const auto& [name, tensor] : tensors_of(*second))
      EXPECT_TRUE(tensor.equal(name.starts_with("encoder.") ? then[name] : before[name])) << name;
    // Other differences in these parts are not treated as a changed vocabulary.
    small.vocabulary -= 5;
    small.durations = {0, 1, 2};
    if (head == SpeechHead::tdt) {
      EXPECT_THAT(load_archive(*archive, tensors_of(*SpeechModel(small))).status().message(),
                  HasSubstr("joint.head.weight is F32"));
    }
  }
}

TEST(SpeechWeights, EverythingThatDoesNotFitIsListed) {
  const TempFolder folder;
  NamedTensors saved = make_model();
  for (int i = 1; i <= 30; ++i) {
    saved.emplace_back("encoder.layers." + std::to_string(i) + ".norm_out.bias", torch::zeros({2}));
    saved.emplace_back("extra." + std::to_string(i), torch::zeros({1}));
  }
  ASSERT_TRUE(write_transformers_model(folder.at("a"), settings(), nullptr, sources_of(saved)).ok());
  const auto archive = SpeechArchive::open(folder.at("a"));
  ASSERT_TRUE(archive.ok()) << archive.status().message();
  NamedTensors model = make_model();
  const torch::Tensor before = model[0].second.detach().clone();
  model[1].second = torch::zeros({6});
  for (int i = 1; i <= 30; ++i) {
    model.emplace_back("encoder.layers." + std::to_string(i) + ".norm_out.bias", torch::zeros({3}));
    model.emplace_back("needed." + std::to_string(i), torch::zeros({1}));
  }
  const std::string message = load_archive(*archive, model).status().message();
  EXPECT_THAT(message, AllOf(HasSubstr(folder.at("a") +
                                       ": its tensors are not those of the model; nothing was loaded"),
                             HasSubstr("of another shape or type (31):"), HasSubstr("missing in it (30):"),
                             HasSubstr("left over from it (30):"),
                             HasSubstr("conv.norm.running_mean is F32 [5], expected F32 [6]")));
  for (int i = 1; i <= 30; ++i) {
    const std::string n = std::to_string(i);
    EXPECT_THAT(message,
                AllOf(HasSubstr("\n  encoder.layers." + n + ".norm_out.bias is F32 [2], expected F32 [3]"),
                      HasSubstr("\n  needed." + n), HasSubstr("\n  extra." + n)));
  }
  EXPECT_THAT(message, Not(HasSubstr("q_proj")));
  EXPECT_TRUE(model[0].second.equal(before));
}

}  // namespace
}  // namespace octavo_train
