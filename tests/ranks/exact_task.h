// A task whose gradients are small multiples of a power of two: their sums are exact in fp32 and bf16, in any
// order. Training on any number of ranks, with any division of a step into micro-batches, must therefore be
// bit-identical to one process, for every optimizer, state format and rounding.
//
// A sample is one of eight patterns of integers from -3 to 3. The gradient is their mean over the rows of a
// step. It does not depend on the weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/images/task.h"
#include "train/data/order.h"

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace octavo_train::ranks {

// Batches of 1, 1 and 2 rows in turn, so that three ranks together have four rows per micro-batch, a power of
// two.
class BatchesOfThree : public octavo_train::Batches {
 public:
  [[nodiscard]] std::int64_t rows_at(const octavo_train::Order& /*order*/,
                                     std::uint64_t position) const override {
    return position % 4 == 2 ? 2 : 1;
  }
};

// Parameters of sizes with and without quantized states, one in another memory order, one to which few
// samples give a gradient, and one that never has a gradient.
class ExactModel : public torch::nn::Module {
 public:
  static constexpr std::size_t kSometimes = 4, kUnused = 5;

  ExactModel() {
    add("large", torch::randn({97, 200}));
    add("kernel", torch::randn({32, 24, 3, 3}).contiguous(torch::MemoryFormat::ChannelsLast));
    add("vector", torch::randn({700}));
    add("even", torch::randn({64, 64}));
    add("sometimes", torch::randn({5000}));
    add("unused", torch::randn({5, 6}));
    add("tail", torch::randn({3}));
  }

 private:
  void add(const char* name, const torch::Tensor& tensor) { register_parameter(name, tensor); }
};

class ExactTask : public octavo_train::ImageTask {
 public:
  static constexpr std::int64_t kPatterns = 8;

  // `ranks` is the number of ranks; 1: one process. Over all ranks, a micro-batch has four rows.
  explicit ExactTask(int ranks) : ranks_(ranks) {}
  static std::int64_t rows(int ranks) { return ranks == 1 ? 4 : ranks == 2 ? 2 : 1; }

  octavo_train::Result<octavo_train::TaskData> open(const OpenArgs& args) override {
    auto out = ImageTask::open(args);
    if (out.ok() && ranks_ == 3) out->batches = std::make_shared<const BatchesOfThree>();
    return out;
  }
  [[nodiscard]] std::unique_ptr<Task> copy_without_model() const override {
    auto out = std::make_unique<ExactTask>(ranks_);
    out->set_settings(settings());
    return out;
  }

  octavo_train::TaskModel build(const octavo_train::Settings& settings) override {
    ImageTask::build(settings);
    exact_ = std::make_shared<ExactModel>();
    patterns_.clear();
    for (const torch::Tensor& each : exact_->parameters()) {
      const torch::Tensor at = torch::arange(each.numel()).unsqueeze(0);
      const torch::Tensor sample = torch::arange(kPatterns).unsqueeze(1);
      const torch::Tensor numbers = (at * at % 13 + at * (sample + 2) + sample * 5) % 7 - 3;
      patterns_.push_back(numbers.to(torch::kFloat32));
      if (patterns_.size() == ExactModel::kSometimes + 1) patterns_.back().slice(0, 1).zero_();
    }
    return {.module = exact_};
  }

  [[nodiscard]] octavo_train::Batch read(const octavo_train::Order& order, std::uint64_t first,
                                         std::int64_t rows) const override {
    octavo_train::Batch out;
    const torch::Tensor patterns = torch::empty({rows}, torch::kInt64);
    for (std::int64_t i = 0; i < rows; ++i) {
      out.draws.push_back(first + static_cast<std::uint64_t>(i));
      patterns.data_ptr<std::int64_t>()[i] = order.sample(out.draws.back()) % kPatterns;
    }
    out.tensors.emplace_back("patterns", patterns);
    return out;
  }

  torch::Tensor loss(const octavo_train::Batch& batch, const octavo_train::PassKey& /*key*/) override {
    const torch::Tensor& rows = batch.at("patterns");
    const bool all = (rows == 0).any().item<bool>();  // other batches give kSometimes no gradient
    torch::Tensor sum = torch::zeros({});
    const std::vector<torch::Tensor> weights = exact_->parameters();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (i == ExactModel::kUnused || (i == ExactModel::kSometimes && !all)) continue;
      const torch::Tensor& weight = weights[i];
      const torch::Tensor x = patterns_[i].index_select(0, rows).sum(0).view(weight.sizes());
      sum = sum + (weight * x.to(weight.scalar_type())).sum().to(torch::kFloat32);
    }
    return sum / static_cast<double>(batch.rows());
  }

  // The sums are integers too. There are 10 batches, and the last one is smaller.
  std::optional<octavo_train::Tally> evaluate_shard(const octavo_train::EvaluationCall& call) override {
    octavo_train::Tally out{{0.0}, 0};
    for (std::int64_t first = call.rank * 4; first < 38; first += call.ranks * 4)
      out.sums[0] += static_cast<double>(first), out.units += std::min<std::int64_t>(4, 38 - first);
    return out;
  }
  [[nodiscard]] octavo_train::Evaluation summarize(const octavo_train::Tally& all) const override {
    return {{{"loss", all.sums[0], octavo_train::Better::lower}}, all.units};
  }

 private:
  int ranks_;
  std::shared_ptr<ExactModel> exact_;
  std::vector<torch::Tensor> patterns_;  // [patterns, elements] for each parameter
};

}  // namespace octavo_train::ranks
