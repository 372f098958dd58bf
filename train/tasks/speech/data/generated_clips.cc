// The synthetic clips of generator.h as a ClipSource.
// SPDX-License-Identifier: MIT
#include "train/base/numbers.h"
#include "train/tasks/speech/data/batch.h"
#include "train/tasks/speech/data/clip_source.h"
#include "train/tasks/speech/data/generator.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <numeric>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

constexpr const char* kClips = "clips";  // key of record()
// The number of the first evaluation clip. Training clips have smaller numbers.
constexpr std::uint64_t kValidationClips = std::uint64_t{1} << 60;

class GeneratedClips : public ClipSource {
 public:
  GeneratedClips(const GeneratorSettings& clips, std::int64_t bands, std::int64_t vocabulary)
      : clips_(clips), bands_(bands), vocabulary_(vocabulary) {}

  [[nodiscard]] std::int64_t samples() const override { return *clips_.clips; }
  [[nodiscard]] std::int64_t validation_samples() const override { return clips_.validation_clips; }
  [[nodiscard]] nlohmann::ordered_json record() const override { return {{kClips, samples()}}; }

  [[nodiscard]] DataChange compare(const nlohmann::ordered_json& record) const override {
    DataChange out;
    const std::int64_t now = samples(), then = record.value(kClips, now);
    if (then != now)
      out.noted.push_back(fmt::format("data.generator.clips: there were {}, and are {}", then, now));
    return out;
  }

  [[nodiscard]] Batch read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const override {
    std::vector<std::uint64_t> draws(static_cast<std::size_t>(rows));
    std::iota(draws.begin(), draws.end(), first_draw);
    std::vector<ClipSpec> plans;
    for (const std::uint64_t each : draws)
      plans.push_back(plan(static_cast<std::uint64_t>(order.sample(each))));
    Batch out = draw(plans);
    out.draws = std::move(draws);
    return out;
  }

  [[nodiscard]] Batch largest(const Order& order, std::int64_t rows) const override {
    std::vector<ClipSpec> plans;
    for (std::int64_t i = 0; i < rows; ++i) plans.push_back(plan(static_cast<std::uint64_t>(i), true));
    Batch out = draw(plans);
    for (std::int64_t i = 0; i < rows; ++i)
      out.draws.push_back(order.start() + static_cast<std::uint64_t>(i));
    return out;
  }

  [[nodiscard]] Batch largest_to_evaluate(const Order& order, std::int64_t rows) const override {
    return largest(order, rows);
  }

  [[nodiscard]] Batch validation(std::int64_t first, std::int64_t rows) const override {
    std::vector<ClipSpec> plans;
    for (std::int64_t i = first; i < first + rows; ++i)
      plans.push_back(plan(kValidationClips + static_cast<std::uint64_t>(i)));
    Batch out = draw(plans);
    out.draws.resize(plans.size());
    std::iota(out.draws.begin(), out.draws.end(), static_cast<std::uint64_t>(first));
    return out;
  }

  [[nodiscard]] std::string text(std::span<const std::int64_t> tokens) const override {
    return transcript(tokens);
  }

  [[nodiscard]] ClipSize longest() const override {
    const ClipSpec longest = plan(0, true);
    return {longest.frames, static_cast<std::int64_t>(longest.tokens.size())};
  }

  [[nodiscard]] TaskText describe() const override {
    const std::string seconds = significant(clips_.seconds, 4);
    TaskText out;
    out.introduction = {
        fmt::format("{} clips of up to {} s to train on and {} to evaluate on, which a generator makes",
                    samples(), seconds, validation_samples())};
    out.start["data"] = fmt::format("{} generated clips of up to {} s", samples(), seconds);
    if (clips_.seconds > 1)
      out.memory_advice = {"data.generator.seconds=" + significant(clips_.seconds / 2, 4) +
                           " (shorter clips)"};
    out.speed_advice = "generator.seconds is " + seconds;
    out.length_key = {"data.generator.seconds", static_cast<std::int64_t>(clips_.seconds), 1};
    return out;
  }

 private:
  [[nodiscard]] ClipSpec plan(std::uint64_t number, bool longest = false) const {
    return plan_clip(clips_, clips_.vocabulary.value_or(vocabulary_), number, longest);
  }

  [[nodiscard]] Batch draw(const std::vector<ClipSpec>& plans) const {
    Batch out = make_batch(clips_, plans, bands_);
    check_batch(out, vocabulary_);
    return out;
  }

  GeneratorSettings clips_;
  std::int64_t bands_, vocabulary_;
};

}  // namespace

Result<std::unique_ptr<ClipSource>> open_generated_clips(const Settings& settings,
                                                         const SpeechModelSettings& model) {
  const auto& clips = settings.task_settings.get<GeneratorSettings>();
  const std::int64_t spoken = clips.vocabulary.value_or(0);
  if (spoken > model.vocabulary) {
    return Status::invalid(
        fmt::format("data.generator.vocabulary: got {}, but {} has {} tokens: use as many or fewer", spoken,
                    settings.model.name, model.vocabulary));
  }
  return std::unique_ptr<ClipSource>(
      std::make_unique<GeneratedClips>(clips, model.mel_bands, model.vocabulary));
}

}  // namespace octavo_train
