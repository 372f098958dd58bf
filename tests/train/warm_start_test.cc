// Tests initial weights from a file: matched by name, in any precision, renamed. Mismatches are named, and
// then nothing changes.
// SPDX-License-Identifier: MIT
#include "train/checkpoint/initial_weights.h"

#include "tests/train/parts_support.h"
#include "tests/train/text_files.h"
#include "train/checkpoint/folder/checkpoint_writer.h"
#include "train/checkpoint/tensors.h"
#include "train/formats/safetensors.h"

#include <filesystem>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<TensorSource> sources(const NamedTensors& tensors) {
  std::vector<TensorSource> out;
  for (const auto& [name, tensor] : tensors) {
    out.push_back(
        {name, stored_dtype(tensor.scalar_type()), tensor.sizes().vec(), [t = tensor.detach().contiguous()] {
           return Result<Bytes>(Bytes(static_cast<const std::byte*>(t.data_ptr()), t.nbytes()));
         }});
  }
  return out;
}

std::string write(const TextFiles& files, const NamedTensors& tensors,
                  const std::string& name = "weights.safetensors") {
  EXPECT_TRUE(write_safetensors(files.path(name), sources(tensors)).ok());
  return files.path(name);
}

void save(const std::string& run, std::int64_t step, const NamedTensors& tensors) {
  auto writer = CheckpointWriter::begin(run, step, 0);
  ASSERT_TRUE(writer->add_tensors("model.safetensors", sources(tensors)).ok());
  ASSERT_TRUE(writer->add_text("state.json", "{}").ok());
  ASSERT_TRUE(writer->commit().ok());
}

// Makes a model of one parameter with gradients and two buffers, one of integers.
NamedTensors make_model(torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(3);
  return {{"encoder.weight", torch::randn({5, 7}).to(type).requires_grad_()},
          {"norm.running_mean", torch::randn({5})},
          {"norm.count", torch::tensor(std::int64_t{1} << 40)}};
}

NamedTensors zeros_like(const NamedTensors& tensors) {
  NamedTensors out;
  for (const auto& [name, t] : tensors)
    out.emplace_back(name, torch::zeros_like(t.detach()).requires_grad_(t.requires_grad()));
  return out;
}

// Returns the error of load_initial_weights(), which must not change the model.
std::string error_of(const InitSettings& init, const NamedTensors& model) {
  const NamedTensors before = copies(model);
  const auto done = load_initial_weights(init, model);
  EXPECT_FALSE(done.ok());
  EXPECT_TRUE(same_bits(model, before));
  return done.status().message();
}

TEST(InitialWeights, TakesWeightsAndBuffersByName) {
  const TextFiles files;
  const NamedTensors there = make_model(), model = zeros_like(there);
  const auto done = load_initial_weights({.from = write(files, {there[2], there[0], there[1]})}, model);
  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_TRUE(same_bits(model, there));
  EXPECT_TRUE(model[0].second.requires_grad());
  EXPECT_EQ(done->used, 3);
  EXPECT_EQ(done->converted, 0);
  EXPECT_THAT(done->missing, IsEmpty());
  EXPECT_THAT(done->left_over, IsEmpty());
  EXPECT_THAT(done->lines(),
              ElementsAre("weights from " + files.path("weights.safetensors") + ": 3 tensors"));
}

TEST(InitialWeights, ConvertsPrecisions) {
  const TextFiles files;
  for (const auto from : {torch::kFloat32, torch::kBFloat16, torch::kFloat16, torch::kFloat64}) {
    for (const auto to : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
      NamedTensors there = make_model(from), model = zeros_like(make_model(to));
      there[2].second = there[2].second.to(torch::kInt32);
      const auto done = load_initial_weights({.from = write(files, there)}, model);
      ASSERT_TRUE(done.ok()) << done.status().message();
      EXPECT_TRUE(same_bits(model[0].second, there[0].second.to(to)));
      EXPECT_TRUE(same_bits(model[2].second, there[2].second.to(torch::kInt64)));
      EXPECT_EQ(done->converted, from == to ? 1 : 2);
    }
  }
  NamedTensors there = make_model();
  there[0].second = torch::ones({5, 7}, torch::kInt32);
  there[2].second = torch::ones({});
  EXPECT_THAT(error_of({.from = write(files, there)}, make_model()),
              AllOf(HasSubstr("encoder.weight is I32 [5, 7], expected F32 [5, 7]"),
                    HasSubstr("norm.count is F32 [], expected I64 []")));
}

