// Tests rows with and without gradients in the benchmark's workloads: how many there are, which ones, and the
// optimizer states that steps leave in rows that never had a gradient.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/algorithm.h"
#include "benchmarks/engine/options.h"
#include "benchmarks/engine/rows.h"
#include "benchmarks/engine/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace octavo::cli {
namespace {

std::int64_t count(const std::vector<std::byte>& masks) { return std::ranges::count(masks, std::byte{1}); }

TensorShape only(std::string_view shape, std::int64_t numel = 1) { return tensor_list(shape, numel).front(); }

TEST(BenchRows, ATensorWithoutZerosHasNoMask) {
  const std::vector<TensorShape> tensors = tensor_list("gpt2", 1);
  const GradRows rows(tensors, 0.0);
  EXPECT_FALSE(rows.some_without());
  EXPECT_EQ(rows.bytes(), 0);
  EXPECT_EQ(rows.mask(0, nullptr).touched, nullptr);
  EXPECT_DOUBLE_EQ(rows.share(rows.masks_at(1)), 1.0);
  EXPECT_FALSE(GradRows().some_without());
}

TEST(BenchRows, ZerosAreAnExactShareOfRowsAndNoVectors) {
  const std::vector<TensorShape> flat = tensor_list("flat", 51'200'000);
  for (const double zeros : {0.5, 0.9, 0.99, 1.0}) {
    const GradRows rows(flat, zeros);
    EXPECT_EQ(rows.bytes(), 50'000);
    EXPECT_EQ(count(rows.masks_at(1)), std::llround((1.0 - zeros) * 50'000.0));
    EXPECT_EQ(rows.masks_at(1), rows.masks_at(2));
    EXPECT_NEAR(rows.share(rows.masks_at(1)), 1.0 - zeros, 1e-12);
  }
  // The rows are scattered: each thousand rows holds some of the 10% with a gradient.
  const std::vector<std::byte> masks = GradRows(flat, 0.9).masks_at(1);
  for (std::size_t at = 0; at < masks.size(); at += 1000) {
    const auto part = std::count(masks.begin() + static_cast<std::ptrdiff_t>(at),
                                 masks.begin() + static_cast<std::ptrdiff_t>(at + 1000), std::byte{1});
    EXPECT_GT(part, 50);
    EXPECT_LT(part, 150);
  }
  EXPECT_EQ(row_rule(TensorShape("bias", {768}), 0.9).rows, 0);
  EXPECT_EQ(row_rule(TensorShape("weight", {10, 4}), 0.9).alive, 1);
}

TEST(BenchRows, TokensAreDrawnByZipf) {
  const std::vector<TensorShape> table = tensor_list("gpt2-embedding", 1);
  const GradRows rows(table, 0.0);
  EXPECT_TRUE(rows.change());
  std::vector<int> hits(50'257);
  std::vector<std::byte> ever(50'257);
  constexpr int kSteps = 300;
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<std::byte> masks = rows.masks_at(step);
    EXPECT_LT(count(masks), 512);
    EXPECT_GT(count(masks), 200);
    for (std::size_t row = 0; row < masks.size(); ++row)
      if (masks[row] == std::byte{1}) ++hits[row], ever[row] = std::byte{1};
  }
  EXPECT_EQ(rows.masks_at(7), rows.masks_at(7));
  EXPECT_NE(rows.masks_at(7), rows.masks_at(8));
  // The most frequent tokens are in every batch; most of the others are drawn a few times or never.
  EXPECT_EQ(*std::ranges::max_element(hits), kSteps);
  EXPECT_GT(count(ever), 50'257 / 4);
  EXPECT_LT(count(ever), 50'257 * 3 / 4);
}

TEST(BenchRows, AnExpertIsTheSameInAllOfItsTensors) {
  const std::vector<TensorShape> moe = tensor_list("moe", 1);
  const GradRows rows(moe, 0.0);
  ASSERT_EQ(rows.bytes() % 64, 0);
  std::vector<std::byte> ever(64);
  for (int step = 1; step <= 300; ++step) {
    const std::vector<std::byte> masks = rows.masks_at(step);
    for (std::size_t at = 64; at < masks.size(); at += 64)
      EXPECT_TRUE(
          std::equal(masks.begin(), masks.begin() + 64, masks.begin() + static_cast<std::ptrdiff_t>(at)));
    for (std::size_t i = 0; i < 64; ++i) ever[i] |= masks[i];
  }
  EXPECT_EQ(count(ever), 56);  // an eighth is never chosen
}

TEST(BenchRows, AnAdapterStartsWithoutWeightsOnOneSideAndGradientsOnTheOther) {
  EXPECT_EQ(only("lora").role, TensorRole::adapter_in);
  const RowRule rule = row_rule(only("lora"), 0.0);
  EXPECT_EQ(rule.rows, 8);
  EXPECT_EQ(rule.alive, 0);
  EXPECT_EQ(row_rule(tensor_list("lora", 1)[1], 0.0).rows, 0);

  const std::unique_ptr<BenchDevice> host = make_host_device(1);
  std::vector<TensorShape> pair = tensor_list("lora", 1);
  pair.erase(pair.begin() + 2, pair.end());
  RunSpec run;
  run.config = usual_config(*parse_algorithm(kDefaultOptimizer));
  const BenchTensors tensors{pair, 0.0};
  Workload workload(*host, run, tensors, tensor_specs(run, pair, true));
  EXPECT_DOUBLE_EQ(workload.touched(), 0.5);
  for (const Workload::Piece& piece : workload.read()) {
    const bool zero = std::ranges::all_of(piece.bytes, [](std::byte b) { return b == std::byte{0}; });
    EXPECT_EQ(zero, piece.what != "tensor 0 (8192 elements), param") << piece.what;
  }
}

// Uses fp32 states, whose bytes are the moments themselves.
TEST(BenchRows, StepsLeaveZeroMomentsWhereNoGradientWas) {
  const std::unique_ptr<BenchDevice> host = make_host_device(2);
  RunSpec run;
  run.config = usual_config(*parse_algorithm(kDefaultOptimizer));
  const BenchTensors tensors{tensor_list("flat", 10 * 1024 + 7), 0.5};
  Workload workload(*host, run, tensors, tensor_specs(run, tensors.shapes, true));
  const GradRows rows(tensors.shapes, tensors.zeros);
  ASSERT_EQ(rows.bytes(), 11);
  for (int step = 1; step <= 3; ++step) {
    workload.fill_grads(step);
    workload.step();
  }
  EXPECT_DOUBLE_EQ(workload.ever_touched(), workload.touched());
  const std::vector<std::byte> masks = rows.masks_at(1);
  int moments = 0;
  for (const Workload::Piece& piece : workload.read()) {
    if (!piece.what.ends_with("codes")) continue;
    ++moments;
    for (std::size_t row = 0; row < masks.size(); ++row) {
      const auto begin = piece.bytes.begin() + static_cast<std::ptrdiff_t>(row * 4096);
      const auto end = row + 1 == masks.size() ? piece.bytes.end() : begin + 4096;
      const bool zero = std::all_of(begin, end, [](std::byte b) { return b == std::byte{0}; });
      EXPECT_EQ(zero, masks[row] == std::byte{0}) << piece.what << ", row " << row;
    }
  }
  EXPECT_GT(moments, 0);
}

// The norm of 2^15 gradients with standard deviation 0.0023 is 0.41, below the limit of 1, so clipping does
// not change the step.
TEST(BenchWorkload, AStepThatAsksForTheNormClipsOnlyLongGradients) {
  const std::unique_ptr<BenchDevice> host = make_host_device(1);
  RunSpec run;
  run.config = usual_config(*parse_algorithm(kDefaultOptimizer));
  for (const std::int64_t numel : {1 << 15, 1 << 20}) {
    const BenchTensors tensors{tensor_list("flat", numel), 0.0};
    std::vector<Workload> both;
    for (int i = 0; i < 2; ++i)
      both.emplace_back(*host, run, tensors, tensor_specs(run, tensors.shapes, true));
    both[0].step(true);
    both[1].clip_and_step();
    for (Workload& each : both) EXPECT_NO_THROW(each.check_taken());
    const auto plain = both[0].read(), clipped = both[1].read();
    bool same = true;
    for (std::size_t i = 0; i < plain.size(); ++i) same = same && plain[i].bytes == clipped[i].bytes;
    EXPECT_EQ(same, numel == 1 << 15);
  }
}

}  // namespace
}  // namespace octavo::cli
