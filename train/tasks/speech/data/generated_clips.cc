// SPDX-License-Identifier: MIT
#include "train/tasks/speech/data/generated_clips.h"

#include "train/base/numbers.h"
#include "train/tasks/speech/data/batch.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <numeric>
#include <utility>

namespace octavo_train {
namespace {

constexpr const char* kClips = "clips";  // key of record()
// The number of the first evaluation clip. Training clips have smaller numbers.
constexpr std::uint64_t kValidationClips = std::uint64_t{1} << 60;

}  // namespace

Result<std::unique_ptr<ClipSource>> GeneratedClips::open(const Settings& settings,
                                                         const SpeechModelSettings& model) {
  const auto& clips = settings.own.get<GeneratorSettings>();
  const std::int64_t spoken = clips.vocabulary.value_or(0);
  if (spoken > model.vocabulary) {
    return Status::invalid("data.generator.vocabulary: got " + std::to_string(spoken) + ", but " +
                           settings.model.name + " has " + std::to_string(model.vocabulary) +
                           " tokens: use as many or fewer");
  }
  return std::unique_ptr<ClipSource>(new GeneratedClips(clips, model.mel_bands, model.vocabulary));
}

nlohmann::ordered_json GeneratedClips::record() const { return {{kClips, samples()}}; }

DataChange GeneratedClips::compare(const nlohmann::ordered_json& record) const {
  DataChange out;
  const std::int64_t now = samples(), then = record.value(kClips, now);
  if (then != now)
    out.noted.push_back("data.generator.clips: there were " + std::to_string(then) + ", and are " +
                        std::to_string(now));
  return out;
}

ClipSpec GeneratedClips::plan(std::uint64_t number, bool longest) const {
  return plan_clip(clips_, clips_.vocabulary.value_or(vocabulary_), number, longest);
}

Batch GeneratedClips::draw(const std::vector<ClipSpec>& plans) const {
  Batch out = make_batch(clips_, plans, bands_);
  check_batch(out, vocabulary_);
  return out;
}

Batch GeneratedClips::read(const Order& order, std::uint64_t first_draw, std::int64_t rows) const {
  std::vector<std::uint64_t> draws(static_cast<std::size_t>(rows));
  std::iota(draws.begin(), draws.end(), first_draw);
  std::vector<ClipSpec> plans;
  for (const std::uint64_t each : draws)
    plans.push_back(plan(static_cast<std::uint64_t>(order.sample(each))));
  Batch out = draw(plans);
  out.draws = std::move(draws);
  return out;
}

Batch GeneratedClips::largest(const Order& order, std::int64_t rows) const {
  std::vector<ClipSpec> plans;
  for (std::int64_t i = 0; i < rows; ++i) plans.push_back(plan(static_cast<std::uint64_t>(i), true));
  Batch out = draw(plans);
  for (std::int64_t i = 0; i < rows; ++i) out.draws.push_back(order.start() + static_cast<std::uint64_t>(i));
  return out;
}

Batch GeneratedClips::validation(std::int64_t first, std::int64_t rows) const {
  std::vector<ClipSpec> plans;
  for (std::int64_t i = first; i < first + rows; ++i)
    plans.push_back(plan(kValidationClips + static_cast<std::uint64_t>(i)));
  Batch out = draw(plans);
  out.draws.resize(plans.size());
  std::iota(out.draws.begin(), out.draws.end(), static_cast<std::uint64_t>(first));
  return out;
}

std::string GeneratedClips::text(std::span<const std::int64_t> tokens) const { return transcript(tokens); }

ClipSize GeneratedClips::longest() const {
  const ClipSpec longest = plan(0, true);
  return {longest.frames, static_cast<std::int64_t>(longest.tokens.size())};
}

TaskText GeneratedClips::describe() const {
  const std::string seconds = significant(clips_.seconds, 4);
  TaskText out;
  out.introduction = {
      fmt::format("{} clips of up to {} s to train on and {} to evaluate on, which a generator makes",
                  samples(), seconds, validation_samples())};
  out.start["data"] = fmt::format("{} generated clips of up to {} s", samples(), seconds);
  if (clips_.seconds > 1)
    out.memory_advice = {"data.generator.seconds=" + significant(clips_.seconds / 2, 4) + " (shorter clips)"};
  out.speed_advice = "generator.seconds is " + seconds;
  out.length_key = {"data.generator.seconds", static_cast<std::int64_t>(clips_.seconds), 1};
  return out;
}

}  // namespace octavo_train
