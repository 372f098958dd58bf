// Tests tar archives, with and without gzip, that are torn or malicious: each is an error that names the file
// and a byte. There is never a crash, an exception or a large allocation.
// SPDX-License-Identifier: MIT
#include "tests/train/archive_support.h"
#include "tests/train/files_support.h"
#include "train/formats/gzip.h"
#include "train/formats/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo_train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_of(const std::string& archive) {
  const auto entries = read_tar(bytes_of(archive));
  EXPECT_FALSE(entries.ok());
  return entries.ok() ? "" : entries.status().message();
}

// Returns the names and contents of a valid archive, or the error.
std::string names_of(const std::string& archive) {
  const auto entries = read_tar(bytes_of(archive));
  if (!entries.ok()) return entries.status().message();
  std::string names;
  for (const TarEntry& entry : *entries) names += entry.name + "=" + text_of(entry.bytes) + ";";
  return names;
}

std::string pax_record(const std::string& field) {
  std::size_t size = field.size() + 3;
  while (std::to_string(size).size() + field.size() + 2 != size) ++size;
  return std::to_string(size) + " " + field + "\n";
}

// Python: gzip.compress(b"abc" * 5, mtime=0)
std::string small_gzip() {
  return std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x4b\x4c\x4a\x4e\x44\x42\x00", 17) +
         std::string("\xa3\x8c\x27\xd3\x0f\x00\x00\x00", 8);
}

TEST(TarHostile, EveryTruncationIsNoticed) {
  const std::string whole = tar_part({"./a", "one"}) + tar_part({"b/c", std::string(600, 'x')}) + tar_end();
  EXPECT_EQ(names_of(whole), "a=one;b/c=" + std::string(600, 'x') + ";");
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(error_of(whole.substr(0, size)), StartsWith("byte "));
  EXPECT_EQ(names_of(whole + std::string(9000, '\0')), names_of(whole));
  EXPECT_THAT(error_of(whole + "x"),
              StartsWith("byte " + std::to_string(whole.size()) + ": bytes after the end"));
}

TEST(TarHostile, EveryFlippedBitOfAHeader) {
  const std::string whole = tar_part({"./a", "one"}) + tar_end();
  for (std::size_t at = 0; at < 512 * 8; ++at) {
    std::string bytes = whole;
    bytes[at / 8] = static_cast<char>(static_cast<unsigned char>(bytes[at / 8]) ^ (1u << at % 8));
    // Only the blanks and zeros of the checksum field may differ.
    const auto entries = read_tar(bytes_of(bytes));
    EXPECT_TRUE(!entries.ok() || (at / 8 >= 148 && at / 8 < 156)) << at / 8;
  }
}

TEST(TarHostile, Sizes) {
  const auto sized = [](const std::string& field) {
    return tar_part({.name = "a", .data = "x", .size = field}) + tar_end();
  };
  EXPECT_EQ(names_of(sized("00000000001")), "a=x;");
  EXPECT_EQ(names_of(sized("         1 ")), "a=x;");
  EXPECT_EQ(names_of(sized("\x80" + std::string(10, '\0') + "\1")), "a=x;");
  EXPECT_THAT(error_of(sized("77777777777")), HasSubstr("8589934591 bytes, but only 1536 follow"));
  for (const std::string& field : std::vector<std::string>{
           "0000000000x", "-0000000001", "           ", "00000000008", "\x80" + std::string(11, '\xff'),
           std::string(12, '\xff'), std::string("\x80\0\0\x80", 4) + std::string(8, '\0')}) {
    const std::string message = error_of(sized(field));
    EXPECT_THAT(message, StartsWith("byte 0: "));
  }
  const std::string most = std::string("\x80\0\0\0\x7f", 5) + std::string(7, '\xff');
  EXPECT_THAT(error_of(sized(most)), HasSubstr("9223372036854775807 bytes, but only 1536 follow"));
}

TEST(TarHostile, SizesThatAreWritten) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{077777777777}, std::uint64_t{1} << 33,
                                   std::uint64_t{123456789012345}, std::uint64_t{INT64_MAX}}) {
    const auto header = parse_tar_header(make_tar_header("a/b", size));
    ASSERT_TRUE(header.ok()) << header.status().message();
    EXPECT_EQ(header->size, size);
    EXPECT_EQ(header->name, "a/b");
    EXPECT_EQ(header->type, '0');
  }
}

