// Tests SentencePiece models: training, opening, round trips, and invalid models.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include "tests/speech/nemo_yaml.h"
#include "tests/train/text_files.h"
#include "train/base/base64.h"
#include "train/io/json_depth.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/tokenizer/piece_model.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

namespace octavo_train {
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

Result<std::string> trained(const TokenizerOptions& plan, int lines = 300) {
  int line = 0;
  return train_tokenizer(plan, [&](std::string& out) {
    out = sentence(line);
    return line++ < lines;
  });
}

TEST(Tokenizer, TextsThereAndBack) {
  for (const char* kind : {"bpe", "unigram", "char"}) {
    const auto bytes = trained({.vocabulary = 40, .kind = kind}).value();
    EXPECT_EQ(*trained({.vocabulary = 40, .kind = kind}), bytes) << "the same lines, the same bytes";
    const TextFiles files;
    const std::string path = files.write("tokenizer.model", bytes);
    auto opened = Tokenizer::open(path).value();
    const Tokenizer tokenizer = std::move(opened);
    EXPECT_LE(tokenizer.size(), 40);
    EXPECT_EQ(tokenizer.bytes(), bytes);
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
    // A folder can be opened, too, like NeMo's tokenizer.dir.
    EXPECT_TRUE(Tokenizer::open(files.path("")).ok());
  }
}

TEST(Tokenizer, BytesStandInForCharacters) {
  const auto bytes =
      trained({.vocabulary = 300, .byte_fallback = true, .symbols = {"<|ms|>", "boats"}}).value();
  const auto tokenizer = Tokenizer::from_bytes(bytes, "it").value();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("three 三 boats")), "three 三 boats");
  const auto tokens = tokenizer.encode("<|ms|>");
  EXPECT_TRUE(
      std::ranges::any_of(tokens, [&](std::int64_t token) { return tokenizer.piece(token) == "<|ms|>"; }));
}

TEST(Tokenizer, WhatIsNoneIsRefused) {
  const TextFiles files;
  EXPECT_THAT(Tokenizer::open(files.write("a.model", "no model")).status().message(),
              HasSubstr("a.model: it is not a SentencePiece model"));
  EXPECT_THAT(Tokenizer::open(files.write("b.model", "")).status().message(), HasSubstr("b.model"));
  EXPECT_THAT(Tokenizer::open("/nowhere.model").status().message(), HasSubstr("/nowhere.model"));
  EXPECT_THAT(Tokenizer::open(files.path("")).status().message(),
              HasSubstr("no tokenizer.model and no tokenizer.json"));
  const auto bytes = trained({.vocabulary = 40}).value();
  for (std::size_t size = 0; size < bytes.size();
       size += 37) {  // truncated anywhere: a smaller model or an error
    const auto cut = Tokenizer::from_bytes(bytes.substr(0, size), "cut");
    if (cut.ok()) {
      EXPECT_LE(cut->size(), 40);
    }
  }
}

TEST(Tokenizer, TrainingSaysWhatIsWrong) {
  EXPECT_THAT(trained({.vocabulary = 40}, 0).status().message(), HasSubstr("no text"));
  // A text with too few pieces is not an error: the model has fewer tokens.
  EXPECT_LT(Tokenizer::from_bytes(trained({.vocabulary = 100000}).value(), "it").value().size(), 200);
  EXPECT_THAT(trained({.vocabulary = 3}).status().message(),
              HasSubstr("a tokenizer of 3 tokens could not be trained"));
}

