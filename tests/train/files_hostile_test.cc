// Tests safetensors files that are torn or malicious: each is an error that names the file, or its tensors
// lie inside it. There is never a crash, an exception or a large allocation.
// SPDX-License-Identifier: MIT
#include "tests/support/random.h"
#include "tests/train/files_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace octavo_train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

std::string file_of(const std::string& header, const std::string& data = "") {
  return length_bytes(header.size()) + header + data;
}

class Hostile : public testing::Test {
 protected:
  // Reads all bytes of a file that opens. They may have any values, but must lie inside the file.
  static void use(const Safetensors& file, std::size_t size) {
    std::size_t total = 0;
    unsigned sum = 0;
    for (const StoredTensor& tensor : file.tensors()) {
      total += tensor.bytes.size();
      for (const std::byte byte : tensor.bytes) sum += std::to_integer<unsigned>(byte);
      ASSERT_EQ(file.find(tensor.name), &tensor);
    }
    ASSERT_LE(total + sum * 0, size);
  }

  Result<Safetensors> open(const std::string& bytes) {
    write_bytes(path_, bytes);
    Result<Safetensors> file = Safetensors::open(path_);
    if (file.ok())
      use(*file, bytes.size());
    else
      EXPECT_THAT(file.status().message(), StartsWith(path_ + ": "));
    return file;
  }

  // Returns the error message without the path.
  std::string error_of(const std::string& bytes) {
    const auto file = open(bytes);
    EXPECT_FALSE(file.ok()) << bytes;
    return file.ok() ? "" : file.status().message().substr(path_.size() + 2);
  }

  std::string small_file() {
    const std::vector<TensorSource> sources = {make_tensor("a", "F32", {2, 3}, 1),
                                               make_tensor("b", "I16", {}, 2), make_tensor("c", "U8", {0}, 3),
                                               make_tensor("d", "U8", {5}, 4)};
    EXPECT_TRUE(write_safetensors(path_, sources, {{"format", "pt"}}).ok());
    return read_bytes(path_);
  }

  TempFolder folder_;
  std::string path_ = folder_.at("x");
};

TEST_F(Hostile, EveryTruncationIsNoticed) {
  const std::string whole = small_file();
  ASSERT_TRUE(open(whole).ok());
  for (std::size_t size = 0; size < whole.size(); ++size) error_of(whole.substr(0, size));
  EXPECT_THAT(error_of(whole + '\0'), HasSubstr("the rest is unknown"));
  EXPECT_THAT(error_of(whole.substr(0, whole.size() - 1)), HasSubstr("the file is cut short"));
}

TEST_F(Hostile, EveryFlippedBit) {
  const std::string whole = small_file();
  constexpr std::size_t kData = 24 + 2 + 5;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1u << bit));
      const bool opened = open(bytes).ok();
      EXPECT_FALSE(opened && at < 9) << at;                    // the length and the first brace
      EXPECT_TRUE(opened || at < whole.size() - kData) << at;  // data may have any value
    }
  }
}

