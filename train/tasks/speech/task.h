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

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

class SpeechTask : public Task {
 public:
  Result<TaskData> open(const OpenArgs& args) override;
  [[nodiscard]] std::unique_ptr<Task> copy_without_model() const override;
  TaskModel build(const Settings& settings) override;

  [[nodiscard]] Batch read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const override {
    return clips_->read(order, first_draw, rows);
  }
  [[nodiscard]] Batch largest_batch(const Order& order, std::int64_t rows, BatchUse use) const override {
    return use == BatchUse::training ? clips_->largest(order, rows)
                                     : clips_->largest_to_evaluate(order, std::min(rows, evaluated()));
  }
  torch::Tensor loss(const Batch& batch, const PassKey& key) override;
  std::optional<Tally> evaluate_shard(const EvaluationCall& call) override;
  [[nodiscard]] Evaluation summarize(const Tally& all) const override;
  Status set_run_folder(const std::string& folder) override { return clips_->set_run_folder(folder); }
  [[nodiscard]] TaskText text() const override;

 private:
  // Stores the settings and determines the model's sizes, from its files if model.name names files.
  Status take(const Settings& settings);
  // Copies the archive's weights into the model and frees the archive.
  Status load_first_weights();
  [[nodiscard]] std::int64_t evaluated() const;  // number of clips in an evaluation
  // Returns the features of a batch of audio.
  [[nodiscard]] torch::Tensor features_of(const Batch& batch, const DropoutKey* pass);
  // Returns the batch in the form that the model expects. `pass` is that of training, and null in an
  // evaluation.
  [[nodiscard]] SpeechClips prepared(const Batch& batch, const DropoutKey* pass);
  std::vector<std::string> texts(const Encoded& encoded);  // recognized texts

  Settings settings_;
  std::shared_ptr<ClipSource> clips_;     // shared by copies
  std::optional<Featurizer> featurizer_;  // created with the first batch of recordings, on its device
  SpecAugmentSettings augment_;
  SpeechModelSettings model_settings_;
  std::shared_ptr<const SpeechArchive> archive_;  // the source of the first weights, shared by copies
  std::vector<std::string> about_model_;          // lines of the introduction
  std::shared_ptr<SpeechModelImpl> model_;
};

}  // namespace octavo_train
