// Tests the files of a text: how they are found, split and recognized again.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/text_files.h"

#include "tests/train/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

namespace octavo_train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Paths = std::vector<std::string>;

std::string read(const TextRange& range) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(range.size()));
  range.corpus.read(range.begin, out);
  return {out.begin(), out.end()};
}

TEST(FindTextFiles, FoldersPatternsAndLists) {
  const TextFiles files;
  for (const char* folder : {"d", "d/b", "d/.git", "e"})
    std::filesystem::create_directory(files.path(folder));
  for (const char* name :
       {"d/c.txt", "d/b/z.txt", "d/a.md", "d/.hidden", "d/.git/x", "one.txt", "two.txt", "a[1]"})
    files.write(name, "text");
  files.write("d/empty.txt", "");
  std::filesystem::create_directory_symlink(files.path("d"), files.path("d/b/back"));
  const auto found = [&](const Paths& entries) {
    auto paths = find_text_files("data.train", entries, Settings());
    EXPECT_TRUE(paths.ok()) << paths.status().message();
    for (std::string& path : *paths) path.erase(0, files.path("").size());
    return *paths;
  };
  EXPECT_THAT(found({files.path("d")}), ElementsAre("d/a.md", "d/b/z.txt", "d/c.txt"));
  EXPECT_THAT(found({files.path("d/")}), ElementsAre("d/a.md", "d/b/z.txt", "d/c.txt"));
  EXPECT_THAT(found({files.path("*.txt")}), ElementsAre("one.txt", "two.txt"));
  EXPECT_THAT(found({files.path("d/*")}), ElementsAre("d/a.md", "d/b/z.txt", "d/c.txt"));
  EXPECT_THAT(found({files.path("two.txt"), files.path("d/[a-c]*.*"), files.path("one.txt")}),
              ElementsAre("two.txt", "d/a.md", "d/c.txt", "one.txt"));
  EXPECT_THAT(found({files.path("a[1]")}), ElementsAre("a[1]")) << "a file of that name comes first";

  const auto error = [](const Paths& entries) {
    return find_text_files("data.train", entries, Settings()).status().message();
  };
  EXPECT_EQ(error({files.path("none")}),
            "data.train: " + files.path("none") + ": cannot open: No such file or directory");
  EXPECT_THAT(error({files.path("*.csv")}), HasSubstr("*.csv: no file matches"));
  EXPECT_THAT(error({files.path("e")}), HasSubstr("/e: the folder has no files (hidden and empty"));
  EXPECT_THAT(error({}), StartsWith("data.train: no files"));
  EXPECT_THAT(error({"none.txt"}),
              AllOf(HasSubstr("; looked at /"), HasSubstr("/none.txt (from the working directory)")));
}

TextRecord recorded(const Paths& train, const std::optional<Paths>& validation, std::int64_t block_size,
                    HoldOut rule = HoldOut::each_file) {
  auto record = record_text(train, validation, block_size, rule);
  EXPECT_TRUE(record.ok()) << record.status().message();
  return record.ok() ? *record : TextRecord();
}

TextSplit opened(const TextRecord& record) {
  auto split = open_split(record);
  EXPECT_TRUE(split.ok()) << split.status().message();
  return split.ok() ? *split : TextSplit();
}

TEST(RecordText, HoldsOutTheEndOfAFile) {
  const TextFiles files;
  const auto held_out = [&](std::size_t size, std::int64_t block_size) {
    const std::string text = numbered(size);
    const TextSplit split = opened(recorded({files.write("t", text)}, std::nullopt, block_size));
    EXPECT_TRUE(read(split.train) + read(split.validation) == text);
    EXPECT_GE(split.train.size(), block_size + 1);
    return split.validation.size();
  };
  EXPECT_EQ(held_out(1009, 8), 100);
  EXPECT_EQ(held_out(50, 8), 9);  // a tenth is less than a window
  EXPECT_EQ(held_out(18, 8), 9);
  EXPECT_EQ(held_out(std::size_t{100} << 20, 8), std::int64_t{8} << 20);
}

