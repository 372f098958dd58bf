// Tests text files that are replaced atomically, and the list of checksums.
// SPDX-License-Identifier: MIT
#include "tests/train/files_support.h"
#include "train/io/checksums.h"
#include "train/io/files.h"
#include "train/io/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace octavo_train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TextFile, IsReplacedWhole) {
  const TempFolder folder;
  const std::string path = folder.at("config.yaml");
  ASSERT_TRUE(write_text_file(path, "first").ok());
  const std::string second("with a zero \0 and more", 22);
  write_bytes(folder.at(".config.yaml.partial"), "what a crash left, longer than the text to come");
  ASSERT_TRUE(write_text_file(path, second).ok());
  EXPECT_EQ(read_bytes(path), second);
  EXPECT_EQ(*read_text_file(path, 22), second);
  ASSERT_TRUE(write_text_file(path, "").ok());
  EXPECT_EQ(*read_text_file(path, 0), "");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("config.yaml"));
}

TEST(TextFile, Errors) {
  const TempFolder folder;
  write_bytes(folder.at("a"), "12345");
  EXPECT_EQ(read_text_file(folder.at("a"), 4).status().message(),
            folder.at("a: 5 bytes, expected at most 4 bytes"));
  EXPECT_THAT(read_text_file(folder.at("b"), 4).status().message(),
              HasSubstr("b: cannot open: No such file"));
  EXPECT_THAT(read_text_file(folder.path(), 4).status().message(), HasSubstr("is a folder"));
  EXPECT_THAT(write_text_file(folder.at("a/b"), "x").message(),
              HasSubstr("a/.b.partial: cannot create: Not a dir"));
  EXPECT_THAT(write_text_file(folder.path(), "x").message(), HasSubstr("is there and not a file"));
  EXPECT_THAT(write_text_file("/dev/null", "x").message(), HasSubstr("is there and not a file"));
  // A link at the temporary file's path is not followed, so its target is not overwritten.
  std::filesystem::create_symlink("a", folder.at(".c.partial"));
  EXPECT_THAT(write_text_file(folder.at("c"), "x").message(), HasSubstr(".c.partial: cannot create"));
  EXPECT_EQ(read_bytes(folder.at("a")), "12345");
}

TEST(TextFile, BareNamesAreOfTheWorkingFolder) {
  const TempFolder folder;
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_TRUE(write_text_file("bare", "x").ok());
  std::filesystem::current_path(here);
  EXPECT_EQ(read_bytes(folder.at("bare")), "x");
}

TEST(Sizes, ReadWell) {
  EXPECT_EQ(size_text(0), "0 bytes");
  EXPECT_EQ(size_text(1), "1 byte");
  EXPECT_EQ(size_text(999), "999 bytes");
  EXPECT_EQ(size_text(1000), "1.0 kB");
  EXPECT_EQ(size_text(999'949), "999.9 kB");
  EXPECT_EQ(size_text(999'950), "1.0 MB");
  EXPECT_EQ(size_text(1'234'567), "1.2 MB");
  EXPECT_EQ(size_text(UINT64_MAX), "18.4 EB");
}

// The checksums are those that xxh128sum prints.
TEST(Checksums, AreXxh3Of128Bits) {
  Hasher hasher;
  EXPECT_EQ(hasher.hex(), "99aa06d3014798d86001c324468d497f");
  hasher.add(std::as_bytes(std::span(std::string_view("octavo"))));
  EXPECT_EQ(hasher.hex(), "7d55611d5c05ec0b37d9270d496fbb19");
  // Adding the data in pieces gives the same checksum.
  const std::string data = tensor_data(100'000, 5);
  Hasher whole;
  whole.add(std::as_bytes(std::span(data)));
  Hasher pieces;
  for (std::size_t at = 0, size = 0; at < data.size(); at += size, ++size)
    pieces.add(std::as_bytes(std::span(data)).subspan(at, std::min(size, data.size() - at)));
  EXPECT_EQ(whole.hex(), pieces.hex());
}

TEST(Checksums, TextComesBackAndEveryChangeIsNoticed) {
  const std::vector<FileChecksum> files = {{std::string(32, 'a'), 0, "state.json"},
                                           {std::string(32, '0'), UINT64_MAX, "model-2.safetensors"}};
  const std::string text = format_checksums(files);
  const auto parsed = parse_checksums(text, "sums");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*parsed, files);
  EXPECT_TRUE(parse_checksums(format_checksums({}), "sums")->empty());
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_FALSE(parse_checksums(text.substr(0, size), "sums").ok()) << size;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[at] = static_cast<char>(static_cast<unsigned char>(changed[at]) ^ (1u << bit));
      EXPECT_FALSE(parse_checksums(changed, "sums").ok()) << changed;
    }
  }
}

TEST(Checksums, NamesStayInTheirFolder) {
  for (const char* name : {"../a", "/a", "a/b", "..", ".", ".hidden", "", "a b", "a\tb", "ä"}) {
    const std::vector<FileChecksum> files = {{std::string(32, 'a'), 0, name}};
    const auto parsed = parse_checksums(format_checksums(files), "sums");
    EXPECT_THAT(parsed.status().message(), HasSubstr("sums:1: expected a hash")) << name;
  }
  const std::vector<FileChecksum> twice(2, {std::string(32, 'a'), 0, "a"});
  EXPECT_THAT(parse_checksums(format_checksums(twice), "sums").status().message(),
              HasSubstr("sums:2: a second line for a"));
}

}  // namespace
}  // namespace octavo_train
