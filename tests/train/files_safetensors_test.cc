// Tests that tensors are read as they were written, and that tensors that cannot be written are rejected
// before the file is changed.
// SPDX-License-Identifier: MIT
#include "tests/train/files_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace octavo_train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::string> kDtypes = {"BOOL", "U8",  "I8",  "F8_E4M3", "F8_E5M2", "F8_E8M0",
                                          "U16",  "I16", "F16", "BF16",    "U32",     "I32",
                                          "F32",  "U64", "I64", "F64"};

void expect_same(const std::string& path, const std::vector<TensorSource>& sources) {
  const auto file = Safetensors::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), sources.size());
  for (const TensorSource& source : sources) {
    const StoredTensor* stored = file->find(source.name);
    ASSERT_NE(stored, nullptr) << source.name;
    EXPECT_EQ(stored->name, source.name);
    EXPECT_EQ(stored->dtype, source.dtype);
    EXPECT_EQ(stored->shape, source.shape);
    EXPECT_EQ(text_of(stored->bytes), text_of(*source.bytes())) << source.name;
  }
}

TEST(Safetensors, EveryDtypeAndShapeComesBack) {
  const TempFolder folder;
  const std::string path = folder.at("a.safetensors");
  std::vector<TensorSource> sources;
  for (const std::string& dtype : kDtypes) {
    ASSERT_NE(element_size(dtype), 0u) << dtype;
    const std::vector<std::vector<std::int64_t>> shapes = {{},     {0},    {1},          {3, 5},
                                                           {7, 0}, {0, 7}, {1, 2, 3, 1}, {4097}};
    for (const auto& shape : shapes) {
      sources.push_back(
          make_tensor(dtype + "." + std::to_string(sources.size()), dtype, shape, sources.size()));
    }
  }
  ASSERT_TRUE(write_safetensors(path, sources).ok());
  expect_same(path, sources);
  const auto size = safetensors_size(sources);
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(*size, read_bytes(path).size());

  // Sizes are odd and widths mixed, but every tensor is aligned to its elements.
  const auto file = Safetensors::open(path);
  for (const StoredTensor& tensor : file->tensors())
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % element_size(tensor.dtype), 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file->tensors().front().bytes.data()) % 8, 0u);
}

TEST(Safetensors, BytesOfAFile) {
  const TempFolder folder;
  const std::string path = folder.at("a.safetensors");
  const std::string data("\x01\x02\x03\x04", 4);
  const std::vector<TensorSource> sources = {
      {"bcd", "U8", {2}, [&]() -> Result<Bytes> { return std::as_bytes(std::span(data)).first(2); }},
      {"a", "I16", {}, [&]() -> Result<Bytes> { return std::as_bytes(std::span(data)).last(2); }}};
  ASSERT_TRUE(write_safetensors(path, sources, {{"format", "pt"}}).ok());
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"I16","shape":[],"data_offsets":[0,2]},)"
      R"("bcd":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})"
      "      ";
  EXPECT_EQ(header.size() % 8, 0u);
  const std::string length{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(read_bytes(path), length + header + std::string("\x03\x04\x01\x02", 4));
}

TEST(Safetensors, NoTensorsAndMetadata) {
  const TempFolder folder;
  const std::string path = folder.at("a.safetensors");
  ASSERT_TRUE(write_safetensors(path, {}).ok());
  expect_same(path, {});
  const std::map<std::string, std::string> metadata = {
      {"", ""}, {"format", "pt"}, {"text", "two\nlines \"quoted\" \\ ü \x01"}};
  ASSERT_TRUE(write_safetensors(path, {}, metadata).ok());
  const auto file = Safetensors::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->metadata(), metadata);
  EXPECT_EQ(file->find("format"), nullptr);
}

TEST(Safetensors, AnyUtf8NameIsFound) {
  const TempFolder folder;
  const std::string path = folder.at("a.safetensors");
  std::vector<TensorSource> sources;
  for (const std::string& name : {std::string(), std::string("ä.\"b\"\\\n"), std::string("nul\0nul", 7),
                                  std::string(5000, 'x'), std::string("z"), std::string("a")})
    sources.push_back(make_tensor(name, "F32", {3}, sources.size()));
  ASSERT_TRUE(write_safetensors(path, sources).ok());
  expect_same(path, sources);
  EXPECT_EQ(Safetensors::open(path)->find("b"), nullptr);
}