std::vector<std::int64_t> held_out_of(const TextRecord& record) {
  std::vector<std::int64_t> out;
  for (const FileRecord& file : record.train) out.push_back(file.held_out);
  return out;
}

TEST(RecordText, HoldsOutTheEndOfEachFile) {
  const TextFiles files;
  const auto write = [&](const std::vector<std::size_t>& sizes) {
    Paths paths;
    for (const std::size_t size : sizes)
      paths.push_back(files.write(std::to_string(paths.size()),
                                  std::string(size, static_cast<char>('a' + paths.size()))));
    return paths;
  };
  const TextRecord three = recorded(write({1000, 3000, 2000}), std::nullopt, 8);
  EXPECT_THAT(held_out_of(three), ElementsAre(100, 300, 200));
  EXPECT_EQ(read(opened(three).validation),
            std::string(100, 'a') + std::string(300, 'b') + std::string(200, 'c'));
  EXPECT_EQ(read(opened(three).train),
            std::string(900, 'a') + std::string(2700, 'b') + std::string(1800, 'c'));
  // Shares smaller than a window, which has 9 bytes, are added up.
  EXPECT_THAT(held_out_of(recorded(write({40, 40, 40, 40, 40}), std::nullopt, 8)),
              ElementsAre(0, 0, 12, 0, 0));
  EXPECT_THAT(held_out_of(recorded(write({40, 400}), std::nullopt, 8)), ElementsAre(0, 44));
  // All files are smaller than a window: the end of all files together is held out.
  EXPECT_THAT(held_out_of(recorded(write({6, 6, 6, 6}), std::nullopt, 8)), ElementsAre(0, 0, 3, 6));
  // Version 0.1 held out the end of all files together.
  EXPECT_THAT(held_out_of(recorded(write({1000, 3000, 200}), std::nullopt, 8, HoldOut::end_of_all)),
              ElementsAre(0, 220, 200));
}

TEST(RecordText, ValidationOfItsOwn) {
  const TextFiles files;
  const TextSplit split =
      opened(recorded({files.write("t", "training")}, Paths{files.write("v", "other")}, 4));
  EXPECT_EQ(read(split.train), "training");
  EXPECT_EQ(read(split.validation), "other");
}

