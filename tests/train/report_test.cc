// Tests the parts of the pages that need no browser: thinning and means of curves, escaping, the text without
// scripts, and the data of reports. tests/apps/test_report.py and test_plan_page.py test what browsers show.
// SPDX-License-Identifier: MIT
#include "train/report/report.h"

#include "train/base/numbers.h"
#include "train/base/word_diff.h"
#include "train/report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Curve wave(std::size_t count) {
  Curve out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(i);
    out.push_back({x, std::sin(x * 0.37) + x * 1e-4});
  }
  return out;
}

bool has(const Curve& curve, double x, double y) {
  return std::any_of(curve.begin(), curve.end(),
                     [&](const Point& point) { return point.x == x && point.y == y; });
}

TEST(Thinned, ShortCurvesStayAsTheyAre) {
  for (const std::size_t count : {0U, 1U, 2U, 1999U, 2000U}) EXPECT_EQ(thinned(wave(count)).size(), count);
}

TEST(Thinned, LongCurvesKeepTheirEndsPeaksAndOrder) {
  for (const std::size_t count : {2001U, 5000U, 123457U}) {
    Curve curve = wave(count);
    curve[count / 3].y = 50;
    curve[count / 3 + 1].y = -50;
    const Curve thin = thinned(curve);
    EXPECT_LE(thin.size(), kMostPoints);
    EXPECT_GT(thin.size(), kMostPoints / 2);
    EXPECT_TRUE(has(thin, curve[count / 3].x, 50));
    EXPECT_TRUE(has(thin, curve[count / 3 + 1].x, -50));
    EXPECT_EQ(thin.front().x, curve.front().x);
    EXPECT_EQ(thin.back().x, curve.back().x);
    EXPECT_TRUE(std::is_sorted(thin.begin(), thin.end(), [](auto& a, auto& b) { return a.x < b.x; }));
  }
}

TEST(Thinned, GapsStayVisible) {
  Curve curve = wave(10000);
  curve[5000].y = kNan;
  for (std::size_t i = 7000; i < 9000; ++i) curve[i].y = kNan;
  const Curve thin = thinned(curve);
  EXPECT_LE(thin.size(), kMostPoints);
  EXPECT_TRUE(std::any_of(thin.begin(), thin.end(), [](auto& p) { return p.x == 5000 && std::isnan(p.y); }));
  EXPECT_TRUE(std::none_of(thin.begin(), thin.end(),
                           [](auto& p) { return p.x >= 7000 && p.x < 9000 && !std::isnan(p.y); }));
}

TEST(Smoothed, KeepsStraightLinesAndGaps) {
  Curve curve;
  for (int i = 0; i < 20; ++i) curve.push_back({static_cast<double>(i), 3.0 - i});
  const Curve mean = smoothed(curve, 7);
  for (std::size_t i = 0; i + 3 < curve.size(); ++i) EXPECT_NEAR(mean[i].y, curve[i].y, 1e-12) << i;
  EXPECT_NEAR(mean.back().y, 3.0 - (19 + 18 + 17 + 16) / 4.0, 1e-12);
  curve[4].y = kNan;
  EXPECT_TRUE(std::isnan(smoothed(curve, 7)[4].y));
  EXPECT_TRUE(std::isfinite(smoothed(curve, 7)[5].y));
}

