// SentencePiece models: trained, opened, there and back; and what is none.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer.h"

#include "speech/nemo_yaml.h"
#include "train/tasks/speech/archive_tokenizer.h"
#include "train/tasks/speech/base64.h"
#include "train/tasks/speech/tokenizer_json.h"
#include "train/text_files.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
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

// tokenizer.json has all of a model: text is the same tokens through it.
TEST(TokenizerJson, ThereAndBack) {
  for (const TokenizerPlan& plan : {TokenizerPlan{.vocabulary = 60, .symbols = {"<|ms|>"}},
                                    TokenizerPlan{.vocabulary = 60, .kind = "unigram"},
                                    TokenizerPlan{.vocabulary = 330, .byte_fallback = true}}) {
    const auto first = Tokenizer::from_bytes(trained(plan).value(), "first").value();
    const PieceModel model = read_piece_model(first.bytes(), "first").value();
    ASSERT_EQ(std::ssize(model.pieces), first.size());
    EXPECT_EQ(model.byte_fallback, plan.byte_fallback);
    EXPECT_FALSE(model.charsmap.empty());
    const std::string json = write_tokenizer_json(model, "<pad>").value();
    const auto second = Tokenizer::from_bytes(json, "second");
    ASSERT_TRUE(second.ok()) << second.status().message();
    ASSERT_EQ(second->size(), first.size());
    for (std::int64_t i = 0; i < first.size(); ++i) {
      ASSERT_EQ(second->piece(i), first.piece(i));
      ASSERT_EQ(second->is_unknown(i), first.is_unknown(i));
    }
    for (const std::string& text : {sentence(3), std::string("  Three\u00a0 BLUE ﬁne <|ms|> 三x "),
                                    std::string("boats,häuserhäuser")}) {
      EXPECT_EQ(second->encode(text), first.encode(text)) << text;
      EXPECT_EQ(second->decode(second->encode(text)), first.decode(first.encode(text)));
    }
    // The model itself comes back, but for scores of BPE, of which the order counts.
    const PieceModel back = read_tokenizer_json(json, "back").value();
    EXPECT_EQ(back.charsmap, model.charsmap);
    EXPECT_EQ(back.algorithm, model.algorithm);
    EXPECT_EQ(back.add_dummy_prefix, model.add_dummy_prefix);
    for (std::size_t i = 0; i < model.pieces.size(); ++i)
      EXPECT_EQ(back.pieces[i].kind, model.pieces[i].kind) << model.pieces[i].text;
    EXPECT_EQ(write_piece_model(read_piece_model(write_piece_model(back), "x").value()),
              write_piece_model(back));
  }
}

TEST(TokenizerJson, WhatWouldBeLostIsRefused) {
  using Json = nlohmann::ordered_json;
  const std::string bytes = trained({.vocabulary = 60}).value();
  const Json good = Json::parse(write_tokenizer_json(read_piece_model(bytes, "it").value(), "<pad>").value());
  const auto problem = [](const Json& json) {
    return Tokenizer::from_bytes(json.dump(), "t.json").status().message();
  };
  EXPECT_EQ(problem(good), "");
  const auto with = [&](const char* pointer, const Json& value) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    return problem(json);
  };
  EXPECT_THAT(
      with("/model/type", "WordPiece"),
      AllOf(HasSubstr("t.json: it cannot be read as a SentencePiece model without loss: the model WordPiece"),
            HasSubstr("model.tokenizer.model: PATH")));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("the normalizer Lowercase"));
  EXPECT_THAT(with("/normalizer/normalizers/0/precompiled_charsmap", "?"), HasSubstr("not in base 64"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "ByteLevel"}}), HasSubstr("the pre-tokenizer ByteLevel"));
  EXPECT_THAT(with("/model/unk_token", "none"), HasSubstr("no token stands for the unknown"));
  EXPECT_THAT(with("/model/vocab/<unk>", 5), HasSubstr("the numbers of its vocabulary are not 0 to"));
  Json json = good;
  std::swap(json["model"]["merges"].front(), json["model"]["merges"].back());
  EXPECT_THAT(problem(json), HasSubstr("its merges are not in the order of the vocabulary"));
  EXPECT_THAT(with("/model/merges", Json::array({Json::array({"q", "q"})})),
              HasSubstr("a merge makes \"qq\""));
  EXPECT_THAT(with("/model", nullptr), HasSubstr("t.json"));
  EXPECT_THAT(Tokenizer::from_bytes("{", "t.json").status().message(),
              HasSubstr("t.json: it is no tokenizer.json"));
  EXPECT_FALSE(
      write_tokenizer_json(
          read_piece_model(trained({.vocabulary = 60, .kind = "char"}).value(), "it").value(), "<pad>")
          .ok());
}

