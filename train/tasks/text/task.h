// The task `text`: language models of bytes. The rows of a batch are windows of the text, one byte longer
// than a sequence.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/task.h"
#include "train/tasks/text/bdh.h"
#include "train/tasks/text/evaluate.h"
#include "train/tasks/text/settings.h"
#include "train/tasks/text/text_files.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

class TextTask : public Task {
 public:
  Result<TaskData> open(const OpenArgs& args) override;
  [[nodiscard]] std::unique_ptr<Task> copy_without_model() const override;
  TaskModel build(const Settings& settings) override;

  [[nodiscard]] Batch read(const Order& order, std::uint64_t first, std::int64_t rows) const override;
  [[nodiscard]] Batch largest_batch(const Order& order, std::int64_t rows, BatchUse use) const override;
  torch::Tensor loss(const Batch& batch, const PassKey& key) override;
  std::optional<Tally> evaluate_shard(const EvaluationCall& call) override;
  [[nodiscard]] Evaluation summarize(const Tally& all) const override;
  std::optional<Preview> preview(const torch::Device& device, const std::function<bool()>& stop) override;
  [[nodiscard]] TaskText text() const override;

  // Returns the text that the model generates after `prompt`; see generate(). REQUIRES: build() has been
  // called.
  std::string write(const std::string& prompt, const SampleOptions& options, const torch::Device& device,
                    const std::function<bool(char)>& each);

 private:
  // The opened text, which copies share.
  struct Data {
    TextSplit split;
    std::size_t files = 0, repeated_files = 0;
    std::vector<std::int64_t> evaluation;  // offsets of the windows
    double unigram_entropy = 0;            // of the validation text
  };
  [[nodiscard]] Status check_windows(const TextSplit& split, const std::string& checkpoint) const;

  Settings settings_;
  TextSettings text_;
  BdhSettings model_settings_;
  std::shared_ptr<const Data> data_ = std::make_shared<Data>();
  std::shared_ptr<TextModel> model_;
};

}  // namespace octavo_train