TEST_F(Hostile, Lengths) {
  EXPECT_THAT(error_of(""), HasSubstr("0 bytes, too short for a safetensors file"));
  EXPECT_THAT(error_of(length_bytes(0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(error_of(length_bytes(3) + "{}"), HasSubstr("has 3 bytes, expected at most 2"));
  for (const std::uint64_t length :
       {UINT64_MAX, UINT64_MAX - 7, std::uint64_t{1} << 63, std::uint64_t{100'000'001}})
    EXPECT_THAT(error_of(length_bytes(length) + "{}"), HasSubstr("has " + std::to_string(length) + " bytes"));
  EXPECT_THAT(error_of(file_of(" {}")), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(error_of("%PDF-1.7 and so on"), HasSubstr("torn or of another format"));
  EXPECT_TRUE(open(file_of("{}")).ok());
  EXPECT_TRUE(open(file_of("{}      ")).ok());
}

TEST_F(Hostile, HeadersThatAreNone) {
  const auto tensor = [](const std::string& fields) { return file_of("{\"t\":{" + fields + "}}", "abcd"); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {file_of("{"), "header byte 2: not JSON"},
      {file_of("{} {}"), "not JSON"},
      {file_of("{\"a\":\"\xff\"}"), "not JSON"},
      {file_of("{\"a\":1e999}"), "not JSON"},
      {file_of(std::string("{}\0\0", 4)), "not JSON"},
      {file_of("{\"a\":1}"), "\"a\": a number, expected an object"},
      {file_of("{\"a\\u001b[2J\":null}"), "\"a\\u001b[2J\": null, expected an object"},
      {file_of("{\"__metadata__\":{\"a\":1}}"), "__metadata__: \"a\": a number, expected a text"},
      {file_of("{\"__metadata__\":{\"a\":{}}}"), "an object, expected a text"},
      {file_of("{\"__metadata__\":[]}"), "a list, expected an object"},
      {file_of("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}"), "__metadata__: \"a\": given twice"},
      {file_of("{\"__metadata__\":{},\"__metadata__\":{}}"), "\"__metadata__\": given twice"},
      {tensor(""), "tensor \"t\": expected dtype, shape and data_offsets"},
      {tensor(R"("dtype":"U8","shape":[4])"), "tensor \"t\": expected dtype, shape and data_offsets"},
      {tensor(R"("dtype":"U8","dtype":"U8")"), "\"dtype\": given twice"},
      {tensor(R"("dtype":"U8","strides":[1])"), "\"strides\": expected only dtype, shape and data_offsets"},
      {tensor(R"("dtype":[8])"), "\"dtype\": a list, expected a text"},
      {tensor(R"("dtype":8)"), "\"dtype\": a number, expected a text"},
      {tensor(R"("shape":"4")"), "\"shape\": a text, expected a list"},
      {tensor(R"("shape":[-4])"), "\"shape\": a negative number, expected numbers of 0 or more"},
      {tensor(R"("shape":[4.0])"), "\"shape\": a fraction"},
      {tensor(R"("shape":[true])"), "\"shape\": a truth value"},
      {tensor(R"("shape":[[4]])"), "\"shape\": a list, expected numbers"},
      {tensor(R"("shape":[9223372036854775808])"),
       "\"shape\": 9223372036854775808, expected a number below 2^63"},
      {tensor(R"("shape":[99999999999999999999])"), "\"shape\": a fraction"},
      {tensor(R"("data_offsets":[])"), "\"data_offsets\": 0 numbers, expected two"},
      {tensor(R"("data_offsets":[0])"), "\"data_offsets\": 1 numbers, expected two"},
      {tensor(R"("data_offsets":[0,4,4])"), "\"data_offsets\": 3 numbers, expected two"},
      {tensor(R"("data_offsets":{})"), "\"data_offsets\": an object, expected a list"},
  };
  for (const auto& [bytes, message] : cases) EXPECT_THAT(error_of(bytes), HasSubstr(message));
}

TEST_F(Hostile, TensorsThatDoNotFit) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return file_of(
        "{\"t\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + offsets + "]}}",
        "abcd");
  };
  ASSERT_TRUE(open(one("F32", "1", "0,4")).ok());
  EXPECT_EQ(error_of(one("F16", "1", "0,4")), "tensor \"t\": bytes 0 to 4 do not fit F16 [1], which takes 2");
  EXPECT_THAT(error_of(one("F4", "8", "0,4")), HasSubstr("dtype \"F4\", expected one of BOOL"));
  EXPECT_THAT(error_of(one("f32", "1", "0,4")), HasSubstr("dtype \"f32\""));
  EXPECT_THAT(error_of(one("U8", "4", "4,0")), HasSubstr("bytes 4 to 0 do not fit"));
  EXPECT_THAT(error_of(one("U8", "3", "1,4")), HasSubstr("expected to begin at 0: there is a hole before"));
  EXPECT_THAT(error_of(one("U8", "3", "0,3")), HasSubstr("4 bytes follow the header, which describes 3"));
  EXPECT_THAT(error_of(one("U8", "5", "0,5")), HasSubstr("the file is cut short"));
  const std::string huge = "9223372036854775807";
  EXPECT_THAT(error_of(one("U8", huge, "0," + huge)), HasSubstr("the file is cut short"));
  // Multiplications that overflow to the size of the file's data.
  EXPECT_THAT(error_of(one("F32", "4611686018427387905", "0,4")),
              HasSubstr("do not fit F32 [4611686018427387905]"));
  EXPECT_THAT(error_of(one("U8", "4294967296,4294967296,4", "0,4")), HasSubstr("do not fit"));
  EXPECT_THAT(error_of(one("U8", huge + "," + huge + ",0", "0,0")), HasSubstr("do not fit"));
}

