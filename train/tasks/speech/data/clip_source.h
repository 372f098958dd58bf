// The only interface through which the speech task accesses the clips of a run: sizes, batches on the host,
// and texts for log and messages. All const functions may be called from any thread.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/task.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/features/feature_tables.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

class SpeechArchive;
class Tokenizer;

// The size of a clip.
struct ClipSize {
  std::int64_t frames = 0, tokens = 0;
};

class ClipSource {
 public:
  ClipSource() = default;
  virtual ~ClipSource() = default;
  ClipSource(const ClipSource&) = delete;
  ClipSource& operator=(const ClipSource&) = delete;

  // Return the number of clips to train on and to evaluate on.
  [[nodiscard]] virtual std::int64_t samples() const = 0;
  [[nodiscard]] virtual std::int64_t validation_samples() const = 0;
  // See TaskData.
  [[nodiscard]] virtual nlohmann::ordered_json record() const = 0;
  [[nodiscard]] virtual DataChange compare(const nlohmann::ordered_json& record) const = 0;

  // See TaskData::batches, Task::read() and Task::largest_batch(). The tensors are those of batch.h.
  [[nodiscard]] virtual std::shared_ptr<const Batches> batches() const { return nullptr; }
  [[nodiscard]] virtual Batch read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const = 0;
  [[nodiscard]] virtual Batch largest(const Order& order, std::int64_t rows) const = 0;
  [[nodiscard]] virtual Batch largest_to_evaluate(const Order& order, std::int64_t rows) const = 0;
  // Returns evaluation clips first … first + rows - 1. The batch's draws are the clips' numbers, from which
  // clip_name() makes names.
  [[nodiscard]] virtual Batch validation(std::int64_t first, std::int64_t rows) const = 0;
  [[nodiscard]] virtual std::string clip_name(std::uint64_t number) const {
    return "clip " + std::to_string(number + 1);
  }

  // Returns the tokens as text.
  [[nodiscard]] virtual std::string text(std::span<const std::int64_t> tokens) const = 0;

  // Return the feature settings, the feature tables and the tokenizer of recordings. For generated clips the
  // pointers are null and the tables are empty.
  [[nodiscard]] virtual const FeatureSettings* features() const { return nullptr; }
  [[nodiscard]] virtual FeatureTables feature_tables() const { return {}; }
  [[nodiscard]] virtual const Tokenizer* tokenizer() const { return nullptr; }

  // Returns an upper bound of a clip's size.
  [[nodiscard]] virtual ClipSize longest() const = 0;
  // Returns the number of longest clips that fit into a batch of up to `rows` clips.
  [[nodiscard]] virtual std::int64_t most_rows(std::int64_t rows) const { return rows; }
  // Returns the texts about the clips. `speed_advice` is the setting that limits their length, and its value:
  // "generator.seconds is 4". The task adds the unit, the batch and the model.
  [[nodiscard]] virtual TaskText describe() const = 0;
  // See Task.
  virtual Status set_run_folder(const std::string& /*folder*/) { return {}; }
};

// Opens the clips that the settings name, for a model with the settings `model`. `origin` is the archive of
// the model, or null.
Result<std::unique_ptr<ClipSource>> open_clips(const Settings& settings, const SpeechModelSettings& model,
                                               const SpeechArchive* origin);

// The two kinds of clips: recordings of manifests, and those of the generator. Opening reads no recording.
// REQUIRES: the settings have data.train_manifest or data.generator.clips, respectively.
Result<std::unique_ptr<ClipSource>> open_recordings(const Settings& settings,
                                                    const SpeechModelSettings& model,
                                                    const SpeechArchive* origin);
Result<std::unique_ptr<ClipSource>> open_generated_clips(const Settings& settings,
                                                         const SpeechModelSettings& model);

}  // namespace octavo_train
