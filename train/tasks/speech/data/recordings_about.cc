// Describes the recordings of a run: their fingerprint, their largest sizes and the lines to print about
// them. See recordings.h.
// SPDX-License-Identifier: MIT
#include "train/base/numbers.h"
#include "train/io/checksums.h"
#include "train/nn/frames.h"
#include "train/tasks/speech/data/recordings.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <span>

namespace octavo_train {
namespace {

constexpr std::int64_t kLooked = 256;  // clips whose tokens are counted, the longest ones

std::string count_text(std::int64_t number) { return grouped(static_cast<double>(number)); }

}  // namespace

nlohmann::ordered_json Recordings::record() const {
  const auto of = [](const Manifest& manifest) -> nlohmann::ordered_json {
    return {{"clips", manifest.size()}, {"fingerprint", manifest.fingerprint()}};
  };
  return {{"train", of(train_)},
          {"validation", of(validation_)},
          {"tokenizer", hash_of(std::as_bytes(std::span(tokenizer_.bytes())))}};
}

Task::DataChange Recordings::compare(const nlohmann::ordered_json& record) const {
  Task::DataChange out;
  const nlohmann::ordered_json now = this->record();
  const auto look = [&](const char* name, const char* key) {
    const auto &before = record.at(name), &after = now.at(name);
    if (before.at("fingerprint") == after.at("fingerprint")) return;
    const auto clips = [](const auto& of) { return count_text(of.at("clips").template get<std::int64_t>()); };
    out.changed.push_back(std::string(key) + ": it had " + clips(before) + " clips, and has " +
                          (clips(before) == clips(after) ? "others" : clips(after)));
  };
  look("train", "data.train_manifest");
  look("validation", "data.val_manifest");
  if (record.at("tokenizer") != now.at("tokenizer"))
    out.changed.push_back("model.tokenizer: the tokenizer was another one");
  return out;
}

// Returns the longest duration, and the most tokens among the kLooked longest recordings. Counting those is
// enough, because the longest recordings have the longest texts.
Recordings::Longest Recordings::longest_of(const Manifest& manifest) const {
  std::vector<std::int64_t> indexes(static_cast<std::size_t>(manifest.size()));
  std::iota(indexes.begin(), indexes.end(), 0);
  const auto end = indexes.begin() + std::min(kLooked, manifest.size());
  std::partial_sort(indexes.begin(), end, indexes.end(),
                    [&](auto a, auto b) { return manifest.duration(a) > manifest.duration(b); });
  Longest out{manifest.duration(indexes.front())};
  for (auto each = indexes.begin(); each != end; ++each) {
    const std::vector<std::int64_t> tokens = tokenizer_.encode(manifest.entry(*each).text);
    out.tokens = std::max(out.tokens, static_cast<std::int64_t>(tokens.size()));
  }
  return out;
}

ClipSize Recordings::size_of(const Longest& clip) const {
  return {
      features_.frames(static_cast<std::int64_t>(clip.seconds * static_cast<double>(features_.sample_rate))),
      clip.tokens};
}

ClipSize Recordings::find_longest() const {
  Longest out = longest_of(train_);
  out.seconds = reader_->cost(out.seconds, "").seconds;
  if (settings_.batch_seconds) out.seconds = std::min(out.seconds, *settings_.batch_seconds);
  return size_of(out);
}

double Recordings::longest_seconds() const {
  return static_cast<double>(longest_.frames * features_.hop()) / static_cast<double>(features_.sample_rate);
}

std::int64_t Recordings::most_rows(std::int64_t rows) const {
  if (settings_.batch_seconds)
    rows = std::min(rows, static_cast<std::int64_t>(*settings_.batch_seconds / longest_seconds()));
  if (settings_.batch_cells)
    rows = std::min(rows, *settings_.batch_cells / (subsampled(longest_.frames) * (longest_.tokens + 1)));
  return std::max<std::int64_t>(rows, 1);
}

std::string Recordings::name() const {
  return count_text(samples()) + " recordings (" + significant(train_.report().seconds / 3600, 3) + " hours)";
}

std::vector<std::string> Recordings::introduction() const {
  std::vector<std::string> out = {"to train on: " + train_.report().text(train_.options()),
                                  "to evaluate on: " + validation_.report().text(validation_.options())};
  if (noise_) out.push_back("noise: " + noise_->report().text(noise_->options()));
  out.push_back("tokenizer: " + tokenizer_.name() + ", " + count_text(tokenizer_.size()) + " tokens");
  return out;
}

std::string Recordings::length_text() const {
  return settings_.batch_seconds ? "batch_seconds is " + significant(*settings_.batch_seconds, 6)
                                 : "max_duration is " + significant(settings_.max_duration, 4);
}

Task::SizeKey Recordings::length_key() const {
  return {"data.max_duration", static_cast<std::int64_t>(settings_.max_duration), 1};
}

std::string Recordings::shorter() const {
  if (settings_.max_duration <= 1) return "";
  const std::string half = significant(settings_.max_duration / 2, 4);
  return "data.max_duration=" + half + " (drops data: clips longer than " + half + " s are skipped)";
}

std::vector<std::string> Recordings::smaller_limits(std::int64_t parts) const {
  if (most_rows(kNoLimit) < parts) return {};
  std::vector<std::string> out;
  if (settings_.batch_seconds)
    out.push_back("data.batch_seconds=" +
                  significant(*settings_.batch_seconds / static_cast<double>(parts), 6));
  if (settings_.batch_cells)
    out.push_back("data.batch_cells=" + std::to_string(*settings_.batch_cells / parts));
  return out;
}

std::vector<std::string> Recordings::ending() const {
  std::vector<std::string> out;
  if (skipped_.count() > 0) {
    out.push_back(count_text(skipped_.count()) + " clips were left out" +
                  (skipped_.path().empty() ? "" : "; " + skipped_.path() + " lists them"));
  }
  if (cache_) out.push_back(cache_->text());
  return out;
}

}  // namespace octavo_train
