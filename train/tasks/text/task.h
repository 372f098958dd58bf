// The task `text`: language models of bytes. The rows of a batch are windows of the text, one byte longer
// than a sequence.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/task.h"
#include "train/tasks/text/evaluate.h"
#include "train/tasks/text/settings.h"
#include "train/tasks/text/text_files.h"
#include "train/tasks/text/text_model.h"

#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

class TextTask : public Task {
 public:
  Result<DataChange> open(const Opening& opening) override;
  [[nodiscard]] nlohmann::ordered_json data_record() const override;
  std::shared_ptr<torch::nn::Module> build(const Settings& settings) override;

  [[nodiscard]] std::int64_t samples() const override;
  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override;
  [[nodiscard]] Batch largest_to_evaluate(const Order& order, std::int64_t rows) const override {
    return largest(order, std::min(rows, static_cast<std::int64_t>(evaluation_.size())));
  }
  [[nodiscard]] std::int64_t units(std::int64_t rows) const override { return rows * text_.block_size; }
  [[nodiscard]] Unit unit() const override { return {"tokens", "tok"}; }

  torch::Tensor loss(const Batch& batch, const PassKey& key) override;
  [[nodiscard]] std::int64_t uses_of_weights() const override { return model_->uses_of_weights(); }
  std::optional<Tally> tally(const EvaluationCall& call) override;
  [[nodiscard]] Evaluation evaluation(const Tally& all) const override;
  std::optional<Preview> preview(const torch::Device& device, const std::function<bool()>& stop) override;

  [[nodiscard]] std::vector<std::string> introduction() const override;
  void describe(nlohmann::ordered_json& start) const override;
  [[nodiscard]] std::string batch_text(std::int64_t rows) const override;
  [[nodiscard]] std::vector<std::string> memory_advice() const override;
  [[nodiscard]] SizeKey length_key() const override;
  [[nodiscard]] SizeKey model_key() const override;
  [[nodiscard]] std::string shorter_steps() const override;

  // Returns the text that the model generates after `prompt`; see generate(). REQUIRES: build() has been
  // called.
  std::string write(const std::string& prompt, const SampleOptions& options, const torch::Device& device,
                    const std::function<bool(char)>& each);

 private:
  [[nodiscard]] Status check_windows(const std::string& checkpoint) const;

  Settings settings_;
  TextSettings text_;
  BdhSettings model_settings_;
  TextRecord record_;
  TextSplit split_;
  std::vector<std::int64_t> evaluation_;  // offsets of the windows
  std::shared_ptr<TextModel> model_;
};

}  // namespace octavo_train
