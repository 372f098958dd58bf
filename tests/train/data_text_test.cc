// Text files as one sequence, what is held out, windows to evaluate on, entropy; and errors.
// SPDX-License-Identifier: MIT
#include "train/data/text.h"

#include "train/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace octavo::train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Paths = std::vector<std::string>;

std::string read(const TextCorpus& corpus, std::int64_t offset, std::size_t count) {
  std::vector<std::uint8_t> out(count);
  corpus.read(offset, out);
  return {out.begin(), out.end()};
}

TEST(TextCorpus, FilesFollowEachOther) {
  const TextFiles files;
  const std::string text = numbered(1000);
  const Paths paths = {files.write("a", text.substr(0, 1)), files.write("b", text.substr(1, 500)),
                       files.write("c", text.substr(501, 1)), files.write("d", text.substr(502))};
  const auto corpus = TextCorpus::open(paths);
  ASSERT_TRUE(corpus.ok()) << corpus.status().message();
  ASSERT_EQ(corpus->size(), 1000);
  for (const std::size_t count : {0, 1, 2, 3, 499, 700}) {
    for (std::size_t at = 0; at + count <= text.size(); ++at) {
      ASSERT_EQ(read(*corpus, static_cast<std::int64_t>(at), count), text.substr(at, count));
    }
  }
}

TEST(TextCorpus, CopiesShareTheMaps) {
  const TextFiles files;
  TextCorpus copy;
  EXPECT_EQ(copy.size(), 0);
  {
    const auto corpus = TextCorpus::open(Paths{files.write("a", "hello")});
    ASSERT_TRUE(corpus.ok());
    copy = *corpus;
  }
  std::filesystem::remove(files.path("a"));  // the map outlives the name
  EXPECT_EQ(read(copy, 1, 4), "ello");
}

TEST(TextCorpus, ErrorsNameTheFile) {
  const TextFiles files;
  const std::string good = files.write("good", "text");
  const auto error = [&](const std::string& path) {
    return TextCorpus::open(Paths{good, path}).status().message();
  };
  EXPECT_EQ(error(files.path("none")), files.path("none") + ": cannot open: No such file or directory");
  EXPECT_EQ(error(files.write("empty", "")), files.path("empty") + ": is empty; name a file with text");
  EXPECT_THAT(error(files.path("")), HasSubstr("is a folder"));
  EXPECT_THAT(error("/dev/null"), StartsWith("/dev/null: is a pipe or a device"));
}

TEST(SplitText, HoldsOutTheEnd) {
  const TextFiles files;
  const auto held_out = [&](std::size_t size, std::int64_t block_size) {
    const auto split = split_text(Paths{files.write("t", std::string(size, 'x'))}, std::nullopt, block_size);
    EXPECT_TRUE(split.ok()) << split.status().message();
    EXPECT_EQ(split->train.begin, 0);
    EXPECT_EQ(split->train.end, split->validation.begin);
    EXPECT_EQ(split->validation.end, static_cast<std::int64_t>(size));
    EXPECT_GE(split->train.size(), block_size + 1);
    return split->validation.size();
  };
  EXPECT_EQ(held_out(1009, 8), 100);
  EXPECT_EQ(held_out(50, 8), 9);  // a tenth has no room for a window
  EXPECT_EQ(held_out(18, 8), 9);
  EXPECT_EQ(held_out(std::size_t{100} << 20, 8), std::int64_t{8} << 20);
}

TEST(SplitText, ValidationOfItsOwn) {
  const TextFiles files;
  const auto split = split_text(Paths{files.write("t", "training")}, Paths{files.write("v", "other")}, 4);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_EQ(split->train.size(), 8);
  EXPECT_EQ(read(split->validation.corpus, 0, 5), "other");
}

