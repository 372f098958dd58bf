// Where the clips of a run come from: what there is, batches of it on the host, and what to say about it. The
// task knows nothing else of them. Any thread may call what is const.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/task.h"
#include "train/tasks/speech/feature_tables.h"
#include "train/tasks/speech/model_settings.h"

#include <octavo/status.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

class SpeechArchive;
class Tokenizer;

// What a clip costs.
struct ClipSize {
  std::int64_t frames = 0, tokens = 0;
};

class ClipSource {
 public:
  ClipSource() = default;
  virtual ~ClipSource() = default;
  ClipSource(const ClipSource&) = delete;
  ClipSource& operator=(const ClipSource&) = delete;

  // Clips to train on, and clips to evaluate on.
  [[nodiscard]] virtual std::int64_t samples() const = 0;
  [[nodiscard]] virtual std::int64_t validation_samples() const = 0;
  // See Task::data_record() and Task::open().
  [[nodiscard]] virtual nlohmann::ordered_json record() const = 0;
  [[nodiscard]] virtual Task::DataChange compare(const nlohmann::ordered_json& record) const = 0;

  // See Task::batches(), Task::read() and Task::largest…(). The tensors are those of batch.h.
  [[nodiscard]] virtual const Batches* batches() const { return nullptr; }
  [[nodiscard]] virtual Batch read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const = 0;
  [[nodiscard]] virtual Batch largest(const Order& order, std::int64_t rows) const = 0;
  [[nodiscard]] virtual Batch largest_to_evaluate(const Order& order, std::int64_t rows) const = 0;
  // Clips first … first + rows - 1 of those to evaluate on. The batch's draws are their numbers, and a number
  // has a name.
  [[nodiscard]] virtual Batch validation(std::int64_t first, std::int64_t rows) const = 0;
  [[nodiscard]] virtual std::string clip_name(std::uint64_t number) const {
    return "clip " + std::to_string(number + 1);
  }

  // What tokens say, in words.
  [[nodiscard]] virtual std::string text(std::span<const std::int64_t> tokens) const = 0;

  // What features are made of, and what text is made of: of recordings alone, null elsewhere.
  [[nodiscard]] virtual const FeatureSettings* features() const { return nullptr; }
  [[nodiscard]] virtual FeatureTables feature_tables() const { return {}; }
  [[nodiscard]] virtual const Tokenizer* tokenizer() const { return nullptr; }

  // At most; no clip is larger.
  [[nodiscard]] virtual ClipSize longest() const = 0;
  // How many of the longest are in a batch of up to so many clips.
  [[nodiscard]] virtual std::int64_t most_rows(std::int64_t rows) const { return rows; }
  // "32 generated clips of up to 4 s", and the lines of the introduction.
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::vector<std::string> introduction() const = 0;
  // The setting that makes clips shorter, as the text task has it: "generator.seconds is 4"; and what to try,
  // `key=value (what it changes)`, empty where clips cannot be shorter.
  [[nodiscard]] virtual std::string length_text() const = 0;
  [[nodiscard]] virtual std::string shorter() const = 0;
  [[nodiscard]] virtual Task::SizeKey length_key() const = 0;  // in seconds
  [[nodiscard]] virtual std::vector<std::string> smaller_limits(std::int64_t /*parts*/) const { return {}; }

  // See Task.
  virtual Status begin(const std::string& /*folder*/) { return {}; }
  [[nodiscard]] virtual std::vector<std::string> ending() const { return {}; }
};

// The clips that the settings name, for a model of these sizes. `origin`: the files of the model, or null.
Result<std::unique_ptr<ClipSource>> open_clips(const Settings& settings, const SpeechModelSettings& model,
                                               const SpeechArchive* origin);

}  // namespace octavo::train
