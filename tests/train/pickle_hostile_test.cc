// Tests pickles that are torn or malicious: each is an error that names the opcode, the byte and the global.
// SPDX-License-Identifier: MIT
#include "tests/train/archive_support.h"
#include "train/formats/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo_train {
namespace {

using namespace pickled;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kStart = "\x80\x02";
const std::string kTensor = tensor(storage("0", 6), 1, number(2) + number(1), number(2) + number(7));

std::string error_of(const std::string& pickle) {
  const auto tensors = read_pickle(bytes_of(pickle));
  EXPECT_FALSE(tensors.ok());
  return tensors.ok() ? "" : tensors.status().message();
}

TEST(PickleHostile, OneTensorAndEveryTruncation) {
  const std::string whole = dict(text("a") + kTensor);
  const auto tensors = read_pickle(bytes_of(whole));
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), 1u);
  const PickledTensor& only = tensors->front();
  EXPECT_EQ(only.name, "a");
  EXPECT_EQ(only.storage.dtype, "F32");
  EXPECT_EQ(only.storage.key, "0");
  EXPECT_EQ(only.storage.elements, 6);
  EXPECT_EQ(only.offset, 1);
  EXPECT_EQ(only.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(only.strides, (std::vector<std::int64_t>{2, 7}));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(error_of(whole.substr(0, size)), StartsWith("byte "));
  EXPECT_THAT(error_of(whole + "."), HasSubstr("bytes after the end of the pickle"));
  for (std::size_t at = 0; at < whole.size() * 8; ++at) {
    std::string bytes = whole;
    bytes[at / 8] = static_cast<char>(static_cast<unsigned char>(bytes[at / 8]) ^ (1u << at % 8));
    const auto flipped = read_pickle(bytes_of(bytes));
    EXPECT_TRUE(flipped.ok() || flipped.status().message().starts_with("byte "));
  }
}

TEST(PickleHostile, EveryOpcodeThatAStateDictDoesNotNeed) {
  const std::string known = "(.NJKMXc)t}suqrhjQRb\x80\x85\x86\x87\x88\x89\x8a";
  for (int code = 0; code < 256; ++code) {
    const std::string message = error_of(kStart + static_cast<char>(code) + std::string(8, '\0'));
    const bool needed = known.find(static_cast<char>(code)) != std::string::npos;
    const bool refused =
        message.starts_with("byte 2: ") && message.find(": not one that") != std::string::npos;
    EXPECT_NE(refused, needed) << message;
    EXPECT_THAT(message, StartsWith("byte "));
  }
  EXPECT_THAT(error_of(kStart + "\x93"), StartsWith("byte 2: opcode 0x93 STACK_GLOBAL: not one"));
  EXPECT_THAT(error_of(kStart + "i"), StartsWith("byte 2: opcode 0x69 INST"));
  EXPECT_THAT(error_of(kStart + "o"), StartsWith("byte 2: opcode 0x6f OBJ"));
  EXPECT_THAT(error_of(kStart + "\x81"), StartsWith("byte 2: opcode 0x81 NEWOBJ"));
  EXPECT_THAT(error_of(kStart + "\x82"), StartsWith("byte 2: opcode 0x82 EXT1"));
  EXPECT_THAT(error_of(kStart + "P0\n"), StartsWith("byte 2: opcode 0x50 PERSID"));
  EXPECT_THAT(error_of(kStart + "\xfe"), StartsWith("byte 2: opcode 0xfe: not one"));
  EXPECT_THAT(error_of("\x80\x04"), HasSubstr("protocol 4, expected 2"));
  EXPECT_THAT(error_of(kStart + kStart), HasSubstr("protocol 2, expected 2 and at the front"));
}

TEST(PickleHostile, Globals) {
  for (const std::string global :
       {"os\nsystem\n", "posix\nsystem\n", "builtins\neval\n", "__builtin__\ngetattr\n", "torch\nload\n",
        "torch._utils\n_rebuild_tensor_v3\n", "torch\nFloatStorage2\n", "torch\n\n", "\nOrderedDict\n",
        "collections\nOrderedDict.fromkeys\n", "torch.storage\nFloatStorage\n", "Torch\nFloatStorage\n",
        "collections\nordereddict\n", "torch\nFloatStorage\r\n", "torch\x1b[2J\nFloatStorage\n"}) {
    EXPECT_THAT(error_of(kStart + "c" + global + ")R."), StartsWith("byte 2: opcode 0x63 GLOBAL: global \""))
        << global;
  }
  EXPECT_THAT(error_of(kStart + "cos\nsystem\n("),
              HasSubstr("global \"os\" \"system\" is not one that a state dict needs"));
  EXPECT_THAT(error_of(kStart + "cos"), HasSubstr("a name that does not end"));
  EXPECT_THAT(error_of(kStart + "c" + std::string(100000, 'a') + "\nb\n").size(), ::testing::Lt(1000u));
}