// tokenizer.json contains the complete model: a text gives the same tokens with it.
TEST(TokenizerJson, ThereAndBack) {
  for (const TokenizerOptions& plan : {TokenizerOptions{.vocabulary = 60, .symbols = {"<|ms|>"}},
                                       TokenizerOptions{.vocabulary = 60, .kind = "unigram"},
                                       TokenizerOptions{.vocabulary = 330, .byte_fallback = true}}) {
    const auto first = Tokenizer::from_bytes(trained(plan).value(), "first").value();
    const PieceModel model = read_piece_model(first.bytes(), "first").value();
    ASSERT_EQ(std::ssize(model.pieces), first.size());
    EXPECT_EQ(model.byte_fallback, plan.byte_fallback);
    EXPECT_FALSE(model.charsmap.empty());
    const std::string json = write_tokenizer_json(model, "<pad>").value();
    const auto second = Tokenizer::from_bytes(json, "second").value();
    ASSERT_EQ(second.size(), first.size());
    for (std::int64_t i = 0; i < first.size(); ++i) {
      ASSERT_EQ(second.piece(i), first.piece(i));
      ASSERT_EQ(second.is_unknown(i), first.is_unknown(i));
    }
    for (const std::string& text : {sentence(3), std::string("  Three\u00a0 BLUE ﬁne <|ms|> 三x "),
                                    std::string("boats,häuserhäuser")}) {
      EXPECT_EQ(second.encode(text), first.encode(text)) << text;
      EXPECT_EQ(second.decode(second.encode(text)), first.decode(first.encode(text)));
    }
    // The model survives the round trip, except for BPE scores, of which only the order matters.
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
  EXPECT_THAT(with("/model/unk_token", "none"), HasSubstr("exactly one token must be the unknown token"));
  EXPECT_THAT(with("/model/vocab/<unk>", 5), HasSubstr("the numbers of its vocabulary are not 0 to"));
  Json json = good;
  std::swap(json["model"]["merges"].front(), json["model"]["merges"].back());
  EXPECT_THAT(problem(json), HasSubstr("its merges are not in the order of the vocabulary"));
  EXPECT_THAT(with("/model/merges", Json::array({Json::array({"q", "q"})})),
              HasSubstr("a merge makes \"qq\""));
  EXPECT_THAT(with("/model", nullptr), HasSubstr("t.json"));
  EXPECT_THAT(Tokenizer::from_bytes("{", "t.json").status().message(),
              HasSubstr("t.json: it is not a tokenizer.json"));
  EXPECT_FALSE(
      write_tokenizer_json(
          read_piece_model(trained({.vocabulary = 60, .kind = "char"}).value(), "it").value(), "<pad>")
          .ok());
}

// Returns a NeMo config with a vocabulary of `tokens` tokens.
std::string yaml_of(std::int64_t tokens, const std::string& tokenizer) {
  std::string out = replaced(nemo_yaml(), "vocab_size: 3", "vocab_size: " + std::to_string(tokens));
  out = replaced(out, "num_classes: 3", "num_classes: -1");
  out = replaced(out, "  vocabulary: [a, b, <pad>]\n", "");
  return replaced(out, "labels: [a, b, <pad>]\n", "") + tokenizer;
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
              HasSubstr("a.nemo: 0a_it.model: it is not a SentencePiece model"));
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
    const auto model = read_piece_model(bytes, "it");  // any result without a crash is correct
    if (model.ok()) {
      EXPECT_FALSE(model->pieces.empty());
    }
  }
  EXPECT_FALSE(read_piece_model("", "it").ok());
}

// The in-memory format is the trie's size, its 32-bit units, and the texts.
struct Charsmap {
  std::vector<std::uint32_t> units;
  std::string texts;

  static Charsmap of(const std::string& bytes) {
    std::uint32_t size = 0;
    std::memcpy(&size, bytes.data(), 4);
    Charsmap out;
    out.units.resize(size / 4);
    std::memcpy(out.units.data(), bytes.data() + 4, size);
    out.texts = bytes.substr(4 + size);
    return out;
  }
  [[nodiscard]] std::string bytes() const {
    const auto size = static_cast<std::uint32_t>(4 * units.size());
    std::string out(4 + std::size_t{size}, '\0');
    std::memcpy(out.data(), &size, 4);
    std::memcpy(out.data() + 4, units.data(), size);
    return out + texts;
  }
};

std::string charsmap_problem(const Charsmap& charsmap) { return check_charsmap(charsmap.bytes()).message(); }

// SentencePiece follows the trie without bounds checks, so that bad units can make it read outside the trie.
TEST(Charsmap, RandomUnitsAreRefusedOrHarmless) {
  PieceModel model = read_piece_model(trained({.vocabulary = 60}).value(), "it").value();
  const Charsmap good = Charsmap::of(model.charsmap);
  ASSERT_GT(good.units.size(), 10000U);
  EXPECT_EQ(charsmap_problem(good), "");
  // The text includes characters that are normalized.
  std::string text = "three \xEF\xBC\xA1\xC2\xBD\xE3\x8D\xBB boats";
  for (int byte = 1; byte < 256; ++byte) text += static_cast<char>(byte);
  std::uint64_t state = 11;
  const auto random = [&] { return (state = state * 6364136223846793005U + 1442695040888963407U) >> 32; };
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    Charsmap bad = good;
    // The changes are in blocks that lookups often use; the first of them is the root's block.
    for (int change = 0; change < 1 << i % 10; ++change) {
      const std::size_t block = i % 2 == 0 ? 256 * (bad.units[0] >> 18) : 0;
      const std::size_t range = block == 0 ? bad.units.size() : 256;
      bad.units[(block + random() % range) % bad.units.size()] = static_cast<std::uint32_t>(random());
    }
    model.charsmap = bad.bytes();
    const auto opened = Tokenizer::from_bytes(write_piece_model(model), "bad.model");
    if (opened.ok()) {
      (void)opened->encode(text);
    } else {
      EXPECT_THAT(opened.status().message(),
                  HasSubstr("bad.model: its precompiled_charsmap is damaged: its "));
      ++refused;
    }
  }
  EXPECT_GT(refused, 40);
  EXPECT_LT(refused, 400);
}

