// Makes the page of a survey.
// SPDX-License-Identifier: MIT
#include "apps/octavo/recordings/survey.h"

#include "train/report/page.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace octavo::recordings {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kBars = 40;
constexpr std::size_t kMostNames = 60;  // rows of a table of names

// Adds the counts of bars of equal width from the smallest value to the largest.
void add_histogram(Json& out, const char* title, const char* unit, std::vector<float> values, int digits) {
  if (values.empty()) return;
  std::ranges::sort(values);
  const double low = values.front(), high = values.back();
  const double width = std::max((high - low) / kBars, 1e-9);
  std::vector<std::int64_t> counts(kBars);
  for (const float value : values)
    ++counts[std::min(kBars - 1, static_cast<std::size_t>((static_cast<double>(value) - low) / width))];
  out.push_back({{"title", title},
                 {"unit", unit},
                 {"digits", digits},
                 {"low", low},
                 {"high", high},
                 {"width", width},
                 {"median", values[values.size() / 2]},
                 {"counts", counts}});
}

Json findings_json(const Survey& survey) {
  Json out = Json::array();
  for (std::size_t i = 0; i < kKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    Json first = Json::array();
    for (const Finding& each : survey.of(kind).first) first.push_back({each.place, each.audio, each.reason});
    const KindWords& words = words_of(kind);
    out.push_back({{"name", words.name},
                   {"meaning", words.meaning},
                   {"serious", words.serious},
                   {"count", survey.of(kind).count},
                   {"first", std::move(first)}});
  }
  return out;
}

// Adds the names with the most clips.
void add_contents(Json& out, const char* title, const std::map<std::string, Amount>& amounts) {
  if (amounts.empty()) return;
  std::vector<std::pair<std::string, Amount>> rows(amounts.begin(), amounts.end());
  std::ranges::stable_sort(rows,
                           [](const auto& a, const auto& b) { return a.second.clips > b.second.clips; });
  const std::size_t shown = std::min(kMostNames, rows.size());
  Json first = Json::array();
  for (std::size_t i = 0; i < shown; ++i)
    first.push_back({rows[i].first, rows[i].second.clips, rows[i].second.seconds});
  out.push_back({{"title", title}, {"first", std::move(first)}, {"others", rows.size() - shown}});
}

// Lists the rarest characters first, because they are the most suspicious.
Json characters_json(const Survey& survey) {
  std::vector<std::pair<std::string, std::int64_t>> rows(survey.characters.begin(), survey.characters.end());
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) { return a.second < b.second; });
  Json out = Json::array();
  for (const auto& [character, count] : rows)
    out.push_back({character, count, survey.unknown.contains(character)});
  return out;
}

}  // namespace

std::string survey_page(const std::string& title, const Survey& survey) {
  Json data = {{"title", title},
               {"clips", survey.decoded.clips},
               {"lines", survey.manifest.lines},
               {"seconds", survey.decoded.seconds},
               {"serious", survey.serious()},
               {"speed", survey.audio_seconds_per_second},
               {"findings", findings_json(survey)},
               {"histograms", Json::array()},
               {"contents", Json::array()},
               {"characters", characters_json(survey)}};
  add_histogram(data["histograms"], "Duration", "seconds", survey.durations, 1);
  add_histogram(data["histograms"], "Pace", "characters a second", survey.pace, 1);
  add_histogram(data["histograms"], "Level", "dBFS, RMS", survey.levels, 0);
  add_histogram(data["histograms"], "Peak", "dBFS", survey.peaks, 0);
  add_histogram(data["histograms"], "Tokens", "tokens of a clip", survey.tokens, 0);
  add_contents(data["contents"], "sample rate", survey.rates);
  add_contents(data["contents"], "format", survey.formats);
  add_contents(data["contents"], "channels", survey.channels);
  add_contents(data["contents"], "language", survey.languages);
  add_contents(data["contents"], "speaker", survey.speakers);
  return octavo_train::html_page(title, data, {&octavo_train::survey_js});
}

}  // namespace octavo::recordings
