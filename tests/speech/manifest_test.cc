// Tests manifests: the forms of a line, skipped lines and reasons, several manifests with weights, memory,
// and random lines.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/manifest/manifest.h"

#include "tests/train/text_files.h"
#include "train/data/mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <vector>

namespace octavo_train {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string line(const std::string& audio, double duration, const std::string& text) {
  return R"({"audio_filepath": ")" + audio + R"(", "duration": )" + std::to_string(duration) +
         R"(, "text": ")" + text + "\"}\n";
}

Result<Manifest> open(const std::string& path, const ManifestOptions& options = {}) {
  const std::vector<ManifestSource> sources = {{path, 1}};
  return Manifest::open(sources, options);
}

// Returns the part of the message after the path.
std::string problem(const TextFiles& files, const std::string& text) {
  const std::string path = files.write("bad.jsonl", text);
  const auto manifest = open(path);
  if (manifest.ok()) return "";
  const std::string message = manifest.status().message();
  return message.starts_with(path) ? message.substr(path.size()) : "elsewhere: " + message;
}

TEST(Manifest, EntriesAreWhatTheLinesSay) {
  const TextFiles files;
  const std::string path = files.write(
      "a.jsonl",
      "\xEF\xBB\xBF"
      R"({"audio_filepath": "x.wav", "duration": 1.5, "text": "Three blåa \"boats\"\n\u00e9\ud83d\ude00"})"
      "\r\n\n   \n"
      R"( {"text":"","lang":"ms","offset":2.25,"extra":[1,{"a":null,"b":[true,false,-1.5e+3]},"]}"],"speaker":17,"duration":2,"audio_filepath":"/abs/y.flac"} )"
      "\n"
      R"({"audio_file": "~/z.mp3", "duration": 3, "normalized_text": "ok", "lang": null, "speaker": "Ann", "offset": null})");
  const auto manifest = open(path).value();
  ASSERT_EQ(manifest.size(), 3);
  const ManifestEntry first = manifest.entry(0);
  EXPECT_EQ(first.audio, std::filesystem::path(path).parent_path().string() + "/x.wav");
  EXPECT_EQ(first.text, "Three blåa \"boats\"\né😀");
  EXPECT_EQ(first.duration, 1.5);
  EXPECT_EQ(first.offset, 0);
  EXPECT_FALSE(first.lang || first.speaker);
  const ManifestEntry second = manifest.entry(1);
  EXPECT_EQ(second.audio, "/abs/y.flac");
  EXPECT_EQ(second.text, "");
  EXPECT_EQ(second.offset, 2.25);
  EXPECT_EQ(second.lang, "ms");
  EXPECT_EQ(second.speaker, "17");
  const ManifestEntry third = manifest.entry(2);
  EXPECT_EQ(third.text, "ok");
  EXPECT_EQ(third.speaker, "Ann");
  EXPECT_THAT(third.audio, AllOf(EndsWith("/z.mp3"), Not(HasSubstr("~"))));
  EXPECT_EQ(manifest.place(0), path + ":1");
  EXPECT_EQ(manifest.place(1), path + ":4");
  EXPECT_EQ(manifest.duration(2), 3);
  EXPECT_EQ(manifest.report().lines, 3);
  EXPECT_EQ(manifest.report().seconds, 6.5);
}

TEST(Manifest, RelativePathsLeadFromTheManifestAndElseFromHere) {
  const TextFiles files;
  const std::string path = files.write("a.jsonl", line("here.wav", 1, "a") + line("beside.wav", 1, "b"));
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const std::filesystem::path before = std::filesystem::current_path();
  const std::string other = folder + "/other";
  std::filesystem::create_directory(other);
  std::ofstream(other + "/here.wav") << "x";
  std::ofstream(other + "/beside.wav") << "x";
  std::ofstream(folder + "/beside.wav") << "x";
  const auto manifest = open(path).value();
  std::filesystem::current_path(other);
  EXPECT_EQ(manifest.entry(0).audio, "here.wav");
  EXPECT_EQ(manifest.entry(1).audio, folder + "/beside.wav");
  std::filesystem::current_path(before);
}