TEST(Charsmap, WhatIsWrongIsSaid) {
  // Unit 0 leads to base 256. There the byte `a` has a text and leads to base 512.
  Charsmap small{std::vector<std::uint32_t>(768), std::string("b\0", 2)};
  const auto unit = [](std::uint32_t offset, std::uint32_t leaf, std::uint32_t label) {
    return offset << 10 | leaf << 8 | label;
  };
  std::ranges::fill(small.units, 1);  // a label that no unit matches
  small.units[257] = 2;
  small.units[513] = 2;
  small.units[0] = unit(256, 0, 0);
  small.units[256 + 'a'] = unit((256 + 'a') ^ 512, 1, 'a');
  small.units[512] = 0x80000000U;  // the text at byte 0
  EXPECT_EQ(charsmap_problem(small), "");
  const auto with = [&](std::size_t place, std::uint32_t value) {
    Charsmap bad = small;
    bad.units[place] = value;
    return charsmap_problem(bad);
  };
  EXPECT_THAT(with(0, unit(1024, 0, 0)), HasSubstr("its trie leads to unit 1279 of 768"));
  EXPECT_THAT(with(512, 0x80000002U), HasSubstr("its trie refers to byte 2 of the 2 bytes of texts"));
  EXPECT_THAT(with(256 + 'a', unit('a', 1, 'a')), HasSubstr("its trie has a cycle"));
  EXPECT_THAT(with(512 + 'b', unit((512 + 'b') ^ 256, 0, 'b')), HasSubstr("its trie has a cycle"));
  Charsmap bad = small;
  bad.texts.pop_back();
  EXPECT_THAT(charsmap_problem(bad), HasSubstr("its last text has no end"));
  bad = small;
  bad.units.clear();
  EXPECT_THAT(charsmap_problem(bad), HasSubstr("its trie is empty"));
  EXPECT_THAT(check_charsmap("abc").message(), HasSubstr("it has 3 bytes"));
  EXPECT_THAT(check_charsmap(std::string("\x00\x01\x00\x00", 4) + "abcd").message(),
              HasSubstr("its trie has 256 bytes, expected a multiple of 4 up to 4"));
  // SentencePiece has space for 32 texts per path. The path is a sequence of bytes `a`, base by base.
  for (const std::uint32_t texts : {32U, 33U}) {
    Charsmap chain{std::vector<std::uint32_t>(256 * (std::size_t{texts} + 2), 1), std::string(1, '\0')};
    chain.units[0] = unit(256, 0, 0);
    for (std::uint32_t i = 1; i <= texts; ++i) {
      const std::uint32_t base = 256 * i, next = base + 256;
      chain.units[base + 1] = 2;
      chain.units[base + 'a'] = unit((base + 'a') ^ next, 1, 'a');
      chain.units[next] = 0x80000000U;
    }
    chain.units[256 * (texts + 1) + 1] = 2;
    EXPECT_EQ(charsmap_problem(chain).empty(), texts == 32) << charsmap_problem(chain);
  }
  // The denormalizer's map is checked too, and the last map in a message takes effect.
  PieceModel model = read_piece_model(trained({.vocabulary = 60}).value(), "it").value();
  const std::string bytes = write_piece_model(model);
  model.charsmap = small.bytes();
  EXPECT_TRUE(read_piece_model(write_piece_model(model), "it").ok());
  bad = small;
  bad.units[0] = unit(1024, 0, 0);
  const auto message = [](int field, const std::string& content) {
    const std::size_t size = content.size();
    return std::string{static_cast<char>(field << 3 | 2), static_cast<char>((size & 0x7F) | 0x80),
                       static_cast<char>(size >> 7)} +
           content;
  };
  for (const int field : {3, 5}) {
    EXPECT_THAT(read_piece_model(bytes + message(field, message(2, bad.bytes())), "it").status().message(),
                HasSubstr("it: its precompiled_charsmap is damaged"));
  }
}

TEST(TokenizerJson, DeepNestingIsRefused) {
  const std::string deep =
      "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": " + std::string(200000, '[') +
      std::string(200000, ']') + "}, \"model\": {\"type\": \"BPE\"}}";
  EXPECT_THAT(
      Tokenizer::from_bytes(deep, "t.json").status().message(),
      HasSubstr("t.json: it is not a tokenizer.json: its values are nested 200002 deep, expected at most "));
  EXPECT_EQ(json_depth(R"({"a[[[[": ["\"[[[", {"b": []}]})"), 4U);
}

TEST(TokenizerJson, MergesThatAreNoPairsAreNamed) {
  for (const std::string merge : {"", "ab", " b", "a "}) {
    const nlohmann::json json = {
        {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b", merge}}}}};
    EXPECT_THAT(Tokenizer::from_bytes(json.dump(), "t.json").status().message(),
                AllOf(HasSubstr("t.json: "), HasSubstr("merge 1 of model.merges is \"" + merge +
                                                       "\", expected two tokens with a space between them")));
  }
}

TEST(TokenizerExport, APieceThatIsNotUtf8IsNamed) {
  PieceModel model = read_piece_model(trained({.vocabulary = 60}).value(), "it").value();
  model.pieces[7].text = "a\xFF";
  const auto tokenizer = Tokenizer::from_bytes(write_piece_model(model), "bad.model").value();
  const std::string said = R"(bad.model: token 7 is "a\xff", which is not UTF-8)";
  EXPECT_THAT(transformers_tokenizer_files(tokenizer, SpeechHead::tdt, 60).status().message(),
              HasSubstr(said));
  EXPECT_THAT(nemo_tokenizer_files(tokenizer).status().message(), HasSubstr(said));
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
}  // namespace octavo_train