TEST(TarHostile, NamesThatLeadElsewhere) {
  for (const std::string name :
       {"../a", "a/../../b", "..", "a/..", "./../a", "/etc/passwd", "//a", "a\nb", "a\x1b[2J"}) {
    EXPECT_THAT(error_of(tar_part({name, "x"}) + tar_end()), HasSubstr("expected a path inside the archive"))
        << name;
    const std::string pax = tar_part({"p", pax_record("path=" + name), 'x'});
    EXPECT_THAT(error_of(pax + tar_part({"a", "x"}) + tar_end()), HasSubstr("inside the archive")) << name;
    const std::string gnu = tar_part({"././@LongLink", name + '\0', 'L'});
    EXPECT_THAT(error_of(gnu + tar_part({"a", "x"}) + tar_end()), HasSubstr("inside the archive")) << name;
  }
  EXPECT_EQ(names_of(tar_part({"./a//./b", "x"}) + tar_end()), "a/b=x;");
  EXPECT_EQ(names_of(tar_part({"...", "x"}) + tar_end()), "...=x;");
  EXPECT_THAT(error_of(tar_part({"", "x"}) + tar_end()), HasSubstr("without a name"));
  EXPECT_THAT(error_of(tar_part({"./", "x"}) + tar_end()), HasSubstr("without a name"));
  EXPECT_THAT(error_of(tar_part({"a", "x"}) + tar_part({"./a", "y"}) + tar_end()),
              StartsWith("byte 1024: file \"a\": given twice"));
  EXPECT_EQ(names_of(tar_part({.name = "b", .data = "x", .prefix = "a"}) + tar_end()), "a/b=x;");
  EXPECT_THAT(error_of(tar_part({.name = "b", .data = "x", .prefix = ".."}) + tar_end()),
              HasSubstr("leads out"));
}

TEST(TarHostile, ThingsThatAreNoFiles) {
  for (const char type : {'1', '2', '3', '4', '6', 'S', 'K', 'V', 'M', 'Z', '\x80'})
    EXPECT_THAT(error_of(tar_part({"a", "", type}) + tar_end()), HasSubstr("expected a plain file")) << type;
  EXPECT_EQ(names_of(tar_part({"./", "", '5'}) + tar_part({"a", "x", '\0'}) + tar_end()), "a=x;");
  EXPECT_THAT(error_of(tar_part({.name = "a", .data = "x", .magic = ""}) + tar_end()),
              HasSubstr("no header of a tar archive"));
}

TEST(TarHostile, LongNamesAndPax) {
  const std::string file = tar_part({"short", "x"}) + tar_end();
  const auto pax = [&](const std::string& text) { return tar_part({"p", text, 'x'}) + file; };
  EXPECT_EQ(names_of(pax(pax_record("path=long"))), "long=x;");
  EXPECT_EQ(names_of(pax(pax_record("size=0") + pax_record("mtime=1.5"))).substr(0, 5), "byte ");
  EXPECT_EQ(names_of(pax(pax_record("size=1"))), "short=x;");
  EXPECT_EQ(names_of(pax("")), "short=x;");
  for (const std::string text :
       {"5", "0 a=b\n", "99 path=x\n", "7 path=\n", "x path=a\n", "10 path=abc", "3 \n", "4 a\n",
        "99999999999999999999999 path=a\n", " ", "-1 a=b\n", "6 ab\n\n"})
    EXPECT_THAT(error_of(pax(text)), HasSubstr("pax header")) << text;
  EXPECT_THAT(error_of(pax(pax_record("size=99999999999"))), HasSubstr("99999999999 bytes, but only"));
  EXPECT_THAT(error_of(pax(pax_record("size=18446744073709551615"))), HasSubstr("below 2^63"));
  EXPECT_THAT(error_of(pax(pax_record("size="))), HasSubstr("below 2^63"));
  EXPECT_THAT(error_of(pax(pax_record("GNU.sparse.major=1"))), HasSubstr("a sparse file"));
  EXPECT_THAT(error_of(tar_part({"weights", "x", 'S'})), HasSubstr(R"("weights": a sparse file)"));
  EXPECT_THAT(error_of(pax(pax_record("path=" + std::string(5000, 'a')))),
              HasSubstr("expected at most 4096"));
  EXPECT_THAT(error_of(pax(pax_record("comment=" + std::string(1 << 20, 'a')))),
              HasSubstr("expected at most 1048576"));
  EXPECT_THAT(error_of(tar_part({"p", std::string(5000, 'a'), 'L'}) + file),
              HasSubstr("expected at most 4096"));
  EXPECT_THAT(error_of(tar_part({"p", "a", 'L'}) + tar_part({"p", "b", 'L'}) + file),
              HasSubstr("two long names"));
  EXPECT_THAT(error_of(tar_part({"p", "a", 'L'}) + tar_end()), HasSubstr("without a file after it"));
  EXPECT_THAT(error_of(tar_part({"p", pax_record("path=a"), 'g'}) + file), HasSubstr("for all files"));
  EXPECT_EQ(names_of(tar_part({"p", pax_record("comment=a"), 'g'}) + file), "short=x;");
}

