// Tests that cuBLASLt is queried for an algorithm that allows the alignment of the matrices.
// SPDX-License-Identifier: MIT
#include "tests/cuda/fake_runtime.h"

#include <octavo/fp8.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace {

using octavo::test::fake;
using testing::Contains;
using testing::Pair;

constexpr int kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8;
constexpr std::int64_t kSide = 16;

class Products : public testing::Test {
 protected:
  void SetUp() override { octavo::test::reset(); }

  // Multiplies matrices that begin some bytes after a multiple of 256.
  void multiply(std::size_t a, std::size_t b, std::size_t to) {
    octavo::fp8::MatmulArgs args;
    args.device = {octavo::DeviceKind::cuda, 0};
    args.a.rows = args.a.inner = args.b.rows = args.b.inner = kSide;
    args.a.data = reinterpret_cast<const std::uint8_t*>(memory_[0].data() + a);
    args.b.data = reinterpret_cast<const std::uint8_t*>(memory_[1].data() + b);
    args.a.inverse = args.b.inverse = &inverse_;
    args.to = memory_[2].data() + to;
    args.workspace = memory_[3].data();
    const octavo::Status status = octavo::fp8::matmul(args);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  struct alignas(256) Matrix : std::array<std::byte, 1024> {};
  std::array<Matrix, 4> memory_{};
  float inverse_ = 1.0F;
};

// The library's matrices are column-major, so its first operand is b.
TEST_F(Products, AnAlgorithmKnowsTheAlignmentOfEachMatrix) {
  multiply(32, 128, 16);
  ASSERT_EQ(fake().matmuls.size(), 1U);
  const auto& known = fake().matmuls[0].alignments;
  EXPECT_THAT(known, Contains(Pair(kAlignmentA, 128U)));
  EXPECT_THAT(known, Contains(Pair(kAlignmentB, 32U)));
  EXPECT_THAT(known, Contains(Pair(kAlignmentC, 16U)));
  EXPECT_THAT(known, Contains(Pair(kAlignmentD, 16U)));
}

TEST_F(Products, AnAlgorithmIsNotUsedAtALesserAlignment) {
  multiply(0, 0, 0);
  multiply(0, 0, 64);
  multiply(0, 0, 0);
  ASSERT_EQ(fake().matmuls.size(), 3U);
  EXPECT_THAT(fake().matmuls[0].alignments, Contains(Pair(kAlignmentD, 256U)));
  EXPECT_THAT(fake().matmuls[1].alignments, Contains(Pair(kAlignmentD, 64U)));
  EXPECT_THAT(fake().matmuls[2].alignments, Contains(Pair(kAlignmentD, 256U)));
  EXPECT_LE(fake().heuristics, 2U);  // an algorithm that was found is reused
}

}  // namespace
