// Tests text generation: choices, seeds, the context that the model sees, and the end of the text.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/bdh.h"
#include "train/tasks/text/evaluate.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace octavo_train {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

// Records the lengths of its inputs, and predicts the next letter. Its second choice is 'z', with a slightly
// lower logit; all others are far lower.
class NextLetter : public TextModel {
 public:
  torch::Tensor logits(const torch::Tensor& tokens, const DropoutKey& /*pass*/) override {
    lengths.push_back(tokens.size(1));
    was_training = was_training || is_training();
    torch::Tensor out = torch::full({tokens.size(0), tokens.size(1), kByteVocabulary}, -20.0F);
    for (std::int64_t row = 0; row < tokens.size(0); ++row) {
      for (std::int64_t i = 0; i < tokens.size(1); ++i) {
        out[row][i][(tokens[row][i].item<std::int64_t>() + 1) % 256] = 1.0F;
        out[row][i]['z'] = second;
      }
    }
    return out;
  }
  std::vector<std::int64_t> lengths;
  bool was_training = false;
  float second = 0.5F;
};

std::string write(TextModel& model, const std::string& prompt, const SampleOptions& options,
                  std::int64_t context = 8) {
  return generate(model, prompt, context, options, torch::kCPU, ComputeType::float32);
}

SampleOptions options(std::int64_t tokens, std::int64_t top_k, double temperature, std::uint64_t seed = 1) {
  return {tokens, top_k, temperature, seed};
}

TEST(Generate, TakesTheLikeliestByteAtTemperatureZero) {
  NextLetter model;
  EXPECT_EQ(write(model, "xa", options(5, 0, 0.0)), "bcdef");
  EXPECT_EQ(write(model, "\xFD", options(4, 0, 0.0)), std::string("\xFE\xFF\x00\x01", 4)) << "unsigned bytes";
  EXPECT_EQ(write(model, "a", options(0, 0, 0.0)), "");
}

TEST(Generate, TheFirstOfTheTopIsTheLikeliest) {
  NextLetter model;
  for (const std::uint64_t seed : {1U, 2U, 3U})
    EXPECT_EQ(write(model, "a", options(20, 1, 3.0, seed)), write(model, "a", options(20, 0, 0.0)));
  torch::manual_seed(4);
  BdhImpl bdh(BdhConfig{2, 16, 2, 8, kByteVocabulary, 0.3});
  EXPECT_EQ(write(bdh, "To be", options(40, 1, 2.0)), write(bdh, "To be", options(40, 0, 0.0)));
  // Equal logits, which are common in low precision: the first of them is chosen, at any temperature.
  model.second = 1.0F;
  for (const std::uint64_t seed : {1U, 2U, 3U})
    EXPECT_EQ(write(model, "a", options(20, 1, 3.0, seed)), write(model, "a", options(20, 0, 0.0)));
}

TEST(Generate, TopKLeavesTheOthersOut) {
  NextLetter model;
  const std::string text =
      write(model, "a", options(200, 2, 50.0));  // nearly equal probabilities, but only two choices
  EXPECT_THAT(text, SizeIs(200));
  char last = 'a';
  for (const char c : text) {
    EXPECT_TRUE(c == 'z' || c == static_cast<char>(last + 1)) << int{c};
    last = c;
  }
  EXPECT_GT(std::count(text.begin(), text.end(), 'z'), 20);
  const std::string all = write(model, "a", options(200, 0, 50.0));
  EXPECT_GT(std::set<char>(all.begin(), all.end()).size(), 50U);
}

TEST(Generate, FollowsItsSeedAndTakesNoOthersNumbers) {
  torch::manual_seed(4);
  BdhImpl model(BdhConfig{2, 16, 2, 8, kByteVocabulary, 0.3});
  const std::string text = write(model, "a", options(30, 0, 1.0, 1));
  torch::manual_seed(99);
  const torch::Tensor expected = torch::rand({3});
  torch::manual_seed(99);
  EXPECT_EQ(write(model, "a", options(30, 0, 1.0, 1)), text);
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected)) << "the global generator is where it was";
  EXPECT_NE(write(model, "a", options(30, 0, 1.0, 2)), text);
  EXPECT_TRUE(model.is_training());
}

TEST(Generate, ShowsTheModelNoMoreThanTheContext) {
  NextLetter model;
  write(model, "abc", options(8, 0, 0.0), 4);
  // When the context is full, its last half is computed again.
  EXPECT_THAT(model.lengths, ElementsAre(3, 4, 2, 3, 4, 2, 3, 4));
  EXPECT_FALSE(model.was_training);
  model.lengths.clear();
  write(model, "abcdefgh", options(2, 0, 0.0), 4);
  EXPECT_THAT(model.lengths, ElementsAre(4, 2));
  model.lengths.clear();
  EXPECT_EQ(write(model, "abc", options(3, 0, 0.0), 1), "def");
  EXPECT_THAT(model.lengths, Each(1));
}

// Has the same weights, but computes each text from its beginning.
class Recomputed : public TextModel {
 public:
  explicit Recomputed(BdhImpl& model) : model_(model) {}
  torch::Tensor logits(const torch::Tensor& tokens, const DropoutKey& pass) override {
    return model_.forward(tokens, pass);
  }

 private:
  BdhImpl& model_;
};

TEST(Generate, WritesTheSameWithAndWithoutAMemoryOfTheText) {
  torch::manual_seed(4);
  BdhImpl bdh(BdhConfig{2, 32, 2, 8, kByteVocabulary, 0.0});
  {  // makes the probabilities far from uniform
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& param : bdh.parameters()) param.mul_(10);
  }
  Recomputed recomputed(bdh);
  for (const std::int64_t context : {200, 24, 7, 1}) {
    const std::string text = write(bdh, "To be", options(80, 0, 1.0), context);
    EXPECT_EQ(text, write(recomputed, "To be", options(80, 0, 1.0), context)) << context;
  }
}

TEST(Generate, EndsWhereItIsTold) {
  NextLetter model;
  std::string seen;
  const std::string text =
      generate(model, "a", 8, options(50, 0, 0.0), torch::kCPU, ComputeType::float32, [&](char c) {
        seen += c;
        return c != 'e';
      });
  EXPECT_EQ(text, "bcde");
  EXPECT_EQ(seen, text);
}

}  // namespace
}  // namespace octavo_train