TEST(InitialWeights, AnotherVocabularyBeginsItsPartsAnew) {
  const TextFiles files;
  NamedTensors there = make_model(), model = zeros_like(there);
  there.emplace_back("head.weight", torch::ones({9, 4}));
  there.emplace_back("head.gate", torch::ones({3}));
  model.emplace_back("head.weight", torch::zeros({12, 4}));
  model.emplace_back("head.gate", torch::zeros({3}));
  const std::string path = write(files, there);
  EXPECT_THAT(error_of({.from = path}, model), HasSubstr("head.weight is F32 [9, 4], expected F32 [12, 4]"));
  const ReinitializedLayers fresh = {
      "head", {"head.weight"}, [](const std::string& name) { return name.starts_with("head."); }};
  const auto done = load_initial_weights({.from = path}, model, fresh);
  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_TRUE(same_bits(model[0].second, there[0].second));
  EXPECT_TRUE(same_bits(model[4].second, torch::zeros({3})));
  EXPECT_THAT(
      done->lines(),
      ElementsAre(
          HasSubstr(": 3 tensors"),
          "another vocabulary: head.weight has 12 rows here and 9 there, so head start anew (2 tensors)"));
  // With the same vocabulary, all tensors are used. Only a different number of rows is another vocabulary.
  model[3].second = torch::zeros({9, 4});
  EXPECT_EQ(load_initial_weights({.from = path}, model, fresh)->used, 5);
  EXPECT_TRUE(same_bits(model[4].second, torch::ones({3})));
  model[3].second = torch::zeros({12, 5});
  EXPECT_THAT(load_initial_weights({.from = path}, model, fresh).status().message(), HasSubstr("[12, 5]"));
}

TEST(InitialWeights, WhatIsMissingOrLeftOverIsListed) {
  const TextFiles files;
  const NamedTensors there = make_model();
  const std::string path =
      write(files, {there[0], {"head.weight", torch::ones({2})}, {"head.bias", torch::ones({2})}});
  const NamedTensors model = zeros_like(there);
  EXPECT_EQ(
      error_of({.from = path}, model),
      "training.init_from: " + path +
          ": it does not fit the model: missing in it: norm.running_mean, norm.count; left over from it: "
          "head.weight, head.bias; give names with init_rename, or allow it with init_strict: false");
  const auto done = load_initial_weights({.from = path, .strict = false}, model);
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(same_bits(model[0].second, there[0].second));
  EXPECT_TRUE(same_bits(model[1].second, torch::zeros({5})));
  EXPECT_THAT(
      done->lines(),
      ElementsAre(
          HasSubstr(": 1 tensors"),
          HasSubstr("missing in it, so initialised as usual: 2 tensors: norm.running_mean, norm.count"),
          HasSubstr("left over from it: 2 tensors: head.weight, head.bias")));
  // A file of another model is an error, even if `strict` is false.
  const std::string other = write(files, {{"x", torch::ones({1})}}, "other.safetensors");
  EXPECT_THAT(error_of({.from = other, .strict = false}, model),
              HasSubstr("none of its names is in the model; it has x, expected encoder.weight, "));
}

TEST(InitialWeights, ManyNamesAreCounted) {
  const TextFiles files;
  NamedTensors there = make_model();
  for (int i = 0; i < 12; ++i) there.emplace_back("extra." + std::to_string(i), torch::ones({1}));
  EXPECT_THAT(error_of({.from = write(files, there)}, make_model()),
              AllOf(HasSubstr("extra.7 and 4 more"), Not(HasSubstr("extra.8"))));
}

TEST(InitialWeights, WrongShapesAreAlwaysErrors) {
  const TextFiles files;
  NamedTensors there = make_model();
  there[0].second = torch::ones({7, 5});
  for (const bool strict : {true, false}) {
    EXPECT_THAT(error_of({.from = write(files, there), .strict = strict}, make_model()),
                AllOf(HasSubstr("it is of another model: encoder.weight is F32 [7, 5], expected F32 [5, 7]"),
                      Not(HasSubstr("norm"))));
  }
}

