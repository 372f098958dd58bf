// Tests matmuls with weights: torch's bits, also under autocast, and errors that name mismatched shapes.
// SPDX-License-Identifier: MIT
#include "tests/train/parts_support.h"
#include "train/nn/weight_matmul.h"
#include "train/optim/precision.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace octavo_train {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

TEST(Project, HasTheBitsOfTorchsProducts) {
  torch::manual_seed(5);
  const Tensor weight = torch::randn({48, 32}), weights = torch::randn({3, 48, 32});
  const Tensor rows = torch::randn({3, 20, 48});
  for (const ComputeType dtype : {ComputeType::float32, ComputeType::bfloat16}) {
    const AutocastScope autocast(torch::kCPU, dtype);
    for (const Tensor& x : {rows, rows[0], rows[0][0]})
      EXPECT_TRUE(torch::equal(weight_matmul(x, weight), x.matmul(weight))) << x.sizes();
    EXPECT_TRUE(torch::equal(grouped_weight_matmul(rows, weights), rows.bmm(weights)));
    EXPECT_EQ(weight_matmul(rows, weight).scalar_type(),
              dtype == ComputeType::float32 ? torch::kFloat32 : torch::kBFloat16);
  }
}

TEST(Project, RefusesShapesThatDoNotFit) {
  const Tensor x = torch::zeros({2, 5, 4});
  EXPECT_THAT(
      torch_error([&] {
        weight_matmul(x, torch::zeros({3, 4}));
      }),
      HasSubstr("weight_matmul: got activations [2, 5, 4] and a weight [3, 4], expected [.., in] and"));
  EXPECT_THAT(torch_error([&] {
                weight_matmul(x, torch::zeros({2, 4, 3}));
              }),
              HasSubstr("a weight [2, 4, 3]"));
  EXPECT_THAT(
      torch_error([&] {
        grouped_weight_matmul(x, torch::zeros({4, 3}));
      }),
      HasSubstr("grouped_weight_matmul: got activations [2, 5, 4] and weights [4, 3], expected [groups"));
  EXPECT_THAT(torch_error([&] {
                grouped_weight_matmul(x, torch::zeros({1, 4, 3}));
              }),
              HasSubstr("[1, 4, 3]"));
}

}  // namespace
}  // namespace octavo_train
