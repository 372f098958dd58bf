// Tests the parts of the report that need no browser: thinning and means of curves, escaping, numbers as
// text, and reading a run's folder. tests/apps/test_report.py tests complete pages.
// SPDX-License-Identifier: MIT
#include "train/report/report.h"

#include "train/report/curves.h"
#include "train/report/facts.h"
#include "train/report/html.h"
#include "train/report/run_data.h"
#include "train/base/numbers.h"
#include "train/base/word_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

namespace octavo_train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
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
  EXPECT_EQ(json_for_script(R"(["</script><!--&"])"), R"(["\u003c/script\u003e\u003c!--\u0026"])");
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
  EXPECT_EQ(date_text(1794747600.0), "2026-11-15 13:00 UTC");
  for (const auto& unknown : {std::optional<double>(), std::optional(kNan), std::optional(HUGE_VAL)}) {
    for (const std::string& text :
         {fixed(unknown, 2), significant(unknown, 2), grouped(unknown), short_count(unknown),
          bytes_text(unknown), duration_text(unknown), percent_text(unknown), date_text(unknown)}) {
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
  RunData read(std::string_view metrics, std::string_view config = "model: {name: bdh}\n") const {
    write("metrics.jsonl", metrics);
    write("config.yaml", config);
    auto run = read_run(folder_.string());
    EXPECT_TRUE(run.ok()) << run.status().message();
    return std::move(run).value();
  }
  // Returns the page without its style and scripts.
  std::string shown() const {
    const std::vector<std::string> folders = {folder_.string()};
    const std::string page = make_report(folders).value();
    const std::size_t begin = page.find("<body>");
    return page.substr(begin, page.find("<script") - begin);
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
  const RunData run = read(
      "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\nnot json\n\n[1]\n{\"kind\":\"train\"}\n"
      "{\"kind\":3,\"step\":1}\n{\"kind\":\"later\",\"step\":9}\n{\"kind\":\"train\",\"step\":2,\"lo");
  EXPECT_EQ(run.bad_lines, 5);
  EXPECT_EQ(run.records, 2);
  EXPECT_EQ(run.train_loss.size(), 1U);
}

TEST_F(RunFolder, MembersOfOtherTypesCountAsMissing) {
  const RunData run = read(
      "{\"kind\":\"start\",\"step\":0,\"model\":[],\"params\":\"many\",\"steps\":null}\n"
      "{\"kind\":\"train\",\"step\":1,\"loss\":\"x\",\"lr\":null,\"memory\":7}\n"
      "{\"kind\":\"memory\",\"step\":1,\"owners\":[1]}\n{\"kind\":\"sample\",\"step\":1,\"text\":1}\n");
  EXPECT_TRUE(run.train_loss.empty());
  ASSERT_EQ(run.lr.size(), 1U);
  EXPECT_TRUE(std::isnan(run.lr[0].y));
  const std::vector<std::string> folders = {folder_.string()};
  const auto page = make_report(folders);
  ASSERT_TRUE(page.ok());
  EXPECT_THAT(*page, Not(HasSubstr("id=\"memory\"")));
}

TEST_F(RunFolder, SessionsAddUpAndTheLastDecidesTheEnd) {
  const RunData run = read(
      "{\"time\":100,\"kind\":\"start\",\"step\":0}\n{\"time\":110,\"kind\":\"train\",\"step\":5,\"skipped\":"
      "1}\n"
      "{\"time\":111,\"kind\":\"end\",\"step\":5,\"reason\":\"interrupted\"}\n"
      "{\"time\":900,\"kind\":\"start\",\"step\":5}\n{\"time\":905,\"kind\":\"train\",\"step\":9,\"skipped\":"
      "2}\n");
  EXPECT_EQ(run.sessions, 2);
  EXPECT_EQ(run.seconds, 16);
  EXPECT_EQ(run.skipped_steps, 2);
  EXPECT_EQ(run.last_step, 9);
  EXPECT_TRUE(run.end.is_null());
}

TEST_F(RunFolder, ATaskNamesItsUnitAndItsMetrics) {
  const RunData run = read(
      "{\"kind\":\"start\",\"step\":0,\"unit\":\"images\",\"batch_images\":8,\"data\":\"many images\"}\n"
      "{\"kind\":\"train\",\"step\":2,\"loss\":1,\"images\":16,\"images_per_second\":50}\n"
      "{\"kind\":\"eval\",\"step\":2,\"loss\":1.5,\"accuracy\":0.75,\"~/err\":3,\"images\":64,\"seconds\":1,"
      "\"better\":{\"loss\":\"lower\",\"accuracy\":\"higher\",\"~/err\":\"lower\"}}\n"
      "{\"kind\":\"eval\",\"step\":4,\"loss\":1.2,\"accuracy\":0.5,\"~/"
      "err\":null,\"images\":64,\"seconds\":1,"
      "\"better\":{\"loss\":\"lower\",\"accuracy\":\"higher\",\"~/err\":\"lower\"}}\n");
  EXPECT_EQ(run.unit, "images");
  EXPECT_EQ(run.units, 16);
  ASSERT_EQ(run.metrics.size(), 2U);
  EXPECT_EQ(run.metrics[0].name, "accuracy");
  EXPECT_TRUE(run.metrics[0].higher_is_better);
  EXPECT_FALSE(run.metrics[1].higher_is_better);
  EXPECT_TRUE(std::isnan(run.metrics[1].curve.at(1).y));
  EXPECT_TRUE(has(run.eval_loss, 4, 1.2));
  const std::string page = shown();
  for (const char* part :
       {"<dt>Evaluation accuracy</dt>", "highest 0.7500 at step 2", "<dt>Images per second</dt>",
        "8 images a step", "data-chart=\"metric\" data-metric=\"accuracy\"", "higher is better",
        ">accuracy</th>", "many images"})
    EXPECT_THAT(page, HasSubstr(part));
  for (const char* part : {"oken", "nats", "bits per", "nigram"})
    EXPECT_THAT(page, Not(HasSubstr(part))) << "a word of another task";
}

TEST_F(RunFolder, ExamplesOfTheLastEvaluationHaveTheirDifferencesMarked) {
  read(
      "{\"kind\":\"eval\",\"step\":2,\"wer\":1,\"examples\":[{\"name\":\"old\",\"reference\":\"x\"}]}\n"
      "{\"kind\":\"eval\",\"step\":4,\"wer\":1,\"examples\":[{\"name\":\"<a>\",\"reference\":\"the "
      "<i>cat</i> sat\",\"hypothesis\":\"the hat & sat\"},{\"reference\":7},3]}\n"
      "{\"kind\":\"eval\",\"step\":6,\"wer\":1,\"examples\":[]}\n");
  const std::string page = shown();
  EXPECT_THAT(page, HasSubstr("<section id=\"examples\">"));
  EXPECT_THAT(page, HasSubstr("The evaluation of step 4."));
  EXPECT_THAT(page,
              HasSubstr("&lt;a&gt;</th><td>the <del>&lt;i&gt;cat&lt;/i&gt;</del> sat</td>"
                        "<td>the <ins>hat</ins> <ins>&amp;</ins> sat</td><td class=\"num\">2 of 3</td>"));
  EXPECT_THAT(page, Not(HasSubstr(">old<")));
  read("{\"kind\":\"eval\",\"step\":2,\"wer\":1}\n");
  EXPECT_THAT(shown(), Not(HasSubstr("id=\"examples\"")));
}

TEST_F(RunFolder, MemoryOfAStepAndPeakMemorySayWhatTheyAre) {
  const std::string owners = "{\"kind\":\"memory\",\"step\":2,\"owners\":{\"params\":1000,\"grads\":500}";
  const std::string train = "{\"kind\":\"train\",\"step\":2,\"loss\":1,\"memory\":{\"host\":9000}}\n";
  read(owners + "}\n" + train);
  EXPECT_THAT(shown(), AllOf(HasSubstr("of the process, in host memory"),
                             HasSubstr("the tensors at the peak of one training step"),
                             HasSubstr("is the most of the process during the run")));
  read(owners + ",\"device_peak\":2000}\n" + train);
  EXPECT_THAT(shown(), HasSubstr("is the most on the device during the run, evaluations included"));
}

TEST_F(RunFolder, TheWordErrorRateIsInPercent) {
  const std::string better = "\"better\":{\"loss\":\"lower\",\"wer\":\"lower\"}";
  const RunData run = read("{\"kind\":\"eval\",\"step\":2,\"loss\":1.5,\"wer\":0.1138," + better +
                           "}\n{\"kind\":\"eval\",\"step\":4,\"loss\":1.25,\"wer\":0.125," + better + "}\n");
  const auto facts = facts_of(run);
  const auto wer = std::ranges::find(facts, "WER", &Fact::label);
  ASSERT_NE(wer, facts.end());
  EXPECT_EQ(wer->value, "12.50%");
  EXPECT_EQ(wer->note, "lowest 11.38% at step 2");
  const std::string page = shown();
  EXPECT_THAT(page, HasSubstr("<th scope=\"col\" class=\"num\">WER</th>"));
  EXPECT_THAT(page, HasSubstr("11.38%</td>"));
  EXPECT_THAT(page, Not(HasSubstr("0.1138<")));
  EXPECT_THAT(page, HasSubstr("data-metric=\"wer\"")) << "the name of the curve stays as it is";
}

TEST_F(RunFolder, ALogFromBeforeTasksCountsTokens) {
  const RunData run = read(
      "{\"kind\":\"start\",\"step\":0,\"batch_tokens\":8,\"unigram_entropy\":3}\n"
      "{\"kind\":\"train\",\"step\":2,\"loss\":1,\"tokens\":16,\"tokens_per_second\":50}\n"
      "{\"kind\":\"eval\",\"step\":2,\"loss\":1.5,\"tokens\":64,\"seconds\":1}\n");
  EXPECT_EQ(run.unit, "tokens");
  EXPECT_EQ(run.units, 16);
  EXPECT_TRUE(has(run.throughput, 2, 50));
  EXPECT_TRUE(has(run.eval_loss, 2, 1.5));
  EXPECT_TRUE(run.metrics.empty());
  const std::string page = shown();
  for (const char* part : {"Tokens per second", "8 tokens a step", "in nats per token", "bits per token",
                           "<dt>Unigram entropy</dt>"})
    EXPECT_THAT(page, HasSubstr(part));
}

TEST(Facts, RunsOfOtherTasksHaveTheSameRows) {
  RunData words, pictures;
  words.unit = "tokens";
  words.eval_loss = {{1, 2.0}};
  words.start = {{"unigram_entropy", 3.0}};
  pictures.unit = "images";
  pictures.metrics = {{"accuracy", true, {{1, 0.5}, {2, 0.75}}}};
  const std::vector<RunData> runs = {words, pictures};
  const auto facts = facts_of(runs);
  ASSERT_EQ(facts[0].size(), facts[1].size());
  for (std::size_t i = 0; i < facts[0].size(); ++i) EXPECT_EQ(facts[0][i].label, facts[1][i].label);
  const auto value = [&](std::size_t run, const std::string& label) {
    const auto at = std::ranges::find(facts[run], label, &Fact::label);
    return at == facts[run].end() ? "no such row" : at->value;
  };
  EXPECT_EQ(value(0, "Evaluation accuracy"), kUnknown);
  EXPECT_EQ(value(1, "Evaluation accuracy"), "0.7500");
  EXPECT_EQ(value(1, "Evaluation loss"), kUnknown) << "it has none, but the other has";
  EXPECT_EQ(value(1, "Unigram entropy"), kUnknown);
}

TEST_F(RunFolder, SettingsAreFlatAndInOrder) {
  const RunData run = read("", "data: {stages: [1, -1], validation: null}\noutput_dir: runs/a\n");
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"data.stages", "[1, -1]"}, {"data.validation", "null"}, {"output_dir", "runs/a"}};
  EXPECT_EQ(run.settings, expected);
}

}  // namespace
}  // namespace octavo_train