TEST(InitialWeights, NamesAreChangedByTheFirstRuleThatMatches) {
  const TextFiles files;
  const NamedTensors there = make_model();
  NamedTensors named = there;
  named[0].first = "model.encoder.gamma";
  named[1].first = "model.norm.running_mean";
  named[2].first = "model.norm.count";
  const std::string path = write(files, named);
  const NamedTensors model = zeros_like(there);
  const auto done = load_initial_weights(
      {.from = path, .rename = {{"model.*.gamma", "*.weight"}, {"model.*", "*"}}}, model);
  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_TRUE(same_bits(model, there));

  EXPECT_THAT(error_of({.from = path, .rename = {{"model.*", "*"}, {"model.*.gamma", "*.weight"}}}, model),
              AllOf(HasSubstr("training.init_rename: \"model.*.gamma\" changes no name of " + path),
                    HasSubstr("there are "), HasSubstr("model.encoder.gamma")));
  EXPECT_THAT(error_of({.from = path, .rename = {{"model.", ""}}}, model),
              HasSubstr("it must match the whole name"));
  EXPECT_THAT(error_of({.from = path, .rename = {{"model.norm.count", "model.norm.running_mean"}}}, model),
              AllOf(HasSubstr("would both be model.norm.running_mean"), HasSubstr("model.norm.count")));
}

TEST(InitialWeights, FromACheckpointARunOrAFolderOfWeights) {
  const TextFiles files;
  const std::string run = files.path("run");
  NamedTensors first = make_model(), second = make_model();
  second[0].second = second[0].second.detach() + 1;
  save(run, 5, first);
  save(run, 10, second);
  const NamedTensors model = zeros_like(first);
  const auto from = [&](const std::string& path) {
    const auto done = load_initial_weights({.from = path}, model);
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() ? *done : InitialWeights();
  };
  EXPECT_EQ(from(run).file, run + "/checkpoint-10/model.safetensors");
  EXPECT_TRUE(same_bits(model[0].second, second[0].second));
  EXPECT_EQ(from(run + "/checkpoint-5").file, run + "/checkpoint-5/model.safetensors");
  EXPECT_TRUE(same_bits(model[0].second, first[0].second));
  from(run + "/latest");
  EXPECT_TRUE(same_bits(model[0].second, second[0].second));

  std::filesystem::resize_file(run + "/checkpoint-10/model.safetensors", 10);
  const InitialWeights older = from(run);
  EXPECT_THAT(older.lines().front(), AllOf(HasSubstr("warning: skipped "), HasSubstr("checkpoint-10")));
  EXPECT_THAT(older.file, HasSubstr("checkpoint-5"));
  EXPECT_THAT(error_of({.from = run + "/checkpoint-10"}, model), HasSubstr("it is cut short"));

  std::filesystem::create_directory(files.path("hub"));
  write(files, first, "hub/model.safetensors");
  EXPECT_EQ(from(files.path("hub")).file, files.path("hub") + "/model.safetensors");

  EXPECT_EQ(error_of({.from = files.path("none")}, model),
            "training.init_from: " + files.path("none") + " does not exist");
  std::filesystem::create_directory(files.path("empty"));
  EXPECT_THAT(error_of({.from = files.path("empty")}, model), HasSubstr("found no checkpoint"));
  EXPECT_THAT(error_of({.from = files.write("text.txt", "some text of no format")}, model),
              AllOf(HasSubstr("training.init_from: "), HasSubstr("text.txt")));
}

// Other programs do not align tensors to their elements.
TEST(StoredTensors, AreCopiedWhereTheirBytesAreNotAligned) {
  alignas(8) std::array<std::byte, 24> bytes{};
  const std::array<float, 3> values = {1.5F, -2.0F, 3.25F};
  for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
    std::memcpy(bytes.data() + shift, values.data(), sizeof(values));
    const StoredTensor stored{"x", "F32", {3}, Bytes(bytes).subspan(shift, sizeof(values))};
    const torch::Tensor view = view_of_stored(stored);
    EXPECT_TRUE(torch::equal(view, torch::tensor({1.5F, -2.0F, 3.25F})));
    EXPECT_EQ(view.data_ptr() == bytes.data() + shift, shift == 0);
  }
  EXPECT_FALSE(view_of_stored({"x", "F8_E4M3", {1}, {}}).defined());
}

}  // namespace
}  // namespace octavo_train
