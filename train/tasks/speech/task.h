// The task `speech`: trains a FastConformer on features of clips and their transcripts, and evaluates its
// loss and word error rate.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/task.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/config/settings.h"
#include "train/tasks/speech/data/clip_source.h"
#include "train/tasks/speech/features/featurizer.h"
#include "train/tasks/speech/model/speech_model.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

class SpeechTask : public Task {
 public:
  Result<DataChange> open(const Opening& opening) override;
  [[nodiscard]] nlohmann::ordered_json data_record() const override;
  std::shared_ptr<torch::nn::Module> build(const Settings& settings) override;
  Status load_first_weights() override;
  [[nodiscard]] ReinitializedLayers reinitialized_layers() const override;

  [[nodiscard]] std::int64_t samples() const override { return clips_->samples(); }
  [[nodiscard]] const Batches* batches() const override { return clips_->batches(); }
  [[nodiscard]] Batch read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const override {
    return clips_->read(order, first_draw, rows);
  }
  [[nodiscard]] Batch largest(const Order& order, std::int64_t rows) const override {
    return clips_->largest(order, rows);
  }
  [[nodiscard]] Batch largest_to_evaluate(const Order& order, std::int64_t rows) const override {
    return clips_->largest_to_evaluate(order, std::min(rows, evaluated()));
  }
  [[nodiscard]] std::int64_t units(std::int64_t rows) const override { return rows; }
  [[nodiscard]] Unit unit() const override { return {"clips", "clips"}; }
  [[nodiscard]] std::map<std::string, std::string> checkpoint_extra_files() const override;

  torch::Tensor loss(const Batch& batch, const PassKey& key) override;
  bool set_gate(WeightGate gate) override;
  std::optional<Tally> tally(const EvaluationCall& call) override;
  [[nodiscard]] Evaluation evaluation(const Tally& all) const override;
  // Returns nothing, because the examples of the last evaluation already show what the model recognizes.
  std::optional<Preview> preview(const torch::Device& /*device*/,
                                 const std::function<bool()>& /*stop*/) override {
    return std::nullopt;
  }

  [[nodiscard]] std::vector<std::string> introduction() const override;
  void describe(nlohmann::ordered_json& start) const override;
  [[nodiscard]] std::string batch_text(std::int64_t rows) const override;
  [[nodiscard]] std::vector<std::string> memory_advice() const override;
  [[nodiscard]] SizeKey length_key() const override { return clips_->length_key(); }
  [[nodiscard]] SizeKey model_key() const override;
  [[nodiscard]] std::vector<std::string> smaller_limits(std::int64_t parts) const override {
    return clips_->smaller_limits(parts);
  }
  [[nodiscard]] std::string shorter_steps() const override;
  Status begin(const std::string& folder) override { return clips_->begin(folder); }
  [[nodiscard]] std::vector<std::string> ending() const override { return clips_->ending(); }

 private:
  // Stores the settings and determines the model's sizes, from its files if model.name names files.
  Status take(const Settings& settings);
  [[nodiscard]] std::int64_t evaluated() const;  // number of clips in an evaluation
  // Returns the features of a batch of audio.
  [[nodiscard]] torch::Tensor features_of(const Batch& batch, const DropoutKey* pass);
  // Returns the batch in the form that the model expects. `pass` is that of training, and null in an
  // evaluation.
  [[nodiscard]] SpeechClips prepared(const Batch& batch, const DropoutKey* pass);
  std::vector<std::string> texts(const Encoded& encoded);  // recognized texts

  Settings settings_;
  std::unique_ptr<ClipSource> clips_;
  std::optional<Featurizer> featurizer_;  // created with the first batch of recordings, on its device
  SpecAugmentSettings augment_;
  SpeechModelSettings model_settings_;
  std::optional<SpeechArchive> archive_;  // the source of the first weights
  std::vector<std::string> about_model_;  // lines of the introduction
  std::shared_ptr<SpeechModelImpl> model_;
};

}  // namespace octavo_train
