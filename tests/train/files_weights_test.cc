// Tests the weights of a checkpoint in full precision: bf16 with and without master bits, and files that do
// not match.
// SPDX-License-Identifier: MIT
#include "tests/train/files_support.h"
#include "train/checkpoint/folder/checkpoint_weights.h"

#include <octavo/codec.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace octavo_train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kCount = 6;
const std::vector<float> kValues = {1.0F, -0.3F, 1.0e-5F, 3.1415927F, -123.456F, 0.0F};

struct Split {
  std::vector<std::uint16_t> halves = std::vector<std::uint16_t>(kCount);
  std::vector<std::byte> bits;
};

Split split(octavo::WeightStore store) {
  Split out;
  out.bits.resize(static_cast<std::size_t>(octavo::residual_bytes(store, kCount)));
  EXPECT_TRUE(octavo::split_weights(store, kValues, out.halves, out.bits).ok());
  return out;
}

TensorSource source(std::string name, std::string dtype, Bytes bytes) {
  const auto count = static_cast<std::int64_t>(bytes.size() / element_size(dtype));
  return {std::move(name), std::move(dtype), {count}, [bytes]() -> Result<Bytes> { return bytes; }};
}

std::string save(const TempFolder& folder, std::int64_t step, const std::vector<TensorSource>& model,
                 const std::vector<TensorSource>& optimizer) {
  auto writer = CheckpointWriter::begin(folder.path(), step, 1000);
  EXPECT_TRUE(writer.ok());
  EXPECT_TRUE(writer->add_tensors("model.safetensors", model, {}).ok());
  if (!optimizer.empty()) {
    EXPECT_TRUE(writer->add_tensors("optimizer.safetensors", optimizer, {}).ok());
  }
  EXPECT_TRUE(writer->commit().ok());
  return folder.at("checkpoint-" + std::to_string(step));
}

std::vector<float> values_of(const TensorSource& source) {
  const Bytes bytes = source.bytes().value();
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

std::string error_of(const std::string& path) { return CheckpointWeights::open(path).status().message(); }

TEST(CheckpointWeights, MasterBitsMakeTheWeightsOfTheRun) {
  const TempFolder folder;
  const Split full = split(octavo::WeightStore::residual16), most = split(octavo::WeightStore::residual8),
              none = split(octavo::WeightStore::nearest);
  const std::int64_t batches = 7;
  const std::vector<TensorSource> model = {source("full", "BF16", std::as_bytes(std::span(full.halves))),
                                           source("most", "BF16", std::as_bytes(std::span(most.halves))),
                                           source("none", "BF16", std::as_bytes(std::span(none.halves))),
                                           source("wide", "F32", std::as_bytes(std::span(kValues))),
                                           source("batches", "I64", std::as_bytes(std::span(&batches, 1)))};
  const std::vector<TensorSource> optimizer = {
      source("full.master", "I16", full.bits), source("most.master", "I8", most.bits),
      source("full.moment_0", "F32", std::as_bytes(std::span(kValues))),
      source("wide.moment_0", "F32", std::as_bytes(std::span(kValues)))};
  const std::string path = save(folder, 1, model, optimizer);
  const auto weights = CheckpointWeights::open(path);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->widened(), 3U);
  EXPECT_EQ(weights->masters(), 2U);
  std::map<std::string, TensorSource> found;
  for (const TensorSource& each : weights->sources()) found[each.name] = each;
  ASSERT_EQ(found.size(), 5U);
  for (const char* name : {"full", "most", "none", "wide"}) {
    EXPECT_EQ(found[name].dtype, "F32");
    EXPECT_EQ(found[name].shape, (std::vector<std::int64_t>{kCount}));
  }
  EXPECT_EQ(found["batches"].dtype, "I64");
  EXPECT_EQ(values_of(found["full"]), kValues);
  EXPECT_EQ(values_of(found["wide"]), kValues);
  const std::vector<float> near = values_of(found["most"]), rounded = values_of(found["none"]);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_LE(std::abs(near[i] - kValues[i]), std::ldexp(std::abs(kValues[i]), -16));
    EXPECT_EQ(rounded[i], std::bit_cast<float>(static_cast<std::uint32_t>(none.halves[i]) << 16U));
  }
  EXPECT_NE(near, rounded);
}

TEST(CheckpointWeights, FilesThatDoNotFit) {
  const TempFolder folder;
  const Split full = split(octavo::WeightStore::residual16);
  const Bytes halves = std::as_bytes(std::span(full.halves)), bits(full.bits);
  const std::vector<TensorSource> model = {source("a", "BF16", halves)};
  const std::string shorter = save(folder, 1, model, {source("a.master", "I16", bits.first(4))});
  EXPECT_THAT(error_of(shorter), AllOf(HasSubstr("optimizer.safetensors: a.master is I16 with 4 bytes"),
                                       HasSubstr("6 elements of a")));
  const std::string other = save(folder, 2, model, {source("a.master", "U16", bits)});
  EXPECT_THAT(error_of(other), HasSubstr("a.master is U16"));
  const std::string torn = save(folder, 3, model, {source("a.master", "I16", bits)});
  write_bytes(torn + "/optimizer.safetensors", "torn");
  EXPECT_THAT(error_of(torn), HasSubstr("optimizer.safetensors: has 4 bytes"));
  const auto bare = CheckpointWeights::open(save(folder, 4, model, {}));
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(bare->masters(), 0U);
  // The optimizer's file, which is the largest, is not read if weights are fp32.
  const std::string wide = save(folder, 5, {source("a", "F32", std::as_bytes(std::span(kValues)))}, model);
  write_bytes(wide + "/optimizer.safetensors", "torn");
  EXPECT_EQ(error_of(wide), "");
  EXPECT_THAT(error_of(folder.at("none")), HasSubstr("none/model.safetensors"));
}

}  // namespace
}  // namespace octavo_train
