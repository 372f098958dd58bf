// Tests zip archives that are torn or malicious: each is an error that names a byte, or its entries lie
// inside the archive and do not overlap.
// SPDX-License-Identifier: MIT
#include "tests/train/archive_support.h"
#include "tests/train/files_support.h"
#include "train/formats/zip.h"
#include "train/io/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace octavo_train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_of(const std::string& archive) {
  const auto entries = read_zip(bytes_of(archive));
  EXPECT_FALSE(entries.ok());
  return entries.ok() ? "" : entries.status().message();
}

std::string names_of(const std::string& archive) {
  const auto entries = read_zip(bytes_of(archive));
  if (!entries.ok()) return entries.status().message();
  std::string names;
  for (const ZipEntry& entry : *entries) {
    names += std::string(entry.name) + "=" + text_of(entry.bytes) + ";";
    EXPECT_EQ(find_entry(*entries, entry.name), &entry);
  }
  EXPECT_EQ(find_entry(*entries, "none"), nullptr);
  return names;
}

std::string with(std::string text, std::size_t at, const std::string& bytes) {
  return text.replace(at, bytes.size(), bytes);
}

// Two entries. The second header begins at kSecond, the directory at kDirectory, its end at kEnd.
const std::string kWhole = zip_of({{"b", "one"}, {"a", "two!"}});
constexpr std::size_t kSecond = 30 + 1 + 3;
constexpr std::size_t kDirectory = kSecond + 30 + 1 + 4;
constexpr std::size_t kEnd = kDirectory + 2 * (46 + 1);

// Returns the same archive with a zip64 record and locator.
std::string with_zip64(std::uint64_t count, std::uint64_t size, std::uint64_t at, std::uint64_t record) {
  return kWhole.substr(0, kEnd) + "PK\6\6" + little(44, 8) + little(0, 12) + little(count, 8) +
         little(count, 8) + little(size, 8) + little(at, 8) + "PK\6\7" + little(0, 4) + little(record, 8) +
         little(1, 4) + "PK\5\6" + little(0, 4) + std::string(12, '\xff') + little(0, 2);
}

TEST(ZipHostile, EveryTruncationIsNoticed) {
  EXPECT_EQ(names_of(kWhole), "a=two!;b=one;");
  EXPECT_EQ(kWhole.size(), kEnd + 22);
  for (std::size_t size = 0; size < kWhole.size(); ++size) error_of(kWhole.substr(0, size));
  for (std::size_t front = 1; front < kWhole.size(); ++front) error_of(kWhole.substr(front));
  error_of(kWhole + "x");
  error_of("x" + kWhole);
  EXPECT_EQ(names_of(with(kWhole, kEnd + 20, little(3, 2)) + "abc"), "a=two!;b=one;");  // a comment
  EXPECT_EQ(names_of(zip_of({})), "");
}

TEST(ZipHostile, EveryFlippedBit) {
  const std::string right = names_of(kWhole);
  for (std::size_t at = 0; at < kWhole.size() * 8; ++at) {
    std::string bytes = kWhole;
    bytes[at / 8] = static_cast<char>(static_cast<unsigned char>(bytes[at / 8]) ^ (1u << at % 8));
    const std::string names = names_of(bytes);
    EXPECT_TRUE(names == right || names.starts_with("byte ") || names.starts_with("no end") ||
                names.size() == right.size())
        << at / 8 << ": " << names;
  }
}

