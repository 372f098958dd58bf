// Tests the word errors of a manifest, with a fake recognizer that identifies clips by their loudness, and
// the report of `octavo evaluate`.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/score.h"

#include "apps/octavo/evaluate_report.h"
#include "tests/train/text_files.h"
#include "train/audio/audio.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Spoken {
  std::string said, transcribed;
  std::string more = {};  // further fields of the manifest line: `, "lang": "de"`
};

// A manifest whose clip n has (n + 1) percent of full scale and is half a second long.
class Evaluated {
 public:
  explicit Evaluated(std::vector<Spoken> clips) : clips_(std::move(clips)) {
    std::string lines;
    for (std::size_t i = 0; i < clips_.size(); ++i) {
      const std::string name = "clip" + std::to_string(i) + ".wav";
      const std::vector<float> samples(8000, static_cast<float>(i + 1) / 100);
      EXPECT_TRUE(write_audio(folder_.path(name), samples, 16000).ok());
      lines += R"({"audio_filepath": ")" + name + R"(", "duration": 0.5, "text": ")" + clips_[i].said + '"' +
               clips_[i].more + "}\n";
    }
    write(lines);
  }
  void write(const std::string& lines) { lines_ += lines; }

  ManifestScore score(const ScoreOptions& options = {}, int batches = 1000) {
    folder_.write("test.jsonl", lines_);
    const std::vector<ManifestSource> sources = {{folder_.path("test.jsonl")}};
    const auto manifest = Manifest::open(sources, {.min_duration = 0, .bad = BadClips::skip});
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    return score_manifest(*manifest, [&](auto clips) { return transcribe(clips); }, options,
                          {[&] { return batches-- <= 0; },
                           [&](std::int64_t done, const GroupScore& so_far) {
                             EXPECT_EQ(done, ++told_);
                             EXPECT_LE(so_far.clips, done);
                           }});
  }
  [[nodiscard]] std::string place(int line) const {
    return folder_.path("test.jsonl") + ':' + std::to_string(line);
  }

 private:
  std::vector<Transcription> transcribe(std::span<const std::span<const float>> batch) {
    std::vector<Transcription> out;
    for (const auto& clip : batch) {
      EXPECT_EQ(clip.size(), 8000U);
      const auto number = static_cast<std::size_t>(std::lround(100 * clip[4000])) - 1;
      out.push_back({clips_.at(number).transcribed, {}, {}});
    }
    return out;
  }

  TextFiles folder_;
  std::vector<Spoken> clips_;
  std::string lines_;
  std::int64_t told_ = 0;
};

std::vector<std::int64_t> numbers(const std::vector<ScoredClip>& clips) {
  std::vector<std::int64_t> out;
  for (const ScoredClip& each : clips) out.push_back(each.number);
  return out;
}

TEST(Score, SumsErrorsAndKnowsTheWorst) {
  Evaluated set({{"the cat sat", "the cat sat"},
                 {"a b c d", "x a b d"},    // an insertion and a deletion
                 {"one two", "four five"},  // worse: the same number of errors in fewer words
                 {"", "noise"},
                 {"yes", ""}});
  const ManifestScore done = set.score();
  EXPECT_EQ(done.clips, 5);
  EXPECT_EQ(done.clips_done, 5);
  const GroupScore& total = done.score.total();
  EXPECT_EQ(total.clips, 5);
  EXPECT_EQ(total.seconds, 2.5);
  EXPECT_EQ(total.errors, (WordErrors{2, 2, 2, 10}));
  EXPECT_THAT(numbers(done.score.worst()), ElementsAre(2, 1, 3, 4));
  EXPECT_EQ(done.score.worst()[0].hypothesis, "four five");
  EXPECT_EQ(done.score.worst()[0].place, set.place(3));
  EXPECT_TRUE(done.score.languages().empty());
  EXPECT_TRUE(done.score.failed().empty());
}

TEST(Score, TheWorstAreFewAndALimitTakesTheFirstClips) {
  const std::vector<Spoken> clips = {{"a", "b"}, {"a b", "c d"}, {"a", "a"}, {"a b c", ""}};
  EXPECT_THAT(numbers(Evaluated(clips).score({.worst = 2}).score.worst()), ElementsAre(3, 1));
  EXPECT_THAT(numbers(Evaluated(clips).score({.worst = 0}).score.worst()), ElementsAre());
  const ManifestScore two = Evaluated(clips).score({.limit = 2});
  EXPECT_EQ(two.clips, 2);
  EXPECT_EQ(two.score.total().errors.words, 3);
  EXPECT_EQ(Evaluated(clips).score({.limit = 9}).clips, 4);
}

