// The task `images`: classifies generated images.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/images/model.h"
#include "tests/images/settings.h"
#include "train/task.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

class ImageTask : public Task {
 public:
  Result<TaskData> open(const OpenArgs& args) override;
  [[nodiscard]] std::unique_ptr<Task> copy_without_model() const override;
  TaskModel build(const Settings& settings) override;

  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override;
  torch::Tensor loss(const Batch& batch, const PassKey& key) override;
  std::optional<Tally> evaluate_shard(const EvaluationCall& call) override;
  [[nodiscard]] Evaluation summarize(const Tally& all) const override;
  std::optional<Preview> preview(const torch::Device& device, const std::function<bool()>& stop) override;
  [[nodiscard]] TaskText text() const override;

 protected:
  void set_settings(const Settings& settings);
  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] Batch draw(const std::vector<std::uint64_t>& numbers) const;

 private:
  torch::Tensor logits(const Batch& batch);

  Settings settings_;
  ImageSettings images_;
  ConvNetSettings net_;
  std::shared_ptr<ConvNetImpl> model_;
};

}  // namespace octavo_train