TEST(PickleHostile, StacksAndMarks) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"R", "takes 2 values from a stack that has 0"},
      {"NR", "takes 2 values from a stack that has 1"},
      {"NN(NR", "takes 2 values from a stack that has 1"},  // values below a mark are not popped
      {"t", "there is no MARK"},
      {"u", "there is no MARK"},
      {"}(Nu", "a key without a value"},
      {"}(NNu", "a key is None, expected a text"},
      {"N(u", "the target is None, expected a dict"},
      {"(u", "takes 1 values from a stack that has 0"},
      {"}(" + text("a") + "s", "takes 3 values"},
      {"\x87", "takes 3 values"},
      {"NQ", "a storage's id is None, expected a tuple"},
      {")Q", "a storage's id has 0 parts, expected 5"},
      {"N)R", "the called object is None, expected a function"},
      {"})R", "the called object is a dict"},
      {"ctorch\nFloatStorage\n)R", "the called object is a class of storages"},
      {"ccollections\nOrderedDict\nN\x85R", "collections.OrderedDict has 1 parts, expected 0"},
      {"ccollections\nOrderedDict\nNR", "collections.OrderedDict is None, expected a tuple"},
      {"}Nb", "the state of an object is None"},
      {"N}b", "an object with a state is None"},
      {"}b", "takes 2 values"},
      {"q\0", "takes 1 values"},
      {"}.", ""},
      {"}}.", "2 values and 0 MARKs are left"},
      {".", "0 values and 0 MARKs are left"},
      {"}(.", "1 values and 1 MARKs are left"},
      {"N.", "the file's content is None, expected a dict"},
      {text("a") + ".", "the file's content is a text"},
      {"X\xff\xff\xff\xff", "a text of 4294967295 bytes, but only 0 follow"},
      {"\x8a\x09" + std::string(9, '\1'), "a number of 9 bytes, expected at most 8"},
      {"\x8a\x02\1", "cut short"},
  };
  for (const auto& [code, message] : cases) {
    if (message.empty()) {
      EXPECT_TRUE(read_pickle(bytes_of(kStart + code)).ok());
    } else {
      EXPECT_THAT(error_of(kStart + (code == "q" ? std::string("q\0", 2) : code)), HasSubstr(message))
          << code;
    }
  }
}

TEST(PickleHostile, Numbers) {
  const auto offset_of = [](const std::string& code) -> std::int64_t {
    const std::string plain = tensor(storage("0", 6), 7, "", "");
    std::string changed = plain;
    changed.replace(plain.find(number(7)), 5, code);
    const auto tensors = read_pickle(bytes_of(dict(text("a") + changed)));
    EXPECT_TRUE(tensors.ok()) << tensors.status().message();
    return tensors.ok() ? tensors->front().offset : 0;
  };
  EXPECT_EQ(offset_of("K\xff"), 255);
  EXPECT_EQ(offset_of("M\xff\xff"), 65535);
  EXPECT_EQ(offset_of("J\xff\xff\xff\xff"), -1);
  EXPECT_EQ(offset_of("J\xff\xff\xff\x7f"), 2147483647);
  EXPECT_EQ(offset_of(std::string("\x8a\0", 2)), 0);
  EXPECT_EQ(offset_of("\x8a\x01\xff"), -1);
  EXPECT_EQ(offset_of("\x8a\x01\x7f"), 127);
  EXPECT_EQ(offset_of(std::string("\x8a\x02\xff\0", 4)), 255);
  EXPECT_EQ(offset_of("\x8a\x05" + little(std::uint64_t{1} << 32, 5)), std::int64_t{1} << 32);
  EXPECT_EQ(offset_of("\x8a\x08" + little(INT64_MAX, 8)), INT64_MAX);
  EXPECT_EQ(offset_of("\x8a\x08" + little(std::uint64_t{1} << 63, 8)), INT64_MIN);
}

TEST(PickleHostile, Memo) {
  EXPECT_THAT(error_of(kStart + std::string("h\0", 2)), HasSubstr("memo 0 is not there; it has 0"));
  EXPECT_THAT(error_of(kStart + "j\xff\xff\xff\xff"), HasSubstr("memo 4294967295 is not there"));
  EXPECT_THAT(error_of(kStart + "}q\1"), HasSubstr("memo 1, expected at most 0"));
  EXPECT_THAT(error_of(kStart + "}r\xff\xff\xff\xff"), HasSubstr("memo 4294967295, expected at most 0"));
  EXPECT_TRUE(read_pickle(bytes_of(kStart + "}" + std::string("q\0q\1q\0", 6) + ".")).ok());
  // A dict that contains itself, and tuples of tuples that would have 2^1000 leaves: values are not
  // traversed.
  const std::string get = std::string("h\0", 2);
  EXPECT_THAT(error_of(kStart + "}" + std::string("q\0", 2) + text("a") + get + "s."),
              HasSubstr("\"a\" is a dict, expected a tensor"));
  std::string doubling = kStart + "N" + std::string("q\0", 2);
  for (int i = 0; i < 1000; ++i) doubling += get + get + "\x86" + std::string("q\0", 2);
  EXPECT_THAT(error_of(doubling + "."), HasSubstr("values and 0 MARKs are left"));
}