TEST(ZipHostile, Directories) {
  const auto end = [](std::uint64_t count, std::uint64_t size, std::uint64_t at) {
    return with(kWhole, kEnd + 8, little(count, 2) + little(count, 2) + little(size, 4) + little(at, 4));
  };
  EXPECT_EQ(end(2, kEnd - kDirectory, kDirectory), kWhole);
  EXPECT_THAT(error_of(end(1, kEnd - kDirectory, kDirectory)), HasSubstr("more than its 1 entries"));
  EXPECT_THAT(error_of(end(3, kEnd - kDirectory, kDirectory)), HasSubstr("3 entries do not fit"));
  EXPECT_THAT(error_of(end(65535, kEnd - kDirectory, kDirectory)), HasSubstr("65535 entries do not fit"));
  EXPECT_THAT(error_of(end(2, kEnd - kDirectory, kDirectory - 1)), HasSubstr("does not end here"));
  EXPECT_THAT(error_of(end(2, 0xffffffff, kDirectory)), HasSubstr("does not end here"));
  EXPECT_THAT(error_of(end(2, kEnd - kDirectory, 0xffffffff)), HasSubstr("does not end here"));
  EXPECT_THAT(error_of(with(kWhole, kEnd + 4, little(1, 2))), HasSubstr("in several parts"));
  EXPECT_THAT(error_of(with(kWhole, kDirectory, "PK\1\3")),
              StartsWith("byte " + std::to_string(kDirectory) + ": no record"));
  EXPECT_THAT(error_of(with(kWhole, kDirectory + 28, little(0xffff, 2))),
              HasSubstr("longer than the directory"));
}

TEST(ZipHostile, Zip64) {
  const std::size_t size = kEnd - kDirectory;
  EXPECT_EQ(names_of(with_zip64(2, size, kDirectory, kEnd)), "a=two!;b=one;");
  for (const std::uint64_t huge :
       {UINT64_MAX, UINT64_MAX - 50, std::uint64_t{1} << 63, std::uint64_t{1} << 32}) {
    EXPECT_THAT(error_of(with_zip64(huge, size, kDirectory, kEnd)), HasSubstr("do not fit the directory"));
    EXPECT_THAT(error_of(with_zip64(2, huge, kDirectory, kEnd)), HasSubstr("does not end here"));
    EXPECT_THAT(error_of(with_zip64(2, size, huge, kEnd)), HasSubstr("does not end here"));
    EXPECT_THAT(error_of(with_zip64(2, size, kDirectory, huge)),
                HasSubstr("there is no zip64 record at byte"));
    EXPECT_THAT(error_of(with_zip64(2, size + 1, huge, kEnd)), HasSubstr("does not end here"));
  }
  EXPECT_THAT(error_of(with_zip64(2, size, kDirectory, kEnd - 1)),
              HasSubstr("there is no zip64 record at byte"));
  // An entry's own zip64 numbers are in an extra field.
  const auto extra = [](const std::string& field, std::uint32_t bytes) {
    const std::string name = "a";
    const std::string file = "PK\3\4" + std::string(22, '\0') + little(1, 2) + little(0, 2) + name + "data";
    const std::string local = with(file, 6, little(8, 2));
    const std::string directory = "PK\1\2" + std::string(16, '\0') + little(bytes, 4) + little(bytes, 4) +
                                  little(1, 2) + little(field.size(), 2) + std::string(10, '\0') +
                                  little(0, 4) + name + field;
    return local + directory + "PK\5\6" + little(0, 4) + little(1, 2) + little(1, 2) +
           little(directory.size(), 4) + little(local.size(), 4) + little(0, 2);
  };
  const auto field = [](std::uint64_t one, std::uint64_t two) {
    return little(1, 2) + little(16, 2) + little(one, 8) + little(two, 8);
  };
  EXPECT_EQ(names_of(extra("", 4)), "a=data;");
  EXPECT_EQ(names_of(extra(field(4, 4), 0xffffffff)), "a=data;");
  EXPECT_EQ(names_of(extra("FB" + little(2, 2) + "ZZ" + field(4, 4), 0xffffffff)), "a=data;");
  EXPECT_THAT(error_of(extra(field(4, 3), 0xffffffff)),
              HasSubstr("compressed and uncompressed sizes differ"));
  EXPECT_THAT(error_of(extra(field(5, 5), 0xffffffff)), HasSubstr("5 bytes do not fit the archive"));
  EXPECT_THAT(error_of(extra(field(UINT64_MAX, UINT64_MAX), 0xffffffff)),
              HasSubstr("do not fit the archive"));
  EXPECT_THAT(error_of(extra("", 0xffffffff)), HasSubstr("the zip64 field is missing"));
  EXPECT_THAT(error_of(extra(field(4, 4).substr(0, 19), 0xffffffff)), HasSubstr("longer than the record"));
  EXPECT_THAT(error_of(extra(little(1, 2) + little(8, 2) + little(4, 8), 0xffffffff)),
              HasSubstr("too short"));
}

