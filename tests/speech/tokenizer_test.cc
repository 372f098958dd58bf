// SentencePiece models: trained, opened, there and back; and what is none.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer.h"

#include "train/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

namespace octavo::train {
namespace {

using ::testing::HasSubstr;

constexpr std::array<const char*, 8> kWords = {"three", "blue",  "boats", "sail",
                                               "over",  "quiet", "water", "häuser"};

std::string sentence(int number) {
  std::string out;
  for (int i = 0; i < 3 + number % 4; ++i)
    out +=
        (i > 0 ? " " : "") +
        std::string(kWords.at(static_cast<std::size_t>(number * 7 + i * (number % 5 + 1)) % kWords.size()));
  return out;
}

Result<std::string> trained(const TokenizerPlan& plan, int lines = 300) {
  int line = 0;
  return train_tokenizer(plan, [&](std::string& out) {
    out = sentence(line);
    return line++ < lines;
  });
}

TEST(Tokenizer, TextsThereAndBack) {
  for (const char* kind : {"bpe", "unigram", "char"}) {
    const auto bytes = trained({.vocabulary = 40, .kind = kind});
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    EXPECT_EQ(*trained({.vocabulary = 40, .kind = kind}), *bytes) << "the same lines, the same bytes";
    const TextFiles files;
    const std::string path = files.write("tokenizer.model", *bytes);
    auto opened = Tokenizer::open(path);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const Tokenizer tokenizer = std::move(*opened);
    EXPECT_LE(tokenizer.size(), 40);
    EXPECT_EQ(tokenizer.bytes(), *bytes);
    EXPECT_EQ(tokenizer.name(), path);
    std::set<std::string> pieces;
    for (std::int64_t i = 0; i < tokenizer.size(); ++i) {
      pieces.insert(tokenizer.piece(i));
      EXPECT_EQ(tokenizer.is_unknown(i), tokenizer.piece(i) == "<unk>");
    }
    EXPECT_EQ(std::ssize(pieces), tokenizer.size());
    for (int i = 0; i < 50; ++i) {
      const std::vector<std::int64_t> tokens = tokenizer.encode(sentence(i));
      EXPECT_EQ(tokenizer.decode(tokens), sentence(i));
      EXPECT_TRUE(tokenizer.piece(tokens.at(0)).starts_with("\u2581"));
      for (const std::int64_t token : tokens) EXPECT_FALSE(tokenizer.is_unknown(token));
    }
    EXPECT_TRUE(tokenizer.encode("").empty());
    EXPECT_EQ(tokenizer.decode({}), "");
    const auto foreign = tokenizer.encode("三");
    EXPECT_TRUE(
        std::ranges::any_of(foreign, [&](std::int64_t token) { return tokenizer.is_unknown(token); }));
    // In a folder, as NeMo's tokenizer.dir.
    EXPECT_TRUE(Tokenizer::open(files.path("")).ok());
  }
}

TEST(Tokenizer, BytesStandInForCharacters) {
  const auto bytes = trained({.vocabulary = 300, .byte_fallback = true, .symbols = {"<|ms|>", "boats"}});
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  const auto tokenizer = Tokenizer::from_bytes(*bytes, "it");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("three 三 boats")), "three 三 boats");
  const auto tokens = tokenizer->encode("<|ms|>");
  EXPECT_TRUE(
      std::ranges::any_of(tokens, [&](std::int64_t token) { return tokenizer->piece(token) == "<|ms|>"; }));
}

TEST(Tokenizer, WhatIsNoneIsRefused) {
  const TextFiles files;
  EXPECT_THAT(Tokenizer::open(files.write("a.model", "no model")).status().message(),
              HasSubstr("a.model: it is no model of SentencePiece"));
  EXPECT_THAT(Tokenizer::open(files.write("b.model", "")).status().message(), HasSubstr("b.model"));
  EXPECT_THAT(Tokenizer::open("/nowhere.model").status().message(), HasSubstr("/nowhere.model"));
  EXPECT_THAT(Tokenizer::open(files.path("")).status().message(),
              HasSubstr("no tokenizer.model and no tokenizer.json"));
  const auto bytes = trained({.vocabulary = 40});
  ASSERT_TRUE(bytes.ok());
  for (std::size_t size = 0; size < bytes->size();
       size += 37) {  // cut off anywhere: a smaller model or an error
    const auto cut = Tokenizer::from_bytes(bytes->substr(0, size), "cut");
    if (cut.ok()) {
      EXPECT_LE(cut->size(), 40);
    }
  }
}

TEST(Tokenizer, TrainingSaysWhatIsWrong) {
  EXPECT_THAT(trained({.vocabulary = 40}, 0).status().message(), HasSubstr("no text"));
  // What the text does not give is no error: there are fewer tokens.
  EXPECT_LT(Tokenizer::from_bytes(trained({.vocabulary = 100000}).value(), "it").value().size(), 200);
  EXPECT_THAT(trained({.vocabulary = 3}).status().message(),
              HasSubstr("a tokenizer of 3 tokens could not be trained"));
}

}  // namespace
}  // namespace octavo::train