TEST(SplitText, ErrorsGiveSizesAndTheMinimum) {
  const TextFiles files;
  const std::string ten = files.write("ten", "0123456789");
  const auto error = [](const Paths& train, const std::optional<Paths>& validation, std::int64_t block) {
    return split_text(train, validation, block).status().message();
  };
  EXPECT_EQ(
      error({ten}, std::nullopt, 5),
      "data.train: " + ten +
          ": 10 bytes are too few for a block_size of 5, which takes 12 where data.validation is null and "
          "a part is held out for it; use more text or a smaller data.block_size");
  EXPECT_EQ(error({ten, ten}, Paths{ten}, 10),
            "data.validation: " + ten +
                ": 10 bytes are too few for a block_size of 10, which takes 11; use more text or a smaller "
                "data.block_size");
  EXPECT_THAT(error({ten}, Paths{ten}, 10), StartsWith("data.train: " + ten + ": 10 bytes"));
  EXPECT_EQ(error({ten}, Paths{ten}, 9), "");
  EXPECT_THAT(error({}, std::nullopt, 1), StartsWith("data.train: no files"));
  EXPECT_THAT(error({ten}, Paths{files.path("none")}, 1),
              StartsWith("data.validation: " + files.path("none")));
}

TEST(SampleCount, WindowsAndTheirLastTarget) {
  const auto count = [](std::int64_t size, std::int64_t block, std::int64_t limit) {
    return sample_count({{}, 5, 5 + size}, block, limit);
  };
  EXPECT_EQ(count(0, 4, -1), 0);
  EXPECT_EQ(count(4, 4, -1), 0);
  EXPECT_EQ(count(5, 4, -1), 1);
  EXPECT_EQ(count(8, 4, -1), 1);
  EXPECT_EQ(count(9, 4, -1), 2);
  EXPECT_EQ(count(100, 4, 7), 7);
  EXPECT_EQ(count(100, 4, 1000), 24);
}

TEST(EvaluationOffsets, InOrderAndEvenlySpread) {
  using Offsets = std::vector<std::int64_t>;
  const TextRange range{{}, 5, 5 + 41};  // ten windows of four
  EXPECT_EQ(evaluation_offsets(range, 4, -1), (Offsets{5, 9, 13, 17, 21, 25, 29, 33, 37, 41}));
  EXPECT_EQ(evaluation_offsets(range, 4, 99), evaluation_offsets(range, 4, -1));
  EXPECT_EQ(evaluation_offsets(range, 4, 1), (Offsets{5}));
  EXPECT_EQ(evaluation_offsets(range, 4, 3), (Offsets{5, 17, 29}));                 // 0, 3, 6
  EXPECT_EQ(evaluation_offsets(range, 4, 7), (Offsets{5, 9, 13, 21, 25, 33, 37}));  // 0, 1, 2, 4, 5, 7, 8
  EXPECT_EQ(evaluation_offsets({{}, 0, 4}, 4, -1), Offsets{});
}

TEST(UnigramEntropy, OfBytesAndOfRanges) {
  std::vector<std::uint8_t> bytes(256);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  EXPECT_NEAR(unigram_entropy(bytes), std::log(256), 256 * 0x1p-50);  // an ulp of the sum per term
  EXPECT_EQ(unigram_entropy(std::span(bytes).first(1)), 0);
  EXPECT_EQ(unigram_entropy(std::span(bytes).first(0)), 0);
  const TextFiles files;
  std::string text(200000, 'a');
  for (std::size_t i = 0; i < text.size(); i += 4) text[i] = 'b';
  const auto corpus = TextCorpus::open(Paths{files.write("t", text)});
  ASSERT_TRUE(corpus.ok());
  const double quarter = -0.25 * std::log(0.25) - 0.75 * std::log(0.75);
  EXPECT_DOUBLE_EQ(unigram_entropy(TextRange{*corpus, 0, 200000}), quarter);
  EXPECT_DOUBLE_EQ(unigram_entropy(TextRange{*corpus, 1, 4}), 0);
}

}  // namespace
}  // namespace octavo::train