// Writes a file with a hole of 5 GiB, which uses no disk space. Its sizes and offsets need zip64.
TEST(ZipHostile, WhatIsWrittenBeyondFourGigabytesIsRead) {
  constexpr std::uint64_t kHole = std::uint64_t{5} << 30;
  const TempFolder folder;
  std::ofstream out(folder.at("x"), std::ios::binary);
  const ZipWriter* counted = nullptr;
  const ByteSink sink = [&](std::span<const std::byte> bytes) -> Status {
    out.seekp(static_cast<std::streamoff>(counted->size() - bytes.size()));
    out << text_of(bytes);
    return {};
  };
  ZipWriter zip(&sink);
  counted = &zip;
  ASSERT_TRUE(zip.begin("hole", kHole).ok());
  zip.skip(kHole);
  ASSERT_TRUE(zip.end().ok());
  ASSERT_TRUE(zip.begin("after", 3).ok());
  ASSERT_TRUE(zip.add(bytes_of("abc")).ok());
  ASSERT_TRUE(zip.end().ok());
  ASSERT_TRUE(zip.finish().ok());
  out.close();
  ASSERT_TRUE(out.good());

  const auto file = MappedFile::open(folder.at("x"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->bytes().size(), zip.size());
  const auto entries = read_zip(file->bytes());
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ(find_entry(*entries, "hole")->bytes.size(), kHole);
  EXPECT_EQ(text_of(find_entry(*entries, "after")->bytes), "abc");
  EXPECT_GT(find_entry(*entries, "after")->header, kHole);
}

TEST(ZipHostile, Entries) {
  const std::size_t central = kDirectory;  // record of the first entry
  EXPECT_THAT(error_of(with(kWhole, central + 8, little(1, 2))), HasSubstr("file \"b\": encrypted"));
  EXPECT_THAT(error_of(with(kWhole, central + 10, little(8, 2))), HasSubstr("compressed by method 8"));
  EXPECT_THAT(error_of(with(kWhole, central + 20, little(2, 4))),
              HasSubstr("compressed and uncompressed sizes differ"));
  EXPECT_THAT(error_of(with(kWhole, central + 20, little(2, 4) + little(2, 4))),
              HasSubstr("3 bytes by its header, but 2 by the directory"));
  EXPECT_THAT(error_of(with(kWhole, central + 20, little(999, 4) + little(999, 4))),
              HasSubstr("999 bytes do not fit"));
  EXPECT_THAT(error_of(with(kWhole, central + 42, little(1, 4))), HasSubstr("no header at byte 1"));
  EXPECT_THAT(error_of(with(kWhole, central + 42, little(0xfffffffe, 4))),
              HasSubstr("no header at byte 4294967294"));
  EXPECT_THAT(error_of(with(kWhole, central + 42, little(kDirectory, 4))), HasSubstr("no header at byte"));
  EXPECT_THAT(error_of(with(kWhole, central + 42, little(kSecond, 4))),
              HasSubstr("differs from the directory"));
  EXPECT_THAT(error_of(with(kWhole, 26, little(0xffff, 2))), HasSubstr("do not fit the archive"));
  EXPECT_THAT(error_of(with(kWhole, 8, little(8, 2))), HasSubstr("differs from the directory"));
  EXPECT_THAT(error_of(zip_of({{"a", ""}, {"a", "x"}})), HasSubstr("file \"a\": given twice"));
  // An archive inside an entry: two entries refer to the same bytes.
  const std::string inner =
      "PK\3\4" + std::string(14, '\0') + little(1, 4) + little(1, 4) + little(1, 2) + little(0, 2) + "ax";
  const std::string outer = zip_of({{"b", inner}, {"a", "x"}});
  const std::size_t second = 30 + 1 + inner.size() + 32 + 46 + 1;  // the second record of the directory
  ASSERT_EQ(outer.substr(second, 4), "PK\1\2");
  EXPECT_THAT(error_of(with(outer, second + 42, little(31, 4))),
              HasSubstr("byte 31: file \"a\": overlaps the file before"));
}

}  // namespace
}  // namespace octavo_train