// A NeMo config whose vocabulary has so many tokens.
std::string yaml_of(std::int64_t tokens, const std::string& tokenizer) {
  std::string out = nemo_yaml();
  const auto replace = [&](const std::string& from, const std::string& to) {
    const std::size_t at = out.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    out.replace(at, from.size(), to);
  };
  replace("vocab_size: 3", "vocab_size: " + std::to_string(tokens));
  replace("num_classes: 3", "num_classes: -1");
  replace("  vocabulary: [a, b, <pad>]\n", "");
  replace("labels: [a, b, <pad>]\n", "");
  return out + tokenizer;
}

TEST(ArchiveTokenizer, IsTheOneThatTheConfigNames) {
  const TextFiles files;
  const std::string bytes = trained({.vocabulary = 40}).value();
  const std::int64_t size = Tokenizer::from_bytes(bytes, "it").value().size();
  const auto problem = [&](std::int64_t tokens, const std::string& tokenizer,
                           const std::map<std::string, std::string>& others) {
    const std::string path = files.path("a.nemo");
    EXPECT_TRUE(write_nemo(path, yaml_of(tokens, tokenizer), {}, others).ok());
    const auto archive = SpeechArchive::open(path);
    EXPECT_TRUE(archive.ok()) << archive.status().message();
    const auto found = archive_tokenizer(*archive);
    if (found.ok()) {
      EXPECT_EQ(found->bytes(), bytes);
    }
    return found.status().message();
  };
  const std::string named = "tokenizer: {dir: /gone, type: bpe, model_path: 'nemo:0a_it.model'}\n";
  EXPECT_EQ(problem(size, named, {{"0a_it.model", bytes}, {"0b_tokenizer.model", "other"}}), "");
  EXPECT_EQ(problem(size, "", {{"0b_tokenizer.model", bytes}}), "");
  EXPECT_THAT(problem(size, named, {}),
              AllOf(HasSubstr("tokenizer.model_path: 0a_it.model is not in the archive"),
                    HasSubstr("model.tokenizer.model: PATH")));
  EXPECT_THAT(problem(size, "tokenizer: {type: agg}\n", {}),
              HasSubstr("tokenizer.type: got agg, expected bpe"));
  EXPECT_THAT(problem(size + 1, named, {{"0a_it.model", bytes}}),
              HasSubstr(std::to_string(size) + " tokens, but the model has " + std::to_string(size + 1)));
  EXPECT_THAT(problem(size, named, {{"0a_it.model", "x"}}),
              HasSubstr("a.nemo: 0a_it.model: it is no model of SentencePiece"));
}

TEST(PieceModel, BytesThatAreNoModelAreErrors) {
  const std::string good = trained({.vocabulary = 60}).value();
  std::uint64_t state = 5;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    for (int change = 0; change < 3; ++change) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      bytes[(state >> 33) % bytes.size()] = static_cast<char>(state >> 20);
    }
    bytes.erase(bytes.size() - static_cast<std::size_t>(i) % 50);
    const auto model = read_piece_model(bytes, "it");  // nothing but an answer is expected
    if (model.ok()) {
      EXPECT_FALSE(model->pieces.empty());
    }
  }
  EXPECT_FALSE(read_piece_model("", "it").ok());
}

TEST(Base64, KnownTexts) {
  EXPECT_EQ(base64_encoded("Octavo"), "T2N0YXZv");
  EXPECT_EQ(base64_encoded("Octav"), "T2N0YXY=");
  EXPECT_EQ(base64_encoded("Octa"), "T2N0YQ==");
  for (const std::string& bytes : {std::string("Octa"), std::string("\0\xff\x80", 3), std::string("12345")})
    EXPECT_EQ(base64_decoded(base64_encoded(bytes)), bytes);
  for (const char* bad : {"A", "A===", "=AAA", "AA=A", "AAAA=", "AA==AAAA", "A?AA"})
    EXPECT_FALSE(base64_decoded(bad)) << bad;
}

}  // namespace
}  // namespace octavo::train