TEST(Manifest, TextsMayLieInFiles) {
  const TextFiles files;
  files.write("a.txt", "two words \n\n");
  const std::string path =
      files.write("a.jsonl", R"({"audio_filepath": "x", "duration": 1, "text_filepath": "a.txt"}
{"audio_filepath": "x", "duration": 1, "text_filepath": "none.txt"}
{"audio_filepath": "x", "duration": 1, "text_filepath": "none.txt", "text": "in the line"})");
  const auto manifest = open(path).value();
  EXPECT_EQ(manifest.entry(0).text, "two words");
  EXPECT_EQ(manifest.entry(2).text, "in the line");
  try {
    (void)manifest.entry(1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(path + ":2: text_filepath: "), HasSubstr("none.txt")));
  }
}

TEST(Manifest, OtherFieldsOnRequest) {
  const TextFiles files;
  const std::string path = files.write(
      "a.jsonl",
      R"({"audio_filepath": "x", "duration": 1, "text": 5, "words": "w", "language": "de", "lang": 7})");
  const auto manifest = open(path, {.text_field = "words", .lang_field = "language"}).value();
  EXPECT_EQ(manifest.entry(0).text, "w");
  EXPECT_EQ(manifest.entry(0).lang, "de");
  EXPECT_THAT(open(path, {.text_field = "none", .lang_field = "language"}).status().message(),
              HasSubstr(":1:1: none is missing"));
}

TEST(Manifest, BadLinesAreNamedWithPlaceAndReason) {
  const TextFiles files;
  const std::string good = line("x", 1, "a");
  const std::map<std::string, std::string> cases = {
      {"x", ":2:1: expected {: a manifest has a JSON object in every line, got x"},
      {"[1]", ":2:1: expected {: a manifest has a JSON object in every line, got [1"},
      {"{'audio_filepath': 'x'}", ":2:2: expected a string in double quotes, got 'audio_filepath'"},
      {R"({"audio_filepath" "x"})", ":2:19: expected a colon after a name, got \"x\""},
      {R"({"audio_filepath": "x", "duration": "3.5", "text": ""})",
       ":2:37: duration: expected a number, got \"3.5\""},
      {R"({"audio_filepath": "x", "duration": NaN, "text": ""})",
       ":2:37: duration: expected a number, got NaN"},
      {R"({"audio_filepath": "x", "duration": 01, "text": ""})",
       ":2:37: duration: expected a number, got 01"},
      {R"({"audio_filepath": "x", "duration": 1., "text": ""})",
       ":2:37: duration: expected a number, got 1."},
      {R"({"audio_filepath": "x", "duration": 0, "text": ""})", ":2:37: duration: expected seconds above 0"},
      {R"({"audio_filepath": "x", "duration": -2, "text": ""})", ":2:37: duration: expected seconds above 0"},
      {R"({"audio_filepath": "x", "duration": 1e999, "text": ""})",
       ":2:37: duration: 1e999 is out of the range of a number"},
      {R"({"audio_filepath": "x", "duration": null, "text": ""})",
       ":2:37: duration: expected a number, got null"},
      {R"({"offset": -1, "audio_filepath": "x"})", ":2:12: offset: expected seconds from 0 on"},
      {R"({"audio_filepath": "x", "text": ""})", ":2:1: duration is missing, the seconds of the clip"},
      {R"({"duration": 1, "text": ""})", ":2:1: audio_filepath is missing"},
      {R"({"audio_filepath": "x", "duration": 1})", ":2:1: text is missing, what is said in the clip"},
      {R"({"audio_filepath": "", "duration": 1, "text": ""})",
       ":2:20: audio_filepath: it is empty, expected a path"},
      {R"({"audio_filepath": "a\u0000b", "duration": 1, "text": ""})",
       ":2:20: audio_filepath: a path has no \\u0000"},
      {R"({"audio_filepath": 3, "duration": 1, "text": ""})",
       ":2:20: audio_filepath: expected a string in double quotes, got 3"},
      {R"({"text": null, "audio_filepath": "x", "duration": 1})",
       ":2:10: text: expected a string in double quotes, got null"},
      {R"({"text": "a", "text": "b"})", ":2:15: text is given twice"},
      {R"({"text": "é\q"})", ":2:12: text: a backslash in a string begins one of"},
      {R"({"text": "\ud800x"})", ":2:11: text: the first half of a character without its second"},
      {R"({"text": "\udc00"})", ":2:11: text: the second half of a character without its first"},
      {R"({"text": "\u12g4"})", ":2:13: text: expected four hexadecimal digits after \\u"},
      {"{\"text\": \"\xff\"}", ":2:11: text: the text is not UTF-8"},
      {"{\"text\": \"\xC0\x80\"}", ":2:11: text: the text is not UTF-8"},
      {"{\"text\": \"\xED\xA0\x80\"}", ":2:11: text: the text is not UTF-8"},
      {"{\"text\": \"a\tb\"}", ":2:12: text: a control character in a string"},
      {R"({"text": "no end)", ":2:10: text: a string that begins here has no end in this line"},
      {R"({"extra": [1, 2})", ":2:16: expected a comma or ], got }"},
      {R"({"extra": {"a" 1}})", ":2:16: expected a colon, got 1"},
      {R"({"extra": tru})", ":2:11: expected true or false, got tru"},
      {R"({"extra": nul})", ":2:11: expected a value, got nul"},
      {R"({"extra": 1,})", ":2:13: expected a string in double quotes, got }"},
      {R"({"extra": })", ":2:11: expected a value, got }"},
      {R"({"_skipme": 1})", ":2:13: _skipme: expected true or false, got 1"},
      {R"({"lang": 1})", ":2:10: lang: expected a string in double quotes, got 1"},
      {"{", ":2:2: expected a string in double quotes, got the end of the line"},
      {good.substr(0, good.size() - 1) + " x",
       ":2:" + std::to_string(good.size() + 1) + ": expected the end of the line, got x"},
      {"{\"extra\": " + std::string(65, '[') + std::string(65, ']') + "}",
       ":2:75: more than 64 objects and lists in each other"},
      {std::string("{\"extra\": 1\0}", 13),
       ":2:12: expected a comma or } after a value, got a byte that is not text"},
  };
  for (const auto& [bad, expected] : cases) {
    const std::string got = problem(files, good + bad + "\n" + good);
    EXPECT_TRUE(got.starts_with(expected)) << bad << "\n got " << got << "\n not " << expected;
    EXPECT_THAT(got, EndsWith("(data.on_bad_clip: skip skips bad lines and lists them)"));
  }
  EXPECT_THAT(problem(files, "{\n{\n" + good + "["), HasSubstr("; 2 more lines are bad (data.on_bad_clip"));
}