TEST(Safetensors, SourcesAreAskedOnceInTheOrderOfTheFile) {
  const TempFolder folder;
  const std::string path = folder.at("a.safetensors");
  std::vector<std::string> asked;
  std::string buffer;  // shared by all tensors
  std::vector<TensorSource> sources;
  for (const auto& [name, dtype] : std::vector<std::pair<std::string, std::string>>{
           {"codes", "U8"}, {"weight", "F32"}, {"half", "BF16"}, {"bias", "F32"}}) {
    sources.push_back({name, dtype, {3}, [&, name, dtype]() -> Result<Bytes> {
                         asked.push_back(name);
                         buffer.assign(3 * element_size(dtype), name.front());
                         return std::as_bytes(std::span(buffer));
                       }});
  }
  ASSERT_TRUE(write_safetensors(path, sources).ok());
  EXPECT_THAT(asked, ElementsAre("weight", "bias", "half", "codes"));
  const auto file = Safetensors::open(path);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(file->tensors()[i].name, asked[i]);
    EXPECT_EQ(text_of(file->tensors()[i].bytes), std::string(file->tensors()[i].bytes.size(), asked[i][0]));
  }
}

TEST(Safetensors, MovedFilesKeepTheirBytes) {
  const TempFolder folder;
  const std::string path = folder.at("a.safetensors");
  const std::vector<TensorSource> sources = {make_tensor("a", "F32", {1000})};
  ASSERT_TRUE(write_safetensors(path, sources).ok());
  auto first = Safetensors::open(path);
  ASSERT_TRUE(first.ok());
  const Bytes bytes = first->find("a")->bytes;
  const Safetensors second = std::move(*first);
  EXPECT_EQ(second.find("a")->bytes.data(), bytes.data());
  // A mapping that is open stays unchanged when the file is replaced or removed.
  ASSERT_TRUE(write_safetensors(path, {}).ok());
  EXPECT_EQ(text_of(bytes), text_of(*sources[0].bytes()));
}

TEST(Safetensors, WhatCannotBeWrittenLeavesTheOldFile) {
  const TempFolder folder;
  const std::string path = folder.at("a.safetensors");
  write_bytes(path, "old");
  const auto refused = [&](std::vector<TensorSource> sources,
                           const std::map<std::string, std::string>& metadata = {}) {
    const Status status = write_safetensors(path, sources, metadata);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("a.safetensors"));
    EXPECT_EQ(read_bytes(path), "old");
    EXPECT_THAT(names_in(folder.path()), ElementsAre("a.safetensors"));
    return status.message();
  };
  const TensorSource good = make_tensor("good", "F32", {2});
  EXPECT_EQ(refused({good, good}), path + ": tensor \"good\": given twice; names must differ");
  EXPECT_THAT(refused({{"__metadata__", "U8", {1}, good.bytes}}), HasSubstr("keeps this name for itself"));
  EXPECT_THAT(refused({{"a", "F31", {1}, good.bytes}}),
              HasSubstr("tensor \"a\": dtype \"F31\", expected one of BOOL"));
  EXPECT_THAT(refused({{"a", "F32", {-1}, good.bytes}}),
              HasSubstr("shape [-1], expected extents of 0 or more"));
  EXPECT_THAT(refused({{"a", "F32", {INT64_MAX, 2}, good.bytes}}), HasSubstr("less than 2^63 bytes"));
  EXPECT_THAT(refused({{"a", "U8", {INT64_MAX}, good.bytes}, good}),
              HasSubstr("more than 2^63 bytes together"));
  EXPECT_THAT(refused({{"a", "F32", {2}, {}}}), HasSubstr("no function that returns its bytes"));
  EXPECT_THAT(refused({{"\xff", "F32", {2}, good.bytes}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(refused({good}, {{"a", "\xc3"}}), HasSubstr("not UTF-8"));
  // The error is found in the middle of the file.
  EXPECT_THAT(refused({good, {"a", "F32", {3}, good.bytes}}),
              HasSubstr("tensor \"a\": 8 bytes given, expected 12 for F32 [3]"));
  EXPECT_THAT(
      refused({good, {"a", "F32", {3}, []() -> Result<Bytes> { return Status::failed("lost the GPU"); }}}),
      HasSubstr("tensor \"a\": lost the GPU"));
}

TEST(Safetensors, PlacesThatAreNoFiles) {
  const TempFolder folder;
  EXPECT_THAT(Safetensors::open(folder.at("none")).status().message(),
              StartsWith(folder.at("none: cannot open: ")));
  EXPECT_THAT(Safetensors::open(folder.path()).status().message(), HasSubstr("is a folder, expected a file"));
  EXPECT_THAT(Safetensors::open("/dev/zero").status().message(), HasSubstr("is a pipe or a device"));
  ASSERT_EQ(::mkfifo(folder.at("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Safetensors::open(folder.at("pipe")).status().message(), HasSubstr("is a pipe or a device"));
  EXPECT_THAT(write_safetensors(folder.at("pipe"), {}).message(), HasSubstr("is there and not a file"));
  EXPECT_THAT(write_safetensors(folder.path() + "/", {}).message(), HasSubstr("is there and not a file"));
  EXPECT_THAT(write_safetensors("", {}).message(), HasSubstr("expected the name of a file"));
  EXPECT_THAT(write_safetensors(folder.at("none/a"), {}).message(), HasSubstr("cannot create"));
}

}  // namespace
}  // namespace octavo_train