TEST(PickleHostile, DeepAndLong) {
  constexpr std::size_t kMany = 1'000'000;
  EXPECT_THAT(error_of(kStart + std::string(kMany, '(') + "."), HasSubstr("1000000 MARKs"));
  EXPECT_THAT(error_of(kStart + std::string(kMany, '}') + "."), HasSubstr("more than 400000 dicts"));
  EXPECT_THAT(error_of(kStart + std::string(2 * kMany, 'N') + "."), HasSubstr("more than 1048576 values"));
  EXPECT_THAT(error_of(kStart + std::string(2 * kMany, '(') + "."), HasSubstr("more than 1048576 MARKs"));
  EXPECT_THAT(error_of(kStart + std::string(kMany, '(') + std::string(kMany, 't') + "."),
              HasSubstr("is a tuple"));
  EXPECT_THAT(error_of(kStart + ")" + std::string(kMany, '\x85') + "."),
              HasSubstr("is a tuple, expected a dict"));
  EXPECT_THAT(error_of(std::string(kPickleLimit + 1, ')')), HasSubstr("expected at most 16777216"));
  // A shape with very many extents.
  const std::string extents = tuple(std::string(kMany / 2, 'N'));
  EXPECT_THAT(error_of(dict(text("a") + tensor(storage("0", 1), 0, std::string(65 * 2, 'K'), ""))),
              HasSubstr("65 extents and 0 strides"));
  EXPECT_THAT(error_of(dict(text("a") + tensor(storage("0", 1), 0, "K\1", "N"))),
              HasSubstr("is None, expected a number"));
  EXPECT_THAT(error_of(dict(text("a") + tensor(storage("0", 1), 0, extents, extents))),
              HasSubstr("is a tuple, expected a number"));
}

// A memo repeats a long text with two bytes, so a small file could contain gigabytes of names.
TEST(PickleHostile, NamesThatRepeatOrAreLong) {
  const std::string name(kNameLimit, 'n');
  const std::string again = std::string("h\0", 2) + std::string("h\1", 2);
  const std::string first = text(name) + std::string("q\0", 2) + kTensor + std::string("q\1", 2);
  ASSERT_TRUE(read_pickle(bytes_of(dict(first))).ok());
  EXPECT_THAT(error_of(dict(first + again)), HasSubstr("given twice"));
  EXPECT_THAT(error_of(dict(text(name + "n") + kTensor)),
              HasSubstr("a tensor's name of 4097 bytes, expected at most 4096"));
  EXPECT_THAT(error_of(dict(text("a") + tensor(storage(name + "n", 6), 0, "", ""))),
              HasSubstr("a storage's key of 4097 bytes, expected at most 4096"));
}

TEST(PickleHostile, TensorsThatAreNone) {
  const auto one = [](const std::string& value) { return dict(text("a") + value); };
  ASSERT_TRUE(read_pickle(bytes_of(one(kTensor))).ok());
  EXPECT_THAT(error_of(one(storage("0", 1, "ComplexFloatStorage"))),
              HasSubstr("global \"torch\" \"ComplexFloatStorage\""));
  EXPECT_THAT(error_of(one(storage("0", 1))), HasSubstr("\"a\" is a storage, expected a tensor"));
  EXPECT_THAT(error_of(one("ctorch\nFloatStorage\n")), HasSubstr("\"a\" is a class of storages"));
  EXPECT_THAT(error_of(one("ctorch._utils\n_rebuild_tensor_v2\n")), HasSubstr("\"a\" is a function"));
  EXPECT_THAT(error_of(one("ctorch._utils\n_rebuild_tensor_v2\n)R")),
              HasSubstr("_rebuild_tensor_v2 has 0 parts, expected 6"));
  EXPECT_THAT(error_of(one(tensor("N", 0, "", ""))),
              HasSubstr("_rebuild_tensor_v2: part 1 is None, expected a storage"));
  EXPECT_THAT(error_of(one("ctorch._utils\n_rebuild_parameter\nN\x85R")),
              HasSubstr("_rebuild_parameter has 1 parts"));
  EXPECT_THAT(error_of(one("ctorch._utils\n_rebuild_parameter\n(N\x89}tR")),
              HasSubstr("part 1 is None, expected a tensor"));
  EXPECT_TRUE(read_pickle(bytes_of(one("ctorch._utils\n_rebuild_parameter\n(" + kTensor + "\x88}tR"))).ok());
  const std::string other =
      tuple(text("module") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(1)) + "Q";
  EXPECT_THAT(error_of(one(other)), HasSubstr("an id of \"module\", expected of a storage"));
}

}  // namespace
}  // namespace octavo_train
