// SPDX-License-Identifier: MIT
#include "apps/octavo/recordings/survey_page.h"

#include "train/base/numbers.h"
#include "train/report/html.h"

#include <algorithm>
#include <cmath>

namespace octavo::recordings {
namespace {

using octavo_train::Cell;
using octavo_train::duration_text;
using octavo_train::element;
using octavo_train::element_of;
using octavo_train::fixed;
using octavo_train::HtmlTable;
using octavo_train::percent_text;
using octavo_train::section;

constexpr std::size_t kBars = 40;
constexpr std::size_t kMostNames = 60;  // rows of a table of names

std::string count_text(std::int64_t count) { return octavo_train::grouped(static_cast<double>(count)); }

// Draws bars of equal width from the smallest value to the largest. Each bar's title has its range and count.
std::string histogram(const std::string& title, const std::string& unit, std::vector<float> values,
                      int digits) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const double low = values.front(), high = values.back();
  const double width = std::max((high - low) / kBars, 1e-9);
  std::vector<std::int64_t> counts(kBars);
  for (const float value : values)
    ++counts[std::min(kBars - 1, static_cast<std::size_t>((static_cast<double>(value) - low) / width))];
  const auto most = static_cast<double>(*std::ranges::max_element(counts));
  std::string bars;
  for (std::size_t i = 0; i < kBars; ++i) {
    if (counts[i] == 0) continue;
    const double height = std::max(1.0, 100 * static_cast<double>(counts[i]) / most);
    const double from = low + static_cast<double>(i) * width;
    bars += "<rect x=\"" + fixed(100.0 * static_cast<double>(i) / kBars, 2) + "%\" y=\"" +
            fixed(100 - height, 2) + "%\" width=\"" + fixed(92.0 / kBars, 2) + "%\" height=\"" +
            fixed(height, 2) + "%\">" +
            element_of("title", "",
                       fixed(from, digits) + " to " + fixed(from + width, digits) + " " + unit + ": " +
                           count_text(counts[i])) +
            "</rect>";
  }
  const double median = values[values.size() / 2];
  const std::string caption =
      element_of("strong", "", title) + " " +
      element_of("small", "", "in " + unit + "; the median is " + fixed(median, digits));
  return element("figure", "sample histogram",
                 element("figcaption", "", caption) + "<svg role=\"img\" aria-label=\"" +
                     octavo_train::escaped(title) + "\">" + bars + "</svg>" +
                     element("div", "axis",
                             element_of("span", "", fixed(low, digits)) +
                                 element_of("span", "", fixed(high, digits)))) +
         "\n";
}

std::string histograms(const Survey& survey) {
  const std::string all = histogram("Duration", "seconds", survey.durations, 1) +
                          histogram("Pace", "characters a second", survey.pace, 1) +
                          histogram("Level", "dBFS, RMS", survey.levels, 0) +
                          histogram("Peak", "dBFS", survey.peaks, 0) +
                          histogram("Tokens", "tokens of a clip", survey.tokens, 0);
  return all.empty() ? all : element("div", "samples", "\n" + all) + "\n";
}

std::string card(const std::string& name, const std::string& value, const std::string& note) {
  return element("div", "card",
                 element_of("dt", "", name) + element_of("dd", "", value) + element_of("dd", "note", note)) +
         "\n";
}

std::string cards(const Survey& survey) {
  const double clips = std::max<double>(1, static_cast<double>(survey.heard.clips));
  return element(
             "dl", "cards",
             "\n" +
                 card("Clips", count_text(survey.heard.clips),
                      "of " + count_text(survey.manifest.lines) + " lines") +
                 card("Audio", duration_text(survey.heard.seconds),
                      fixed(survey.heard.seconds / clips, 2) + " s a clip") +
                 card("To mend", count_text(survey.serious()), "clips and lines") +
                 card("Decoding", fixed(survey.audio_seconds_per_second, 0) + "×", "as fast as listening")) +
         "\n";
}

std::string findings(const Survey& survey) {
  HtmlTable table;
  table.head({{"finding"}, {"clips", "", "num"}, {"what it means"}});
  std::string lists;
  for (std::size_t i = 0; i < kKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    const Findings& found = survey.of(kind);
    const KindWords& words = words_of(kind);
    table.row({{words.name, words.serious ? "to mend" : ""},
               {count_text(found.count), "", found.count > 0 && words.serious ? "num differs" : "num"},
               {words.meaning}});
    if (found.count == 0) continue;
    HtmlTable list("code");
    list.head({{"line"}, {"recording"}, {"finding"}});
    for (const Finding& each : found.first) list.row({{each.place}, {each.audio}, {each.reason}});
    const auto listed = static_cast<std::int64_t>(found.first.size());
    const std::string note = listed < found.count ? ", of which " + count_text(listed) + " are listed" : "";
    lists += "<details" + std::string(words.serious ? " open" : "") + ">" +
             element_of("summary", "", std::string(words.name) + ": " + count_text(found.count) + note) +
             list.html() + "</details>\n";
  }
  return table.html() + lists;
}

std::string amounts(const std::string& title, const std::map<std::string, Amount>& of) {
  if (of.empty()) return {};
  std::vector<std::pair<std::string, Amount>> rows(of.begin(), of.end());
  std::ranges::stable_sort(rows,
                           [](const auto& a, const auto& b) { return a.second.clips > b.second.clips; });
  HtmlTable table;
  table.head({{title}, {"clips", "", "num"}, {"audio", "", "num"}});
  for (std::size_t i = 0; i < std::min(kMostNames, rows.size()); ++i)
    table.row({{rows[i].first},
               {count_text(rows[i].second.clips), "", "num"},
               {duration_text(rows[i].second.seconds), "", "num"}});
  if (rows.size() > kMostNames)
    table.row({{"and " + count_text(static_cast<std::int64_t>(rows.size() - kMostNames)) + " others"}});
  return table.html();
}

std::string make_up(const Survey& survey) {
  return element("div", "columns",
                 amounts("sample rate", survey.rates) + amounts("format", survey.formats) +
                     amounts("channels", survey.channels) + amounts("language", survey.languages) +
                     amounts("speaker", survey.speakers)) +
         "\n";
}

// Lists the rarest characters first, because they are the most suspicious.
std::string characters(const Survey& survey) {
  std::vector<std::pair<std::string, std::int64_t>> rows(survey.characters.begin(), survey.characters.end());
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string out;
  for (const auto& [character, count] : rows) {
    const bool unknown = survey.unknown.contains(character);
    const std::string name = character == " " ? "space" : character;
    out += element("span", unknown ? "differs" : "",
                   octavo_train::escaped(name) + " " + element_of("small", "", count_text(count))) +
           " &nbsp; ";
  }
  return out.empty() ? out
                     : element("p", "", out) + "\n" +
                           element_of("p", "quiet",
                                      count_text(static_cast<std::int64_t>(rows.size())) +
                                          " different characters, the rarest first; marked: the tokenizer "
                                          "does not have them.") +
                           "\n";
}

}  // namespace

std::string survey_page(const std::string& title, const Survey& survey) {
  const bool clean = survey.serious() == 0;
  return octavo_train::page_head(title + " · Octavo", "") + "<body>\n<main>\n<header>\n" +
         element_of("p", "eyebrow", "Octavo data check") + "\n" +
         element("h1", "",
                 octavo_train::escaped(title) + " " +
                     element_of("span", clean ? "badge good" : "badge bad",
                                clean ? "Nothing to mend" : "To mend")) +
         "\n</header>\n" + cards(survey) + section("findings", "Findings", findings(survey)) +
         section("histograms", "Histograms", histograms(survey)) +
         section("contents", "Contents", make_up(survey)) +
         section("characters", "Characters", characters(survey)) +
         element_of("footer", "quiet", "Made by octavo data check. This page needs no network.") +
         "\n</main>\n</body>\n</html>\n";
}

}  // namespace octavo::recordings