TEST_F(Hostile, TensorsThatShareBytesOrNames) {
  const auto two = [](const std::string& names, int begin, int end) {
    const auto entry = [](char name, int from, int to) {
      return "\"" + std::string(1, name) + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(to - from) +
             "],\"data_offsets\":[" + std::to_string(from) + "," + std::to_string(to) + "]}";
    };
    return file_of("{" + entry(names[0], begin, end) + "," + entry(names[1], 0, 2) + "}", "abcd");
  };
  ASSERT_TRUE(open(two("ab", 2, 4)).ok());
  EXPECT_EQ(error_of(two("aa", 2, 4)), "tensor \"a\": given twice");
  EXPECT_THAT(error_of(two("ab", 1, 4)),
              HasSubstr("tensor \"a\": bytes 1 to 4, expected to begin at 2: it overlaps"));
  EXPECT_THAT(error_of(two("ab", 0, 4)), HasSubstr("it overlaps the tensor before"));
  EXPECT_THAT(error_of(two("ab", 0, 2)), HasSubstr("it overlaps the tensor before"));
  EXPECT_THAT(error_of(two("ab", 3, 4)), HasSubstr("there is a hole before"));
  EXPECT_THAT(error_of(two("ab", 1, 1)), HasSubstr("it overlaps"));
}

TEST_F(Hostile, DeepAndLongHeaders) {
  constexpr std::size_t kMany = 1'000'000;
  EXPECT_THAT(error_of(file_of("{\"a\":" + std::string(kMany, '['))),
              HasSubstr("a list, expected an object"));
  std::string deep = "{";
  for (std::size_t i = 0; i < kMany / 5; ++i) deep += "\"a\":{";
  EXPECT_THAT(error_of(file_of(deep)), HasSubstr("\"a\": \"a\": expected only dtype"));
  EXPECT_THAT(error_of(file_of("{\"" + std::string(kMany, 'n') + "\":1}")), HasSubstr("nnn\"…: a number"));
  std::string shape = R"({"t":{"dtype":"U8","data_offsets":[0,1],"shape":[1)";
  for (std::size_t i = 0; i < kMany / 2; ++i) shape += ",1";
  EXPECT_TRUE(open(file_of(shape + "]}}", "x")).ok());
  EXPECT_THAT(error_of(file_of(shape + ",2]}}", "x")), HasSubstr("1, 1, …], which takes 2"));
}

TEST_F(Hostile, MutatedHeaders) {
  constexpr std::array<std::string_view, 20> kPieces = {"{",
                                                        "}",
                                                        "[",
                                                        "]",
                                                        ",",
                                                        ":",
                                                        "\"",
                                                        "\\",
                                                        "0",
                                                        "9223372036854775807",
                                                        "18446744073709551615",
                                                        "-1",
                                                        "1e9",
                                                        "\"dtype\":\"U8\"",
                                                        "\"shape\":[5]",
                                                        "\"data_offsets\":[0,5]",
                                                        "\"__metadata__\":{}",
                                                        "\"a\"",
                                                        "null",
                                                        "\xc3"};
  const std::string whole = small_file();
  const std::size_t header = whole.size() - 8 - 31;
  test::Random random(1);
  int opened = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = whole.substr(8, header);
    for (std::uint64_t edits = 1 + random.below(3); edits > 0; --edits) {
      const auto at = static_cast<std::size_t>(random.below(text.size()));
      const auto piece = kPieces[static_cast<std::size_t>(random.below(kPieces.size()))];
      text.replace(at, static_cast<std::size_t>(random.below(12)), random.chance(3) ? "" : piece);
    }
    opened += open(file_of(text, whole.substr(8 + header))).ok() ? 1 : 0;
  }
  EXPECT_GT(opened, 0);  // the mutations get past the parser
  EXPECT_LT(opened, 2500);
}

}  // namespace
}  // namespace octavo_train