TEST(Manifest, WhatIsLeftOutIsCountedAndListed) {
  const TextFiles files;
  const std::string path = files.write(
      "a.jsonl", line("a", 0.05, "") + line("b", 1, "") + "{\n" + line("c", 20, "") + line("d", 20.5, "") +
                     R"({"audio_filepath": "/e", "duration": 2, "text": "", "_skipme": true})" + "\n");
  const auto manifest = open(path, {.bad = BadClips::skip}).value();
  EXPECT_EQ(manifest.size(), 2);
  EXPECT_EQ(manifest.place(1), path + ":4");
  const ManifestReport& report = manifest.report();
  EXPECT_EQ(report.lines, 6);
  EXPECT_EQ(report.taken, 2);
  EXPECT_EQ(report.left_out(), 4);
  EXPECT_EQ(report.seconds, 21);
  EXPECT_EQ(report.seconds_left_out, 0.05 + 20.5 + 2);
  EXPECT_EQ(report.text(manifest.options()),
            "2 of 6 clips (0.0 hours); skipped: 1 longer than 20 s, 1 shorter than 0.1 s, 1 with _skipme, 1 "
            "bad line");
  EXPECT_EQ(manifest.left_out(0).reason, "0.05 s are shorter than min_duration 0.1 s");
  EXPECT_THAT(manifest.left_out(0).audio, EndsWith("/a"));
  EXPECT_EQ(manifest.left_out(1).place, path + ":3:2");
  EXPECT_THAT(manifest.left_out(1).reason, HasSubstr("expected a string"));
  EXPECT_EQ(manifest.left_out(1).audio, "");
  EXPECT_EQ(manifest.left_out(2).reason, "20.5 s are longer than max_duration 20 s");
  EXPECT_EQ(manifest.left_out(3).reason, "_skipme is true");
  EXPECT_EQ(manifest.left_out(3).audio, "/e");
}

