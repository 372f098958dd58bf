// A ClipSource for the synthetic clips of generator.h.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/data/clip_source.h"
#include "train/tasks/speech/data/generator.h"

#include <vector>

namespace octavo_train {

class GeneratedClips : public ClipSource {
 public:
  // REQUIRES: settings.clips has a value.
  static Result<std::unique_ptr<ClipSource>> open(const Settings& settings, const SpeechModelSettings& model);

  [[nodiscard]] std::int64_t samples() const override { return *clips_.clips; }
  [[nodiscard]] std::int64_t validation_samples() const override { return clips_.validation_clips; }
  [[nodiscard]] nlohmann::ordered_json record() const override;
  [[nodiscard]] DataChange compare(const nlohmann::ordered_json& record) const override;
  [[nodiscard]] Batch read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const override;
  [[nodiscard]] Batch largest(const Order& order, std::int64_t rows) const override;
  [[nodiscard]] Batch largest_to_evaluate(const Order& order, std::int64_t rows) const override {
    return largest(order, rows);
  }
  [[nodiscard]] Batch validation(std::int64_t first, std::int64_t rows) const override;
  [[nodiscard]] std::string text(std::span<const std::int64_t> tokens) const override;
  [[nodiscard]] ClipSize longest() const override;
  [[nodiscard]] TaskText describe() const override;

 private:
  GeneratedClips(const GeneratorSettings& clips, std::int64_t bands, std::int64_t vocabulary)
      : clips_(clips), bands_(bands), vocabulary_(vocabulary) {}
  [[nodiscard]] ClipSpec plan(std::uint64_t number, bool longest = false) const;
  [[nodiscard]] Batch draw(const std::vector<ClipSpec>& plans) const;

  GeneratorSettings clips_;
  std::int64_t bands_, vocabulary_;
};

}  // namespace octavo_train