TEST(RecordText, ErrorsGiveSizesAndTheMinimum) {
  const TextFiles files;
  const std::string ten = files.write("ten", "0123456789");
  const auto error = [](const Paths& train, const std::optional<Paths>& validation, std::int64_t block) {
    return record_text(train, validation, block).status().message();
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
  EXPECT_THAT(error({ten}, Paths{files.path("none")}, 1),
              StartsWith("data.validation: " + files.path("none")));
  EXPECT_EQ(error({ten, files.write("empty", "")}, std::nullopt, 1),
            "data.train: " + files.path("empty") + ": is empty; name a file with text");
  EXPECT_THAT(error(Paths(6, ten), std::nullopt, 50), HasSubstr(ten + " and 2 more: 60 bytes"));
}

TEST(Fingerprint, SeesEveryByteOfASmallFileAndBothEndsOfALargeOne) {
  const TextFiles files;
  std::string text = numbered(std::size_t{5} << 20);
  const auto of = [&](const std::string& bytes, std::size_t size) {
    return fingerprint(files.write("f", bytes), static_cast<std::int64_t>(size)).value();
  };
  const std::string large = of(text, text.size()), small = of(text, 4096);
  EXPECT_NE(large, small);
  for (const std::size_t at : {std::size_t{0}, std::size_t{2000}, std::size_t{4095}, text.size() - 1}) {
    std::string other = text;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_NE(of(other, text.size()), large) << at;
    EXPECT_EQ(of(other, 4096) == small, at >= 4096) << at;
  }
  EXPECT_EQ(of(text + "more", text.size()), large) << "what follows does not count";
  EXPECT_FALSE(fingerprint(files.path("f"), std::int64_t{6} << 20).ok());
}

// Compares a text of two files with its earlier record.
class CompareText : public ::testing::Test {
 protected:
  TextChange compared(const Paths& paths, const std::optional<Paths>& validation = std::nullopt) {
    auto change = compare_text(then_, recorded(paths, validation, 8));
    EXPECT_TRUE(change.ok());
    return *change;
  }

  TextFiles files_;
  std::string a_ = files_.write("a", numbered(1000)), b_ = files_.write("b", std::string(500, 'b'));
  TextRecord then_ = recorded({a_, b_}, std::nullopt, 8);
};

TEST_F(CompareText, TheSameOneAndOneThatMoved) {
  EXPECT_EQ(compared({a_, b_}).record, then_);
  EXPECT_THAT(compared({a_, b_}).changed, IsEmpty());
  std::filesystem::rename(a_, files_.path("elsewhere"));
  const TextChange moved = compared({files_.path("elsewhere"), b_});
  EXPECT_THAT(moved.changed, IsEmpty());
  EXPECT_EQ(moved.record.train[0].path, files_.path("elsewhere"));
  EXPECT_EQ(moved.record.train[0].held_out, then_.train[0].held_out);
}

TEST_F(CompareText, OneThatHasGrownKeepsItsDivision) {
  const std::string before = read(opened(then_).train), held_out = read(opened(then_).validation);
  files_.write("a", numbered(1000) + std::string(5000, 'x'));
  const TextChange grown = compared({a_, b_});
  EXPECT_THAT(grown.changed, IsEmpty());
  EXPECT_THAT(grown.grown,
              ElementsAre("data.train: " + a_ +
                          " has grown from 1000 to 6000 bytes; this run still uses the first 1000"));
  EXPECT_EQ(grown.record, then_);
  EXPECT_EQ(read(opened(grown.record).train), before);
  EXPECT_EQ(read(opened(grown.record).validation), held_out);
}

TEST_F(CompareText, AnotherOneIsSaid) {
  std::string other = numbered(1000);
  other[500] = static_cast<char>(other[500] ^ 1);
  files_.write("a", other);
  EXPECT_THAT(compared({a_, b_}).changed,
              ElementsAre(AllOf(
                  StartsWith("data.train: " + a_ + " had 1000 bytes with the hash " + then_.train[0].hash),
                  HasSubstr("and has 1000 bytes with the hash "))));
  files_.write("a", numbered(900));
  EXPECT_THAT(compared({a_, b_}).changed, ElementsAre(HasSubstr("and has 900 bytes")));
  files_.write("a", numbered(1000));
  EXPECT_THAT(compared({b_, a_}).changed, ElementsAre("data.train: the files have another order"));
  EXPECT_THAT(compared({a_}).changed, ElementsAre("data.train: " + b_ + " is missing"));
  // A new file gets its own split; the other files keep theirs.
  const std::string c = files_.write("c", std::string(2000, 'c'));
  const TextChange more = compared({a_, c, b_});
  EXPECT_THAT(more.changed, ElementsAre("data.train: " + c + " is new"));
  EXPECT_EQ(more.record.train[0], then_.train[0]);
  EXPECT_EQ(more.record.train[1].held_out, 200);
  EXPECT_EQ(more.record.train[2], then_.train[1]);
}

TEST_F(CompareText, ValidationFilesComeOrGo) {
  const std::string v = files_.write("v", "validation");
  const TextChange come = compared({a_, b_}, Paths{v});
  EXPECT_THAT(come.changed, ElementsAre(HasSubstr("was held out, and now there are files")));
  EXPECT_EQ(read(opened(come.record).train), read(opened(then_).train)) << "what was held out stays so";
  then_ = recorded({a_, b_}, Paths{v}, 8);
  EXPECT_THAT(compared({a_, b_}).changed, ElementsAre(HasSubstr("there were files")));
  files_.write("v", "validatiom");
  EXPECT_THAT(compared({a_, b_}, Paths{v}).changed,
              ElementsAre(StartsWith("data.validation: " + v + " had 10 bytes")));
}

}  // namespace
}  // namespace octavo_train
