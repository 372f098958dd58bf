// Tests text files as one sequence, evaluation windows, entropy, and errors.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/text.h"

#include "train/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

namespace octavo_train {
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
  for (const std::size_t count : {0, 1, 2, 3, 499, 700})
    for (std::size_t at = 0; at + count <= text.size(); ++at)
      ASSERT_EQ(read(*corpus, static_cast<std::int64_t>(at), count), text.substr(at, count));
}

TEST(TextCorpus, PiecesOfFiles) {
  const TextFiles files;
  const std::string a = files.write("a", "0123456789"), b = files.write("b", "abcde");
  const std::vector<TextPiece> pieces = {{a, 2, 5}, {b, 3, 3}, {b, 0, 5}, {a, 9, 10}};
  const auto corpus = TextCorpus::open(pieces);
  ASSERT_TRUE(corpus.ok()) << corpus.status().message();
  EXPECT_EQ(read(*corpus, 0, 9), "234abcde9");
  EXPECT_EQ(read(*corpus, 2, 3), "4ab");
  const std::vector<TextPiece> beyond = {{b, 0, 6}};
  EXPECT_EQ(TextCorpus::open(beyond).status().message(), b + ": has 5 bytes, expected 6; it has shrunk");
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
  std::filesystem::remove(files.path("a"));  // the mapping outlives the file's name
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

// The kernel answers a read past the file's new end with SIGBUS, which would end the process without a
// message.
TEST(TextCorpus, AFileThatWasShortenedIsAnErrorAndNoSignal) {
  const TextFiles files;
  const std::size_t size = std::size_t{1} << 20;
  const std::string first = files.write("first", "0123"), path = files.write("a", numbered(size));
  const auto corpus = TextCorpus::open(Paths{first, path});
  ASSERT_TRUE(corpus.ok());
  ASSERT_EQ(read(*corpus, 4, 16), numbered(16));
  std::filesystem::resize_file(path, 100);
  const auto error_of = [&] {
    try {
      read(*corpus, 4 + (std::int64_t{1} << 19), 512);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string expected =
      path +
      ": has 100 bytes, expected at least 524800; it was shortened while it was in use. Restore it, then "
      "start again";
  std::vector<std::string> messages(4);
  std::vector<std::thread> threads;
  for (std::string& message : messages) threads.emplace_back([&] { message = error_of(); });
  for (std::thread& each : threads) each.join();
  EXPECT_THAT(messages, ::testing::Each(expected));
  EXPECT_EQ(error_of(), expected);
  EXPECT_EQ(read(*corpus, 0, 8), "0123" + numbered(4)) << "other bytes are read as before";
  // The file grows again, but its former bytes are lost: they are zero.
  std::filesystem::resize_file(path, size);
  EXPECT_EQ(error_of(), "no error");
}

TEST(TextCorpus, ABusErrorElsewhereEndsTheProcess) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "AddressSanitizer handles the signal and exits, ThreadSanitizer delays it";
#endif
  const TextFiles files;
  const std::string path = files.write("a", numbered(std::size_t{1} << 16));
  const auto corpus = TextCorpus::open(Paths{path});
  ASSERT_TRUE(corpus.ok());
  ASSERT_EQ(read(*corpus, 0, 4), numbered(4));
  EXPECT_EXIT(std::raise(SIGBUS), ::testing::KilledBySignal(SIGBUS), "");
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
  EXPECT_DOUBLE_EQ(estimated_unigram_entropy(TextRange{*corpus, 0, 200000}), quarter) << "all of a small one";
}

// The text is 32 MiB of 'a' except for four bytes: two in the first and the last 64 KiB, which are sampled,
// and two between the sampled pieces.
TEST(UnigramEntropy, OfALargeRangeIsEstimated) {
  const TextFiles files;
  constexpr std::int64_t kSize = 32 << 20, kLooked = 16 << 20;
  std::string text(kSize, 'a');
  text[0] = text[kSize - (200 << 10)] = text[kSize - 1] = text[100 << 10] = 'b';
  const auto corpus = TextCorpus::open(Paths{files.write("t", text)});
  ASSERT_TRUE(corpus.ok());
  const auto entropy = [](double share) {
    return -share * std::log(share) - (1 - share) * std::log(1 - share);
  };
  const TextRange all{*corpus, 0, kSize};
  EXPECT_DOUBLE_EQ(unigram_entropy(all), entropy(4.0 / kSize));
  const double estimate = estimated_unigram_entropy(all);
  EXPECT_GE(estimate, entropy(1.0 / kLooked)) << "the first piece is looked at";
  EXPECT_LE(estimate, entropy(3.0 / kLooked)) << "not all is looked at";
}

}  // namespace
}  // namespace octavo_train
