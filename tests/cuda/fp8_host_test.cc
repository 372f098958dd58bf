// The host's part of FP8 casts on a GPU: all memory is the caller's.
// SPDX-License-Identifier: MIT
#include "tests/cuda/fake_runtime.h"
#include "tests/support/c_structs.h"

#include <octavo/fp8.h>
#include <octavo/octavo.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

namespace fp8 = octavo::fp8;
using octavo::test::fake;

constexpr octavo::Device kGpu{octavo::DeviceKind::cuda, 0};
constexpr std::int64_t kRows = 300, kColumns = 48;

class Fp8Host : public testing::Test {
 protected:
  void SetUp() override {
    octavo::test::reset();
    args_.device = kGpu;
    args_.from = from_.data();
    args_.rows = kRows;
    args_.columns = kColumns;
    args_.recipe = fp8::Recipe::current;
    args_.operand = fp8::Operand::dy;
    args_.by_rows.data = codes_;
    args_.by_rows.inverse = &inverse_;
    args_.bias_grad = sums_.data();
  }

  std::vector<float> from_ = std::vector<float>(kRows * kColumns);
  alignas(16) std::uint8_t codes_[fp8::padded(kRows) * kColumns];
  float inverse_ = 0.0F;
  std::vector<float> sums_ = std::vector<float>(kColumns);
  fp8::CastArgs args_;
};

TEST_F(Fp8Host, ACastWithBiasGradAllocatesNothing) {
  std::vector<float> workspace(static_cast<std::size_t>(fp8::cast_workspace_bytes(kGpu, kRows, kColumns)) /
                               sizeof(float));
  EXPECT_EQ(workspace.size(), (3U + 1U) * kColumns);
  args_.workspace = workspace.data();
  args_.workspace_bytes = static_cast<std::int64_t>(workspace.size() * sizeof(float));
  const octavo::Status status = fp8::cast(args_);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(fake().count("cudaMallocAsync"), 0);
  EXPECT_GE(fake().count("cudaLaunchKernel"), 2);
}

TEST_F(Fp8Host, ACastWithBiasGradAsksForItsWorkspace) {
  EXPECT_EQ(fp8::cast(args_).message(),
            "[fp8] workspace: got null, expected a buffer of 768 bytes for bias_grad on a GPU");
  args_.workspace = sums_.data();
  args_.workspace_bytes = 767;
  EXPECT_EQ(fp8::cast(args_).message(),
            "[fp8] workspace: got 767 bytes, expected a buffer of 768 bytes for bias_grad on a GPU");
  EXPECT_EQ(fake().count("cudaLaunchKernel"), 0);
}

TEST_F(Fp8Host, TheCAbiRefusesACastWithBiasGradWithoutAWorkspace) {
  auto layer = test::sized<octavo_fp8_layer>();
  layer.device_kind = 1;
  layer.recipe = static_cast<std::uint32_t>(fp8::Recipe::current);
  layer.passes = 7;
  layer.groups = 1;
  layer.tokens = kRows;
  layer.inputs = 16;
  layer.outputs = kColumns;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(octavo_fp8_codes_bytes(&layer, 2, 0)));
  std::vector<std::uint8_t> transposed(static_cast<std::size_t>(octavo_fp8_codes_bytes(&layer, 2, 1)));
  auto args = test::sized<octavo_fp8_cast_args>();
  args.operand = 2;
  args.from = from_.data();
  args.codes = codes.data();
  args.turned = transposed.data();
  EXPECT_EQ(octavo_fp8_cast(&layer, &args), 0U) << octavo_last_error();
  args.bias_grad = sums_.data();
  const int launches = fake().count("cudaLaunchKernel");
  EXPECT_EQ(octavo_fp8_cast(&layer, &args), 1U);
  EXPECT_THAT(
      octavo_last_error(),
      testing::HasSubstr("workspace: got null, expected a buffer of 768 bytes for bias_grad on a GPU"));
  EXPECT_EQ(fake().count("cudaLaunchKernel"), launches);
}

TEST_F(Fp8Host, TheWorkspaceOverlapsNoOtherBuffer) {
  args_.workspace = from_.data();
  args_.workspace_bytes = 768;
  EXPECT_EQ(fp8::cast(args_).message(), "[fp8] workspace: overlaps from; they must not share memory");
}

}  // namespace
