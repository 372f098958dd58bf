// Tests torch files: tensors that do not fit their storages are errors, strides are applied, and written
// files can be read. test_archives.py tests them with Python.
// SPDX-License-Identifier: MIT
#include "train/formats/torch_file.h"
#include "train/archive_support.h"
#include "train/files_support.h"
#include "train/formats/nemo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo_train {
namespace {

using namespace pickled;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns a file with one tensor `a` of bytes.
std::string one(std::uint32_t elements, std::uint32_t offset, const std::string& shape,
                const std::string& strides, const std::string& data = "abcdef") {
  return torch_of(dict(text("a") + tensor(storage("0", elements, "ByteStorage"), offset, shape, strides)),
                  {data});
}

std::string numbers(const std::vector<std::uint32_t>& values) {
  std::string items;
  for (const std::uint32_t value : values) items += number(value);
  return items;
}

std::string error_of(const std::string& file) {
  const auto opened = TorchFile::read(bytes_of(file));
  EXPECT_FALSE(opened.ok());
  return opened.ok() ? "" : opened.status().message();
}

std::string data_of(const std::string& file) {
  const auto opened = TorchFile::read(bytes_of(file));
  return opened.ok() ? text_of(opened->find("a")->bytes) : opened.status().message();
}

std::vector<TensorSource> some_tensors() {
  return {make_tensor("a", "F32", {2, 3}, 1), make_tensor("b", "I64", {}, 2),
          make_tensor("c", "U8", {0, 4}, 3), make_tensor("d ü", "BF16", {5}, 4)};
}

TEST(TorchFile, WhatIsWrittenIsRead) {
  const TempFolder folder;
  const auto sources = some_tensors();
  ASSERT_TRUE(write_torch_file(folder.at("x"), sources).ok());
  const auto plan = plan_torch_file(sources);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->size, read_bytes(folder.at("x")).size());
  auto opened = TorchFile::open(folder.at("x"));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const TorchFile file = std::move(*opened);
  ASSERT_EQ(file.tensors().size(), sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const StoredTensor& tensor = file.tensors()[i];
    EXPECT_EQ(file.find(sources[i].name), &tensor);
    EXPECT_EQ(tensor.dtype, sources[i].dtype);
    EXPECT_EQ(tensor.shape, sources[i].shape);
    EXPECT_EQ(text_of(tensor.bytes), text_of(*sources[i].bytes()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % 64, 0u);
  }
  EXPECT_EQ(file.find("none"), nullptr);
}

TEST(TorchFile, EveryTruncationIsNoticed) {
  const TempFolder folder;
  ASSERT_TRUE(write_torch_file(folder.at("x"), some_tensors()).ok());
  const std::string whole = read_bytes(folder.at("x"));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(TorchFile::read(bytes_of(std::string_view(whole).substr(0, size))).ok()) << size;
  write_bytes(folder.at("x"), whole.substr(0, whole.size() - 1));
  EXPECT_THAT(TorchFile::open(folder.at("x")).status().message(),
              StartsWith(folder.at("x") + ": no end of a zip"));
}

TEST(TorchFile, EveryFlippedBit) {
  const TempFolder folder;
  ASSERT_TRUE(write_torch_file(folder.at("x"), some_tensors()).ok());
  std::string bytes = read_bytes(folder.at("x"));
  for (std::size_t at = 0; at < bytes.size() * 8; ++at) {
    const char was = bytes[at / 8];
    bytes[at / 8] = static_cast<char>(static_cast<unsigned char>(was) ^ (1u << at % 8));
    if (const auto file = TorchFile::read(bytes_of(bytes)); file.ok()) {
      for (const StoredTensor& tensor : file->tensors()) {
        const std::string data = text_of(tensor.bytes);  // reads all bytes
        EXPECT_LE(data.size(), bytes.size());
      }
    }
    bytes[at / 8] = was;
  }
}

TEST(TorchFile, Strides) {
  EXPECT_EQ(data_of(one(6, 0, numbers({6}), numbers({1}))), "abcdef");
  EXPECT_EQ(data_of(one(6, 2, numbers({3}), numbers({1}))), "cde");
  EXPECT_EQ(data_of(one(6, 0, numbers({3, 2}), numbers({1, 3}))), "adbecf");
  EXPECT_EQ(data_of(one(6, 1, numbers({3}), numbers({2}))), "bdf");
  EXPECT_EQ(data_of(one(6, 1, numbers({2, 3}), numbers({0, 1}))), "bcdbcd");
  EXPECT_EQ(data_of(one(6, 0, numbers({2, 2, 2}), numbers({1, 2, 1}))), "abcdbcde" + std::string());
  EXPECT_EQ(data_of(one(6, 3, "", "")), "d");
  EXPECT_EQ(data_of(one(6, 5, numbers({1, 1}), numbers({99, 77}))), "f");
  // The stride of an extent of 1 may be any number, and is not added to the others.
  const std::string any = "\x8a\x08" + little(INT64_MAX, 8);
  EXPECT_EQ(data_of(one(6, 0, numbers({2, 1, 2}), number(3) + any + number(2))), "acdf");
  EXPECT_EQ(data_of(one(6, 6, numbers({0}), numbers({1}))), "");
  EXPECT_EQ(data_of(one(6, 0, numbers({0, 9}), numbers({9, 99}))), "");
}

TEST(TorchFile, TensorsThatDoNotFit) {
  const std::uint32_t minus = 0xffffffff;
  for (const std::string& file :
       {one(6, 0, numbers({7}), numbers({1})), one(6, 1, numbers({6}), numbers({1})),
        one(6, 7, numbers({0}), numbers({1})), one(6, minus, numbers({1}), numbers({1})),
        one(6, 0, numbers({2}), numbers({6})), one(6, 0, numbers({2}), numbers({minus})),
        one(6, 5, numbers({2}), numbers({minus})), one(6, 0, numbers({2, 2}), numbers({5, 1})),
        one(6, 6, "", "")}) {
    EXPECT_THAT(error_of(file), HasSubstr("does not fit its storage of 6 elements"));
    EXPECT_THAT(error_of(file), StartsWith("tensor \"a\": U8 ["));
  }
  EXPECT_THAT(error_of(one(6, 0, numbers({minus}), numbers({1}))),
              HasSubstr("expected extents of 0 or more"));
  EXPECT_THAT(error_of(one(5, 0, numbers({1}), numbers({1}))),
              HasSubstr("has 6 bytes, expected 5 elements of U8"));
  EXPECT_THAT(error_of(one(minus, 0, numbers({1}), numbers({1}))),
              HasSubstr("has 6 bytes, expected -1 elements"));
  // Multiplications and sums that overflow.
  const std::string huge = "\x8a\x08" + little(INT64_MAX, 8);
  const std::string half = "\x8a\x08" + little(std::uint64_t{1} << 62, 8);
  EXPECT_THAT(error_of(one(6, 0, huge + huge, numbers({0, 0}))), HasSubstr("less than 2^63 bytes"));
  EXPECT_THAT(error_of(one(6, 0, numbers({3}), half)), HasSubstr("does not fit"));
  EXPECT_THAT(error_of(one(6, 0, numbers({3, 3}), half + half)), HasSubstr("does not fit"));
  EXPECT_THAT(error_of(one(6, 0, numbers({2, 2}), huge + huge)), HasSubstr("does not fit"));
  // A few bytes expand to many.
  EXPECT_THAT(error_of(one(6, 0, huge, numbers({0}))),
              HasSubstr("its strides repeat elements: 9223372036854775807 bytes"));
  EXPECT_THAT(error_of(one(6, 0, numbers({1 << 25}), numbers({0}))),
              HasSubstr("33554432 bytes to copy, expected at most 16777"));
  EXPECT_EQ(data_of(one(6, 0, numbers({1 << 20}), numbers({0}))), std::string(1 << 20, 'a'));
}

TEST(TorchFile, EmptyTensorsOfAnyShape) {
  const TempFolder folder;
  const std::vector<TensorSource> sources = {make_tensor("a", "F32", {0, INT64_MAX, INT64_MAX}, 1)};
  ASSERT_TRUE(write_torch_file(folder.at("x"), sources).ok());
  const auto file = TorchFile::open(folder.at("x"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors()[0].shape, sources[0].shape);
  EXPECT_TRUE(file->tensors()[0].bytes.empty());
}

TEST(TorchFile, ArchivesThatAreNone) {
  const std::string value = tensor(storage("0", 1, "ByteStorage"), 0, "", "");
  EXPECT_THAT(error_of(torch_of(dict(text("a") + value + text("a") + value), {"x"})),
              HasSubstr("tensor \"a\": given twice"));
  EXPECT_THAT(error_of(torch_of(dict(text("a") + value), {})),
              HasSubstr("its storage \"archive/data/0\" is not in the archive"));
  const std::string up = tensor(storage("../data.pkl", 1, "ByteStorage"), 0, "", "");
  EXPECT_THAT(error_of(torch_of(dict(text("a") + up), {"x"})),
              HasSubstr("\"archive/data/../data.pkl\" is not in the archive"));
  EXPECT_THAT(error_of(zip_of({{"data.pkl", dict("")}})), HasSubstr("without NAME/data.pkl"));
  EXPECT_THAT(error_of(zip_of({{"a/b/data.pkl", dict("")}})), HasSubstr("without NAME/data.pkl"));
  EXPECT_THAT(error_of(zip_of({{"a/data.pkl", dict("")}, {"b/data.pkl", dict("")}})),
              HasSubstr("two files data.pkl"));
  EXPECT_THAT(error_of(zip_of({{"a/data.pkl", dict("")}, {"a/byteorder", "big"}})),
              HasSubstr("byteorder\": \"big\", expected \"little\""));
  EXPECT_THAT(error_of(torch_of("cos\nsystem\n", {})),
              StartsWith("\"archive/data.pkl\": byte 0: opcode 0x63 GLOBAL: global \"os\""));
  EXPECT_THAT(error_of("\x80\x02\x8a\x0a" + std::string(100, 'l')), HasSubstr("torch before 1.6"));
  EXPECT_TRUE(TorchFile::read(bytes_of(zip_of({{"a/data.pkl", dict("")}}))).ok());
}

TEST(TorchFile, WritersRefuseToo) {
  const TempFolder folder;
  const auto error = [&](const TensorSource& source) {
    const std::vector<TensorSource> sources = {make_tensor("x", "F32", {1}, 1), source};
    return write_torch_file(folder.at("x"), sources).message();
  };
  EXPECT_THAT(error(make_tensor("x", "F32", {1}, 1)), HasSubstr("given twice"));
  EXPECT_THAT(error(make_tensor("a", "F8_E4M3", {1}, 1)),
              HasSubstr("torch has no storage class for dtype \"F8_E4M3\""));
  EXPECT_THAT(error(make_tensor("\xff", "F32", {1}, 1)), HasSubstr("not UTF-8"));
  EXPECT_THAT(error({"a", "F32", {-1}, make_tensor("a", "F32", {1}, 1).bytes}),
              HasSubstr("extents of 0 or more"));
  EXPECT_THAT(error({"a", "F32", {2}, make_tensor("a", "F32", {1}, 1).bytes}),
              HasSubstr("4 bytes given, expected 8"));
  EXPECT_THAT(error({"a", "F32", {2}, [] { return Status::failed("the GPU is gone"); }}),
              HasSubstr("tensor \"a\": the GPU is gone"));
  EXPECT_THAT(names_in(folder.path()), ::testing::IsEmpty());
}

TEST(NemoArchive, WhatIsWrittenIsRead) {
  const TempFolder folder;
  const auto sources = some_tensors();
  ASSERT_TRUE(
      write_nemo(folder.at("x.nemo"), "target: a\n", sources, {{"0a_tokenizer.model", "pieces"}}).ok());
  auto opened = NemoArchive::open(folder.at("x.nemo"));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const NemoArchive archive = std::move(*opened);
  EXPECT_EQ(archive.config(), "target: a\n");
  EXPECT_EQ(text_of(archive.find("0a_tokenizer.model")->bytes), "pieces");
  EXPECT_EQ(archive.files().size(), 3u);
  for (const TensorSource& source : sources) {
    const StoredTensor* tensor = archive.weights().find(source.name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(text_of(tensor->bytes), text_of(*source.bytes()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor->bytes.data()) % 64, 0u);  // mapped without a copy
  }
  EXPECT_THAT(write_nemo(folder.at("y.nemo"), "", sources, {{"model_config.yaml", ""}}).message(),
              HasSubstr("given twice"));
}

}  // namespace
}  // namespace octavo_train
