// Shared code of the GPU tests of train/nn. They are skipped without a GPU, and compare with the plain
// composition in double precision on the CPU.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <vector>

namespace octavo_train {

class NnGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU, or this LibTorch has no CUDA part";
    torch::manual_seed(20);
  }
};

// Returns leaf tensors with the values of `tensors`, on another device and in another type.
inline std::vector<torch::Tensor> leaves(const std::vector<torch::Tensor>& tensors, torch::Device device,
                                         torch::ScalarType type) {
  std::vector<torch::Tensor> out;
  for (const torch::Tensor& each : tensors) out.push_back(each.detach().to(device, type).requires_grad_());
  return out;
}

}  // namespace octavo_train