TEST(Escaped, LeavesNothingForABrowserToRead) {
  EXPECT_EQ(escaped(R"(<a b="c" d='e'>&)"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
  EXPECT_EQ(escaped("naïve ▁\t\n"), "naïve ▁\t\n");
  EXPECT_EQ(escaped(std::string_view("\0\x1b\x7f", 3)), "␀␛␡");
}

TEST(Escaped, ReplacesWhatIsNotUtf8) {
  for (const char* bad : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    EXPECT_THAT(escaped(bad), ::testing::StartsWith("\xef\xbf\xbd")) << bad;
    EXPECT_THAT(escaped(std::string(bad) + "<"), ::testing::EndsWith("&lt;")) << bad;
  }
}

TEST(JsonForScript, CannotEndTheScript) {
  EXPECT_EQ(json_for_script({"</script><!--&", "\xe2\x80\xa8\xe2\x80\xa9", "\xff"}),
            R"(["\u003c/script\u003e\u003c!--\u0026","\u2028\u2029","\ufffd"])");
}

TEST(PlainText, HasALinePerValueAndNoLongLists) {
  EXPECT_EQ(plain_text({{"name", "a\nb"},
                        {"end", nullptr},
                        {"rows", {{{"x", 0.5}, {"y", Json::array()}}, {"key", 7}}},
                        {"steps", std::vector<int>(41)}}),
            "\nname: a\nb\nend: null\nrows:\n  -\n    x: 0.5\n    y:\n  - key, 7\nsteps: 41 values\n");
}

TEST(HtmlPage, HostileTextsAreTextsAndNothingIsRequested) {
  const std::string hostile = "</script><script>alert(1)</script><img onerror=\"x\">&\x1b\xff{title}";
  for (const std::string& page : {html_page(hostile, {{hostile, {hostile, {{hostile, 1}}}}}, {}),
                                  plan_page({{"title", hostile}, {"lines", {hostile}}})}) {
    for (const char* part : {"<script>alert", "<img", "\x1b", "\xff", "http:", "https:", " src=", "<link",
                             "url(", "@import", "fetch("})
      EXPECT_THAT(page, Not(HasSubstr(part)));
    EXPECT_THAT(page, HasSubstr("default-src 'none'"));
    EXPECT_THAT(page, HasSubstr("script-src 'sha256-"));
    EXPECT_THAT(
        page,
        HasSubstr(
            "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img onerror=&quot;x&quot;&gt;&amp;␛"));
  }
}

TEST(PlanPage, HasEveryNumberWithoutScriptWhateverTheDataIs) {
  const std::string page =
      plan_page(Json::parse(R"({"memory_rows": [["weights", 202000000]], "lines": ["  weights   202 MB"]})"));
  const std::size_t begin = page.find("<noscript>");
  const std::string text = page.substr(begin, page.find("</noscript>") - begin);
  for (const char* part : {"JavaScript", "- weights, 202000000", "  weights   202 MB"})
    EXPECT_THAT(text, HasSubstr(part));
  for (const Json& plan : {Json(), Json::object(), Json({1}), Json({{"title", 3}, {"memory_rows", "x"}})})
    EXPECT_THAT(plan_page(plan), ::testing::EndsWith("</html>\n")) << plan;
}

TEST(Numbers, AreWrittenForPeople) {
  EXPECT_EQ(grouped(25300992.0), "25,300,992");
  EXPECT_EQ(grouped(-1234.0), "-1,234");
  EXPECT_EQ(grouped(999.0), "999");
  EXPECT_EQ(short_count(25300992.0), "25.3M");
  EXPECT_EQ(bytes_text(51.4e6), "51.4 MB");
  EXPECT_EQ(bytes_text(999.0), "999 B");
  EXPECT_EQ(bytes_text(999999.0), "1.00 MB");
  EXPECT_EQ(duration_text(5.84), "5.8 s");
  EXPECT_EQ(duration_text(59.6), "1 min 00 s");
  EXPECT_EQ(duration_text(7500.0), "2 h 05 min");
  EXPECT_EQ(duration_text(3.0 * 86400 + 3600), "3 d 01 h");
  EXPECT_EQ(percent_text(0.254), "25.4%");
  for (const auto& unknown : {std::optional<double>(), std::optional(kNan), std::optional(HUGE_VAL)}) {
    for (const std::string& text :
         {fixed(unknown, 2), significant(unknown, 2), grouped(unknown), short_count(unknown),
          bytes_text(unknown), duration_text(unknown), percent_text(unknown)}) {
      EXPECT_EQ(text, kUnknown);
    }
  }
  EXPECT_EQ(fixed(1e308, 0).size(), 309U);
}

TEST(Marked, WordsThatDifferHaveSignsAroundThem) {
  const auto pair = [](const char* reference, const char* hypothesis) {
    const WordDiff out = diff_for_terminal(reference, hypothesis);
    return out.reference + " / " + out.hypothesis;
  };
  EXPECT_EQ(pair("the cat sat", "the cat sat"), "the cat sat / the cat sat");
  EXPECT_EQ(pair("the cat sat on", "the hat sat on it"), "the [-cat-] sat on / the {+hat+} sat on {+it+}");
  EXPECT_EQ(pair("a b", ""), "[-a-] [-b-] / ");
  EXPECT_EQ(pair("", "\x1b[31m\ttwo"), " / {+\\x1b[31m+} {+two+}");
}

class RunFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string pattern = (fs::temp_directory_path() / "octavo_report_XXXXXX").string();
    std::vector<char> name(pattern.begin(), pattern.end());
    name.push_back('\0');
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name.data();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  // Returns the run in the data of its report.
  Json read(std::string_view metrics, std::string_view config = "model: {name: bdh}\n") const {
    write("metrics.jsonl", metrics);
    write("config.yaml", config);
    const std::vector<std::string> folders = {folder_.string()};
    const auto data = report_data(folders);
    EXPECT_TRUE(data.ok()) << data.status().message();
    return data->at("runs").at(0);
  }
  std::string error() const {
    const std::vector<std::string> folders = {folder_.string()};
    return make_report(folders).status().message();
  }

  fs::path folder_;
};

TEST_F(RunFolder, ErrorsNameTheFolderAndWhatItLacks) {
  EXPECT_THAT(error(), HasSubstr(folder_.string() + ": not a run: it has no metrics.jsonl"));
  EXPECT_THAT(error(), HasSubstr("expected a run's folder"));
  write("metrics.jsonl", "");
  EXPECT_THAT(error(), HasSubstr("it has no config.yaml"));
  write("config.yaml", "a: [\n");
  EXPECT_THAT(error(), HasSubstr("config.yaml:"));
  write("config.yaml", "");
  EXPECT_EQ(error(), "");
  fs::create_directory(folder_ / "checkpoint-5");
  const std::vector<std::string> inner = {(folder_ / "checkpoint-5").string()};
  EXPECT_THAT(make_report(inner).status().message(), HasSubstr(folder_.string() + " is one"));
  EXPECT_FALSE(make_report({}).ok());
}

TEST_F(RunFolder, SkipsAndCountsLinesThatAreNoRecords) {
  const Json run = read(R"({"kind":"train","step":1,"loss":2.5}
not json

[1]
{"kind":"train"}
{"kind":3,"step":1}
{"kind":"later","step":9}
{"kind":"train","step":2,"lo)");
  EXPECT_EQ(run["bad_lines"], 5);
  EXPECT_EQ(run["records"], 2);
  EXPECT_EQ(run["curves"]["train"], Json::parse(R"({"x": [1], "y": [2.5]})"));
}

TEST_F(RunFolder, MembersOfOtherTypesCountAsMissing) {
  const Json run = read(R"({"kind":"start","step":0,"model":[],"params":"many","steps":null}
{"kind":"train","step":1,"loss":"x","lr":null,"memory":7}
{"kind":"memory","step":1,"owners":[1]}
{"kind":"sample","step":1,"text":1}
{"kind":"eval","step":1,"better":[],"examples":{}}
)");
  EXPECT_TRUE(run["curves"]["train"]["x"].empty());
  EXPECT_EQ(run["curves"]["lr"], Json::parse(R"({"x": [1], "y": [null]})"));
  EXPECT_TRUE(run["host_peak"].is_null());
  EXPECT_TRUE(run["examples"].is_null());
  EXPECT_TRUE(run["metrics"].empty());
}

TEST_F(RunFolder, SessionsAddUpAndTheLastDecidesTheEnd) {
  const Json run = read(R"({"time":100,"kind":"start","step":0}
{"time":110,"kind":"train","step":5,"skipped":1}
{"time":111,"kind":"end","step":5,"reason":"interrupted"}
{"time":900,"kind":"start","step":5}
{"time":905,"kind":"train","step":9,"skipped":2}
)");
  EXPECT_EQ(run["sessions"], 2);
  EXPECT_EQ(run["seconds"], 16);
  EXPECT_EQ(run["skipped"], 2);
  EXPECT_EQ(run["last_step"], 9);
  EXPECT_TRUE(run["end"].is_null());
}

TEST_F(RunFolder, ATaskNamesItsUnitAndItsMetrics) {
  const Json run = read(R"({"kind":"start","step":0,"unit":"images","batch_images":8,"data":"many images"}
{"kind":"train","step":2,"loss":1,"images":16,"images_per_second":50}
{"kind":"eval","step":2,"loss":1.5,"accuracy":0.75,"~/err":3,"images":64,"seconds":1,"better":{"loss":"lower","accuracy":"higher","~/err":"lower"}}
{"kind":"eval","step":4,"loss":1.2,"accuracy":0.5,"~/err":null,"images":64,"seconds":1,"better":{"loss":"lower","accuracy":"higher","~/err":"lower"}}
)");
  EXPECT_EQ(run["unit"], "images");
  EXPECT_EQ(run["units"], 16);
  EXPECT_EQ(run["metrics"], Json::parse(R"([
      {"name": "accuracy", "higher_is_better": true, "curve": {"x": [2, 4], "y": [0.75, 0.5]}},
      {"name": "~/err", "higher_is_better": false, "curve": {"x": [2, 4], "y": [3.0, null]}}])"));
  EXPECT_EQ(run["curves"]["eval"], Json::parse(R"({"x": [2, 4], "y": [1.5, 1.2]})"));
}

TEST_F(RunFolder, ExamplesOfTheLastEvaluationHaveTheirWordsAligned) {
  const Json run = read(R"({"kind":"eval","step":2,"wer":1,"examples":[{"name":"old","reference":"x"}]}
{"kind":"eval","step":4,"wer":1,"examples":[{"name":"<a>","reference":"the <i>cat</i> sat","hypothesis":"the hat & sat"},{"reference":7},3]}
{"kind":"eval","step":6,"wer":1,"examples":[]}
)");
  EXPECT_EQ(run["examples"]["step"], 4);
  const Json& rows = run["examples"]["rows"];
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(
      rows[0],
      Json::parse(R"({"name": "<a>", "reference": [["the", false], ["<i>cat</i>", true], ["sat", false]],
      "hypothesis": [["the", false], ["hat", true], ["&", true], ["sat", false]], "errors": 2, "words": 3})"));
  EXPECT_EQ(rows[2],
            Json::parse(R"({"name": null, "reference": [], "hypothesis": [], "errors": 0, "words": 0})"));
  for (const Json& each : run["eval"]["last"])
    EXPECT_FALSE(each.contains("examples")) << "they are there twice";
}

TEST_F(RunFolder, OnlyTheLastOfManyRecordsAreThere) {
  std::string metrics;
  for (int i = 0; i < 300; ++i) {
    for (const char* kind : {"sample", "warning"})
      metrics += "{\"kind\":\"" + std::string(kind) + "\",\"step\":" + std::to_string(i) + "}\n";
  }
  const Json run = read(metrics);
  for (const auto& [kind, most] : {std::pair("sample", 8), std::pair("warning", 200)}) {
    EXPECT_EQ(run[kind]["all"], 300);
    ASSERT_EQ(run[kind]["last"].size(), most);
    EXPECT_EQ(run[kind]["last"][0]["step"], 300 - most);
  }
}

TEST_F(RunFolder, ALogFromBeforeTasksCountsTokens) {
  const Json run = read(R"({"kind":"start","step":0,"batch_tokens":8,"unigram_entropy":3}
{"kind":"train","step":2,"loss":1,"tokens":16,"tokens_per_second":50}
{"kind":"eval","step":2,"loss":1.5,"tokens":64,"seconds":1}
)");
  EXPECT_EQ(run["unit"], "tokens");
  EXPECT_EQ(run["units"], 16);
  EXPECT_EQ(run["curves"]["throughput"], Json::parse(R"({"x": [2], "y": [50.0]})"));
  EXPECT_EQ(run["curves"]["eval"], Json::parse(R"({"x": [2], "y": [1.5]})"));
  EXPECT_TRUE(run["metrics"].empty());
}

TEST_F(RunFolder, SettingsAreFlatAndInOrder) {
  const Json run = read("", "data: {stages: [1, -1], validation: null}\noutput_dir: runs/a\n");
  EXPECT_EQ(
      run["settings"],
      Json::parse(R"([["data.stages", "[1, -1]"], ["data.validation", "null"], ["output_dir", "runs/a"]])"));
}

}  // namespace
}  // namespace octavo_train