TEST(TarHostile, Gzip) {
  const std::string whole = small_gzip();
  const auto unpacked = inflate_gzip(bytes_of(whole), 15);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status().message();
  EXPECT_EQ(text_of(unpacked->bytes()), "abcabcabcabcabc");
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(inflate_gzip(bytes_of(whole.substr(0, size)), 100).ok()) << size;
  EXPECT_THAT(inflate_gzip(bytes_of(whole), 14).status().message(),
              HasSubstr("more than 14 bytes, which is the limit"));
  EXPECT_THAT(inflate_gzip(bytes_of(whole + "x"), 99).status().message(), HasSubstr("are not gzip"));
  EXPECT_EQ(text_of(inflate_gzip(bytes_of(whole + whole + std::string(20, '\0')), 99)->bytes()).size(), 30u);
  EXPECT_THAT(inflate_gzip(bytes_of(whole + whole), 29).status().message(), HasSubstr("the limit"));
  for (std::size_t at = 80; at < whole.size() * 8; ++at) {  // after the header, whose time may have any value
    std::string bytes = whole;
    bytes[at / 8] = static_cast<char>(static_cast<unsigned char>(bytes[at / 8]) ^ (1u << at % 8));
    const auto flipped = inflate_gzip(bytes_of(bytes), 99);
    if (flipped.ok()) {
      EXPECT_EQ(text_of(flipped->bytes()), text_of(unpacked->bytes())) << at;
    }  // bits that fill the last byte
    else
      EXPECT_THAT(flipped.status().message(), StartsWith("byte ")) << at;
  }
  const TempFolder folder;
  write_bytes(folder.at("x"), whole);
  EXPECT_THAT(TarArchive::open(folder.at("x")).status().message(),
              StartsWith(folder.at("x") + " (unpacked): byte 0: the archive is cut short"));
  EXPECT_THAT(TarArchive::open(folder.at("x"), 3).status().message(), StartsWith(folder.at("x") + ": byte "));
  EXPECT_THAT(TarArchive::open(folder.path()).status().message(), HasSubstr("is a folder"));
  write_bytes(folder.at("x"), "");
  EXPECT_THAT(TarArchive::open(folder.at("x")).status().message(), StartsWith(folder.at("x") + ": byte 0: "));
}

TEST(TarHostile, WritersRefuseToo) {
  const TempFolder folder;
  const auto give = [](const std::string& text) {
    return [text](const ByteSink& sink) { return sink(bytes_of(text)); };
  };
  const auto error = [&](std::vector<TarSource> sources) {
    return write_tar(folder.at("x"), sources).message();
  };
  EXPECT_EQ(error({{"./a", 1, give("x")}, {"b", 0, give("")}}), "");
  EXPECT_EQ(names_of(read_bytes(folder.at("x"))), "a=x;b=;");
  EXPECT_THAT(error({{"../a", 1, give("x")}}), HasSubstr("leads out"));
  EXPECT_THAT(error({{"a", 1, give("x")}, {"./a", 1, give("x")}}), HasSubstr("given twice"));
  EXPECT_THAT(error({{std::string(100, 'a'), 1, give("x")}}), HasSubstr("100 bytes, expected 1 to 99"));
  EXPECT_THAT(error({{"a", 2, give("x")}}), HasSubstr("1 bytes given, expected 2"));
  EXPECT_THAT(error({{"a", 2, give("xyz")}}), HasSubstr("gives more than the 2 bytes"));
  EXPECT_THAT(error({{"a", UINT64_MAX, give("x")}}), HasSubstr("too large"));
  EXPECT_THAT(error({{"a", 1, nullptr}}), HasSubstr("no function"));
  EXPECT_EQ(names_of(read_bytes(folder.at("x"))), "a=x;b=;");  // no error changed the file
  EXPECT_THAT(names_in(folder.path()), ::testing::ElementsAre("x"));
}

}  // namespace
}  // namespace octavo_train