TEST(Manifest, ManifestsWithoutClipsAreErrors) {
  const TextFiles files;
  EXPECT_THAT(problem(files, ""), HasSubstr("no clip can be used: 0 clips"));
  EXPECT_THAT(problem(files, line("a", 30, "")), HasSubstr("skipped: 1 longer than 20 s"));
  EXPECT_THAT(open(files.write("b.jsonl", "{"), {.bad = BadClips::skip}).status().message(),
              HasSubstr("b.jsonl:1:2: expected"));
  EXPECT_THAT(open("/nowhere/a.jsonl").status().message(), HasSubstr("/nowhere/a.jsonl"));
  EXPECT_THAT(open("/").status().message(), HasSubstr("is a folder"));
  EXPECT_FALSE(Manifest::open({}, {}).ok());
  const std::string path = files.write("a.jsonl", line("a", 1, ""));
  EXPECT_THAT(open(path, {.min_duration = 3, .max_duration = 2}).status().message(),
              HasSubstr("min_duration 3 and max_duration 2"));
  for (const double weight : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    const std::vector<ManifestSource> sources = {{path, weight}};
    EXPECT_THAT(Manifest::open(sources).status().message(), HasSubstr("weight: got"));
  }
}

// Returns lines for the clips a0, a1, …
std::string clips(const std::string& name, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += line('/' + name + std::to_string(i), 1, "");
  return out;
}

std::vector<std::string> audio_of(const Manifest& manifest, std::int64_t count) {
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(manifest.entry(i).audio.substr(1));
  return out;
}

TEST(Manifest, WeightsRepeatAndThin) {
  const TextFiles files;
  const std::string a = files.write("a.jsonl", clips("a", 4));
  const std::string b = files.write("b.jsonl", clips("b", 100));
  {
    const std::vector<ManifestSource> sources = {{a, 2}};
    const auto manifest = Manifest::open(sources).value();
    EXPECT_THAT(audio_of(manifest, manifest.size()),
                ElementsAre("a0", "a1", "a2", "a3", "a0", "a1", "a2", "a3"));
    EXPECT_EQ(manifest.clip(5), 1);
    EXPECT_EQ(manifest.report().taken, 4);
  }
  std::vector<std::string> smaller;
  for (const double weight : {0.3, 0.7}) {
    const std::vector<ManifestSource> sources = {{b, weight}};
    const auto manifest = Manifest::open(sources).value();
    ASSERT_EQ(manifest.size(), std::llround(100 * weight));
    const auto names = audio_of(manifest, manifest.size());
    EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
    const std::set all(names.begin(), names.end());
    for (const std::string& name : smaller)
      EXPECT_TRUE(all.contains(name)) << "a larger fraction has the smaller one's clips";
    smaller = names;
  }
  const std::vector<ManifestSource> sources = {{a, 2.5}, {b, 0.2}};
  const auto manifest = Manifest::open(sources).value();
  ASSERT_EQ(manifest.size(), 10 + 20);
  int of_a = 0;
  std::map<std::string, int> turns;
  for (std::int64_t i = 0; i < manifest.size(); ++i) {
    const std::string name = manifest.entry(i).audio;
    of_a += name[1] == 'a' ? 1 : 0;
    ++turns[name];
    EXPECT_LE(std::abs(of_a - static_cast<double>(i + 1) / 3), 1) << "evenly mixed at " << i;
  }
  for (int i = 0; i < 4; ++i) EXPECT_THAT(turns["/a" + std::to_string(i)], AnyOf(2, 3));
}

TEST(Manifest, FingerprintsFollowContentsAndNotPaths) {
  const TextFiles files;
  const std::string a = files.write("a.jsonl", clips("a", 4)), same = files.write("b.jsonl", clips("a", 4));
  const std::string other = files.write("c.jsonl", clips("c", 4));
  const auto of = [](std::vector<ManifestSource> sources, const ManifestOptions& options = {}) {
    return Manifest::open(sources, options).value().fingerprint();
  };
  EXPECT_EQ(of({{a, 1}}).size(), 32U);
  EXPECT_EQ(of({{a, 1}}), of({{same, 1}}));
  EXPECT_NE(of({{a, 1}}), of({{other, 1}}));
  EXPECT_NE(of({{a, 1}}), of({{a, 2}}));
  EXPECT_NE(of({{a, 1}}), of({{a, 1}}, {.max_duration = 15}));
  EXPECT_NE(of({{a, 1}, {other, 1}}), of({{other, 1}, {a, 1}}));
}

