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

  Task::DataChange compare(const nlohmann::ordered_json& record) const override {
    Task::DataChange out;
    const std::int64_t now = samples(), then = record.value(kClips, now);
    if (then != now)
      out.noted.push_back("data.generator.clips: there were " + std::to_string(then) + ", and are " +
                          std::to_string(now));
    return out;
  }

  Batch read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const override {
    std::vector<std::uint64_t> draws(static_cast<std::size_t>(rows));
    std::iota(draws.begin(), draws.end(), first_draw);
    std::vector<ClipSpec> plans;
    for (const std::uint64_t each : draws)
      plans.push_back(plan(static_cast<std::uint64_t>(order.sample(each))));
    Batch out = draw(plans);
    out.draws = std::move(draws);
    return out;
  }

  Batch largest(const Order& order, std::int64_t rows) const override {
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

  Batch validation(std::int64_t first, std::int64_t rows) const override {
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

  ClipSize longest() const override {
    const ClipSpec longest = plan(0, true);
    return {longest.frames, static_cast<std::int64_t>(longest.tokens.size())};
  }

  std::string name() const override {
    return std::to_string(samples()) + " generated clips of up to " + significant(clips_.seconds, 4) + " s";
  }

  std::vector<std::string> introduction() const override {
    return {std::to_string(samples()) + " clips of up to " + significant(clips_.seconds, 4) +
            " s to train on and " + std::to_string(validation_samples()) +
            " to evaluate on, which a generator makes"};
  }

  std::string length_text() const override {
    return "generator.seconds is " + significant(clips_.seconds, 4);
  }

  Task::SizeKey length_key() const override {
    return {"data.generator.seconds", static_cast<std::int64_t>(clips_.seconds), 1};
  }

  std::string shorter() const override {
    if (clips_.seconds <= 1) return "";
    return "data.generator.seconds=" + significant(clips_.seconds / 2, 4) + " (shorter clips)";
  }

 private:
  ClipSpec plan(std::uint64_t number, bool longest = false) const {
    return plan_clip(clips_, clips_.vocabulary.value_or(vocabulary_), number, longest);
  }

  Batch draw(const std::vector<ClipSpec>& plans) const {
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
  const auto& clips = settings.own.get<GeneratorSettings>();
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
