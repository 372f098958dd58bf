// Fuzzes the config parser with random texts and mutated configs: each gives a Config or a Status with a
// place, never a crash or an exception, and a Config that is written and read again is unchanged. Takes about
// one second; OCTAVO_FUZZ_SECONDS and OCTAVO_FUZZ_SEED work as in api/fuzz_test.cc.
// SPDX-License-Identifier: MIT
#include "tests/support/random.h"
#include "train/config/config.h"
#include "train/config/task_config.h"
#include "train/tasks/text/settings.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>

namespace octavo_train {
namespace {

const Schema& schema = schema_of(declared_tasks().front());

using test::Random;

constexpr std::array<std::string_view, 46> kPieces = {": ",
                                                      ":",
                                                      "\n",
                                                      "\n  ",
                                                      "- ",
                                                      "[",
                                                      "]",
                                                      "{",
                                                      "}",
                                                      ",",
                                                      "'",
                                                      "\"",
                                                      "#",
                                                      "&a ",
                                                      "*a",
                                                      "!!str ",
                                                      "!",
                                                      "| ",
                                                      "> ",
                                                      "---\n",
                                                      "...\n",
                                                      "? ",
                                                      "%",
                                                      "\t",
                                                      "\r\n",
                                                      "null",
                                                      "true",
                                                      "false",
                                                      "~",
                                                      "-1",
                                                      "1e-3",
                                                      "0x7",
                                                      "1e999",
                                                      ".nan",
                                                      "\\x41",
                                                      "\\",
                                                      "auto",
                                                      "cuda:1",
                                                      "24",
                                                      "adamw_8bit",
                                                      "[1, 2]",
                                                      "\xC3\xA9",
                                                      "\xEF\xBB\xBF",
                                                      "\xE2\x80\xA8",
                                                      "<<: ",
                                                      "99999999999999999999"};

double seconds() {
  const char* text = std::getenv("OCTAVO_FUZZ_SECONDS");
  return text != nullptr ? std::atof(text) : 1.0;
}

std::uint64_t seed() {
  const char* text = std::getenv("OCTAVO_FUZZ_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

std::string any_key(Random& random) {
  const Key& key = schema[random.below(schema.size())];
  return std::string(random.chance(2) ? key.path : key.name());
}

std::string piece(Random& random) {
  if (random.chance(4)) return any_key(random);
  if (random.chance(8)) return std::string(1, static_cast<char>(random.below(256)));
  return std::string(kPieces[random.below(kPieces.size())]);
}

std::string random_bytes(Random& random) {
  std::string text(random.below(200), '\0');
  for (char& c : text) c = static_cast<char>(random.chance(2) ? random.below(256) : 32 + random.below(95));
  return text;
}

std::string random_pieces(Random& random) {
  std::string text;
  for (std::uint64_t i = random.below(40); i > 0; --i) text += piece(random);
  return text;
}

// Returns a few lines of keys and values, most of them valid.
std::string random_lines(Random& random) {
  std::string text;
  for (std::uint64_t i = 1 + random.below(4); i > 0; --i) {
    const Key& key = schema[random.below(schema.size())];
    const Setting* setting = key.setting();
    const bool own = setting != nullptr && !random.chance(3);
    text += std::string(key.path) + ": " +
            (own ? std::string(setting->fallback) : std::string(kPieces[random.below(kPieces.size())])) +
            "\n";
  }
  return text;
}

std::string mutated(std::string text, Random& random) {
  for (std::uint64_t i = 1 + random.below(3); i > 0; --i) {
    const std::size_t at = random.below(text.size() + 1);
    switch (random.below(3)) {
      case 0:
        text.insert(at, piece(random));
        break;
      case 1:
        text.erase(at, random.below(10));
        break;
      default:
        text.insert(at, text.substr(random.below(text.size() + 1), random.below(60)));
    }
  }
  return text;
}

std::string any_text(const std::string& valid, Random& random) {
  switch (random.below(4)) {
    case 0:
      return random_bytes(random);
    case 1:
      return random_pieces(random);
    case 2:
      return random_lines(random);
    default:
      return mutated(valid, random);
  }
}

TEST(ConfigFuzz, EveryTextIsAConfigOrAStatus) {
  const std::string valid = to_yaml(parse("train: [a.txt, b c.txt]\nstages: [5, -1]", "valid")->settings);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds());
  std::int64_t accepted = 0;
  std::int64_t refused = 0;
  for (std::uint64_t i = seed(); std::chrono::steady_clock::now() < end; ++i) {
    Random random(i);
    const std::string text = any_text(valid, random);
    std::vector<std::string> words;
    if (random.chance(3)) words.push_back(any_key(random) + "=" + piece(random));
    if (random.chance(9)) words.push_back(random_pieces(random));
    SCOPED_TRACE("OCTAVO_FUZZ_SEED=" + std::to_string(i) + "\n" + text);

    const auto config = parse(text, "run.yaml", words);
    if (!config.ok()) {
      ++refused;
      const std::string message = config.status().message();
      ASSERT_TRUE(message.starts_with("run.yaml:") || message.starts_with("command line: ") ||
                  message.starts_with("default"))
          << message;
      ASSERT_EQ(message.find('\n'), std::string::npos) << message;
      continue;
    }
    ++accepted;
    const std::string written = to_yaml(config->settings);
    const auto again = parse(written, "written.yaml");
    ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << written;
    ASSERT_EQ(to_yaml(again->settings), written);
  }
  // Both outcomes must occur; otherwise the generated texts are not useful.
  EXPECT_GT(accepted, 10);
  EXPECT_GT(refused, 10);
  RecordProperty("accepted", std::to_string(accepted));
  RecordProperty("refused", std::to_string(refused));
}

}  // namespace
}  // namespace octavo_train