TEST(Manifest, AFileThatChangesIsNoticed) {
  const TextFiles files;
  const std::string path = files.write("a.jsonl", line("a", 1, "x") + line("b", 2, "y"));
  const auto manifest = open(path).value();
  const auto message = [&] {
    try {
      (void)manifest.entry(1);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(), "");
  const std::string first = line("a", 1, "x");
  {
    std::ofstream(path) << first << line("b", 3, "y");
    EXPECT_THAT(
        message(),
        HasSubstr(path +
                  ":2: the line has changed since the manifest was opened (its duration is different)"));
    std::ofstream(path) << first;
    EXPECT_THAT(message(), HasSubstr("has changed"));
  }
}

TEST(Manifest, ALineTakesSixteenBytes) {
  const TextFiles files;
  constexpr std::int64_t kLines = 100000;
  std::string text;
  for (std::int64_t i = 0; i < kLines; ++i)
    text += line(
        "clips/speaker_" + std::to_string(i % 100) + "/recording_" + std::to_string(i) + ".flac",
        1 + static_cast<double>(i % 190) / 10,
        "a sentence of some length that somebody has said into a microphone, number " + std::to_string(i));
  const std::string path = files.write("a.jsonl", text);
  const auto manifest = open(path).value();
  ASSERT_EQ(manifest.size(), kLines);
  EXPECT_EQ(manifest.bytes(), kLines * 16);
  const std::vector<ManifestSource> twice = {{path, 1}, {path, 1.5}};
  const auto mixed = Manifest::open(twice).value();
  EXPECT_EQ(mixed.bytes(), 2 * kLines * 16 + kLines * 5 / 2 * 4);
  // Several threads read concurrently.
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&, worker] {
      for (std::int64_t i = worker; i < kLines; i += 997) {
        if (!manifest.entry(i).text.ends_with("number " + std::to_string(i))) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Lines with changed, dropped and repeated bytes give an entry or an error with a location; nothing else may
// happen.
TEST(ManifestFuzz, NoLineDoesHarm) {
  const TextFiles files;
  const std::string good =
      R"({"audio_filepath": "a/\u00e9\ud83d\ude00.wav", "duration": 12.5e-1, "offset": 3, "text": "blå \"x\" \\ ☃", "lang": "ms", "speaker": -7, "_skipme": false, "extra": [{"a": [null, true]}, "b"]})";
  constexpr std::string_view kBytes = "{}[]\",:\\u0d8-+.eE1ntf \t\xC3\xA5\xFF\xED";
  std::uint64_t state = 17;
  const auto random = [&](std::uint64_t below) {
    return mix(state += kGoldenGamma) % std::max<std::uint64_t>(below, 1);
  };
  std::string text;
  const char* const wanted = std::getenv("OCTAVO_FUZZ_INPUTS");
  const int lines = wanted != nullptr ? std::atoi(wanted) : 20000;
  for (int i = 0; i < lines; ++i) {
    std::string one = good;
    for (std::uint64_t change = 1 + random(3); change > 0; --change) {
      const auto at = static_cast<std::size_t>(random(one.size()));
      const std::uint64_t what = random(4);
      if (what == 0 && !one.empty()) one[at] = kBytes[random(kBytes.size())];
      if (what == 1) one.erase(at, 1 + random(8));
      if (what == 2) one.insert(at, one.substr(random(one.size()), random(12)));
      if (what == 3) one.resize(std::max<std::size_t>(at, 1));
    }
    for (char& c : one) c = c == '\n' ? ' ' : c;
    text += one + '\n';
  }
  text += good + '\n';
  const auto manifest = open(files.write("a.jsonl", text), {.bad = BadClips::skip}).value();
  const ManifestReport& report = manifest.report();
  EXPECT_GT(report.bad, lines / 4);
  EXPECT_GT(report.taken, lines / 20);
  EXPECT_EQ(report.taken + report.left_out(), report.lines);
  for (std::int64_t i = 0; i < manifest.size(); ++i) ASSERT_FALSE(manifest.entry(i).audio.empty());
  for (std::int64_t i = 0; i < report.left_out(); ++i) ASSERT_FALSE(manifest.left_out(i).reason.empty());
}

}  // namespace
}  // namespace octavo_train
