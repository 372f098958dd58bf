// The task `images`: classifies generated images.
// SPDX-License-Identifier: MIT
#pragma once

#include "images/model.h"
#include "images/settings.h"
#include "train/task.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

class ImageTask : public Task {
 public:
  Result<DataChange> open(const Opening& opening) override;
  [[nodiscard]] nlohmann::ordered_json data_record() const override;
  std::shared_ptr<torch::nn::Module> build(const Settings& settings) override;

  [[nodiscard]] std::int64_t samples() const override { return images_.train_images; }
  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override;
  [[nodiscard]] std::int64_t units(std::int64_t rows) const override { return rows; }
  [[nodiscard]] Unit unit() const override { return {"images", "img"}; }

  torch::Tensor loss(const Batch& batch, const PassKey& key) override;
  std::optional<Tally> tally(const EvaluationCall& call) override;
  [[nodiscard]] Evaluation evaluation(const Tally& all) const override;
  std::optional<Preview> preview(const torch::Device& device, const std::function<bool()>& stop) override;

  [[nodiscard]] std::vector<std::string> introduction() const override;
  void describe(nlohmann::ordered_json& start) const override;
  [[nodiscard]] std::string batch_text(std::int64_t rows) const override;
  [[nodiscard]] std::vector<std::string> memory_advice() const override;
  [[nodiscard]] std::string shorter_steps() const override;

 protected:
  [[nodiscard]] Batch draw(const std::vector<std::uint64_t>& numbers) const;

 private:
  void take(const Settings& settings);
  torch::Tensor logits(const Batch& batch);

  Settings settings_;
  ImageSettings images_;
  ConvNetSettings net_;
  std::shared_ptr<ConvNetImpl> model_;
};

}  // namespace octavo_train
