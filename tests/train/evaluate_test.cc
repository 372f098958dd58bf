// Compares the loss on validation text with one computed by hand, and tests that evaluations leave no trace.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/evaluate.h"

#include "tests/train/parts_support.h"
#include "tests/train/text_files.h"
#include "train/tasks/text/bdh.h"

#include <cmath>

namespace octavo_train {
namespace {

struct Validation {
  TextFiles files;
  TextCorpus corpus;
  std::vector<std::int64_t> offsets;
  static constexpr std::int64_t kBlock = 12;

  explicit Validation(std::size_t windows) {
    // Windows have different kinds of text, so that their losses differ.
    std::string text;
    for (std::size_t i = 0; i < windows; ++i)
      text += i % 4 == 3 ? numbered(kBlock) : std::string(kBlock, 'a');
    const std::vector<std::string> paths = {files.write("text", text + "a")};
    corpus = TextCorpus::open(paths).value();
    for (std::size_t i = 0; i < windows; ++i) offsets.push_back(static_cast<std::int64_t>(i) * kBlock);
  }
  [[nodiscard]] std::optional<TextLosses> share(TextModel& model, std::int64_t rows, int rank, int ranks,
                                                ComputeType dtype = ComputeType::float32) const {
    return evaluate_text(model, corpus, offsets, kBlock, rows, dtype,
                         {torch::kCPU, [] { return false; }, rank, ranks});
  }
  [[nodiscard]] std::optional<double> loss(TextModel& model, std::int64_t rows,
                                           ComputeType dtype = ComputeType::float32) const {
    const auto all = share(model, rows, 0, 1, dtype);
    if (!all) return std::nullopt;
    EXPECT_EQ(all->windows, static_cast<std::int64_t>(offsets.size()));
    return all->sum / static_cast<double>(all->windows);
  }
};

TEST(Evaluate, IsTheMeanOverAllWindows) {
  torch::manual_seed(4);
  BdhImpl model(BdhConfig{2, 16, 2, 8, kByteVocabulary, 0.5});
  {  // losses far from ln 256, so that a skipped window is noticed
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& param : model.parameters()) param.mul_(20);
  }
  const Validation text(10);
  // Computes the expected losses one window at a time, in double after the logits.
  std::vector<double> by_window;
  {
    const torch::NoGradGuard no_grad;
    model.eval();
    for (const std::int64_t offset : text.offsets) {
      std::vector<std::uint8_t> bytes(Validation::kBlock + 1);
      text.corpus.read(offset, bytes);
      const torch::Tensor tokens = torch::tensor(std::vector<std::int64_t>(bytes.begin(), bytes.end()));
      const torch::Tensor logits = model.forward(tokens.slice(0, 0, -1).unsqueeze(0))[0].to(torch::kFloat64);
      double sum = 0;
      for (std::int64_t i = 0; i < Validation::kBlock; ++i)
        sum -= torch::log_softmax(logits[i], 0)[tokens[i + 1]].item<double>();
      by_window.push_back(sum / Validation::kBlock);
    }
    model.train();
  }
  double mean = 0, of_batches = 0;
  for (const double loss : by_window) mean += loss / 10;
  for (const auto& [from, to] : {std::pair(0, 4), std::pair(4, 8), std::pair(8, 10)})
    for (int i = from; i < to; ++i) of_batches += by_window[static_cast<std::size_t>(i)] / (to - from) / 3;
  // The error of a few layers' fp32 logits and of fp32 losses is far below the difference between the two
  // means.
  const double near = 1e-5 * mean;
  ASSERT_GT(std::abs(of_batches - mean), 100 * near) << "batches of 4, 4 and 2, all counted alike";
  for (const std::int64_t rows : {4, 1, 3, 10, 64}) {
    const auto result = text.loss(model, rows);
    ASSERT_TRUE(result);
    EXPECT_NEAR(*result, mean, near) << rows << " rows";
  }
  EXPECT_TRUE(model.is_training());
}

TEST(Evaluate, SharesHaveEveryBatchOnce) {
  torch::manual_seed(4);
  BdhImpl model(BdhConfig{2, 16, 2, 8, kByteVocabulary, 0.5});
  const Validation text(11);  // batches of 2, and one of 1
  const TextLosses whole = text.share(model, 2, 0, 1).value();
  for (const int ranks : {2, 3, 7}) {
    TextLosses all;
    for (int rank = 0; rank < ranks; ++rank) {
      const TextLosses one = text.share(model, 2, rank, ranks).value();
      const int batches = (6 - rank + ranks - 1) / ranks;
      EXPECT_EQ(one.windows, 2 * batches - (batches > 0 && 5 % ranks == rank ? 1 : 0))
          << rank << " of " << ranks;
      all.sum += one.sum, all.windows += one.windows;
    }
    EXPECT_EQ(all.windows, 11);
    EXPECT_NEAR(all.sum, whole.sum, 10 * 0x1p-53 * whole.sum) << "six numbers in another order, in double";
  }
}

TEST(Evaluate, ChangesNoTraining) {
  torch::manual_seed(4);
  BdhImpl model(BdhConfig{2, 16, 2, 8, kByteVocabulary, 0.5});
  const Validation text(5);
  const TokenBatch batch{torch::randint(256, {2, 12}), torch::randint(256, {2, 12})};
  const auto train = [&](bool evaluated) {
    for (torch::Tensor& param : model.parameters()) param.mutable_grad().reset();
    const torch::Tensor samples = torch::tensor({8, 9}, torch::kInt64);
    text_loss(model, batch, {5, 1, samples}).backward();
    if (evaluated) {
      EXPECT_TRUE(text.loss(model, 2, ComputeType::bfloat16));
    }
    text_loss(model, batch, {5, 2, samples}).backward();
    NamedTensors out;
    for (const auto& each : model.named_parameters())
      out.emplace_back(each.key(), each.value().grad().clone());
    return out;
  };
  EXPECT_TRUE(same_bits(train(false), train(true)));
  EXPECT_TRUE(model.is_training());
  model.eval();
  EXPECT_TRUE(text.loss(model, 2));
  EXPECT_FALSE(model.is_training());
}

// Counts its calls.
class Counting : public TextModel {
 public:
  torch::Tensor logits(const torch::Tensor& tokens, const DropoutKey& /*pass*/) override {
    ++asked;
    return torch::zeros({tokens.size(0), tokens.size(1), kByteVocabulary});
  }
  int asked = 0;
};

TEST(Evaluate, StopsInBetween) {
  Counting model;
  const Validation text(5);
  int batches = 0;
  const auto result = evaluate_text(model, text.corpus, text.offsets, Validation::kBlock, 2,
                                    ComputeType::float32, {torch::kCPU, [&] { return ++batches == 2; }});
  EXPECT_FALSE(result);
  EXPECT_EQ(model.asked, 1);
  EXPECT_TRUE(model.is_training());
}

TEST(ToTokens, TargetsAreOneFurtherOn) {
  const TokenBatch batch = to_tokens(torch::tensor({{1, 2, 200}, {255, 5, 6}}, torch::kUInt8));
  EXPECT_TRUE(torch::equal(batch.inputs, torch::tensor({{1, 2}, {255, 5}}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(batch.targets, torch::tensor({{2, 200}, {5, 6}}, torch::kInt64)));
}

}  // namespace
}  // namespace octavo_train