TEST(Score, UnreadableClipsAreListedAndDoNotAffectOthers) {
  Evaluated set({Spoken{"a b", "a b"}});
  set.write(R"({"audio_filepath": "none.wav", "duration": 1, "text": "x y z"})"
            "\n{\"audio_filepath\": 7}\n");
  const ManifestScore done = set.score();
  EXPECT_EQ(done.score.total().clips, 1);
  EXPECT_EQ(done.score.total().errors.words, 2) << "of the transcribed clips";
  EXPECT_EQ(done.clips_done, 2);
  ASSERT_EQ(done.score.failed().size(), 2U);
  EXPECT_THAT(done.score.failed()[0].place, HasSubstr(set.place(3) + ':'));
  EXPECT_EQ(done.score.failed()[1].place, set.place(2));
  EXPECT_THAT(done.score.failed()[1].audio, HasSubstr("/none.wav"));
  EXPECT_THAT(done.score.failed()[1].reason, HasSubstr("none.wav"));
  EXPECT_THAT(octavo::cli::evaluation_text(done),
              HasSubstr("\n2 clips could not be transcribed and are not counted:\n"));
  const auto json = octavo::cli::evaluation_json(done);
  EXPECT_EQ(json["unheard"][1]["place"], set.place(2));
  EXPECT_EQ(json["complete"], true);
}

TEST(Score, StopsBetweenBatches) {
  Evaluated set({{"a", "a"}, {"b", "b"}, {"c", "x"}});
  ScoreOptions options;
  options.batches.batch_seconds = 0.5;
  const ManifestScore done = set.score(options, 2);
  EXPECT_EQ(done.clips, 3);
  EXPECT_EQ(done.clips_done, 2);
  EXPECT_EQ(done.score.total().clips, 2);
  EXPECT_EQ(octavo::cli::evaluation_json(done)["complete"], false);
}

TEST(Score, LanguagesAndSpeakers) {
  Evaluated set({{"a b", "a b", R"(, "lang": "de", "speaker": "x")"},
                 {"a b", "a c", R"(, "lang": "en")"},
                 {"a", "", R"(, "lang": "en")"}});
  const ManifestScore done = set.score();
  const Score::Groups languages = done.score.languages(), speakers = done.score.speakers();
  ASSERT_EQ(languages.size(), 2U);
  EXPECT_EQ(languages.at("en").errors, (WordErrors{1, 1, 0, 3}));
  EXPECT_EQ(languages.at("en").clips, 2);
  ASSERT_EQ(speakers.size(), 2U);
  EXPECT_EQ(speakers.at(std::nullopt).clips, 2);
  const auto json = octavo::cli::evaluation_json(done);
  EXPECT_EQ(json["by_lang"][1]["lang"], "en");
  EXPECT_EQ(json["by_lang"][1]["words"], 3);
  EXPECT_TRUE(json["by_speaker"][0]["speaker"].is_null());
  EXPECT_THAT(octavo::cli::evaluation_text(done),
              AllOf(HasSubstr("\nlanguage  clips  words     WER  substitutions  deletions  insertions\n"),
                    HasSubstr("\nen            2      3  66.67%         33.33%     33.33%       0.00%\n"
                              "de            1      2   0.00%          0.00%      0.00%       0.00%\n"),
                    HasSubstr("\n(not given)      2      3  66.67%")));
}

TEST(Score, TheTextShowsRatesAndMarksWhatDiffers) {
  Evaluated set({{"the cat sat", "the hat sat \x1b[2J"}, {"a", "a"}});
  const ManifestScore done = set.score();
  EXPECT_THAT(
      octavo::cli::evaluation_text(done),
      AllOf(
          HasSubstr("WER 50.00%: 2 errors in 4 words of 2 clips (1.0 s)\n  1 substitution (25.00%), "
                    "0 deletions (0.00%), 1 insertion (25.00%)\n"),
          HasSubstr("2 errors in 3 words\n    said:        the [-cat-] sat\n    transcribed: the {+hat+} sat "
                    "{+\\x1b[2J+}\n"),
          Not(HasSubstr("language")), Not(HasSubstr("could not"))));
  const auto json = octavo::cli::evaluation_json(done);
  EXPECT_EQ(json["wer"], 0.5);
  EXPECT_EQ(json["worst"][0]["text"], "the cat sat");
  EXPECT_EQ(json["worst"][0]["substitutions"], 1);
  EXPECT_FALSE(json.contains("by_lang"));
  const ManifestScore silent = Evaluated({Spoken{"", ""}}).score();
  EXPECT_THAT(octavo::cli::evaluation_text(silent), HasSubstr("0 errors in 0 words of 1 clip"));
}

}  // namespace
}  // namespace octavo_train
