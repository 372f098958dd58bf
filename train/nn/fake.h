// What kernels of ours tell on a fake device: tensors without memory (device meta), on which a step is
// planned. The recorder is the plan's; without one, nothing is told.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/autocast_type.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>

namespace octavo::train {

// A product among a function's kernels: `batch` times [rows, inner] . [inner, columns].
struct FakeProduct {
  std::int64_t batch = 1, rows = 0, columns = 0, inner = 0;
  bool fp8 = false;
};

struct FakeRecorder {
  // Kernels that read or write that many bytes, in so many launches.
  std::function<void(const char* name, double bytes, std::int64_t launches)> kernel;
  std::function<void(const char* name, const FakeProduct& product, torch::ScalarType type)> product;
  bool of_cpu = false;  // tensors without memory stand for those of a CPU, not of a GPU
};
// Of this thread; null: none.
const FakeRecorder*& fake_recorder();

// Whether x has no memory and stands for a tensor of a GPU, or of a CPU.
bool is_fake_gpu(const torch::Tensor& x);
bool is_fake_cpu(const torch::Tensor& x);

// Kernels that use these tensors, each once. One that is not defined is none.
void record_kernel(const char* name, at::TensorList uses, std::int64_t launches = 1);
void record_product(const char* name, const FakeProduct& product, torch::ScalarType type);

}  // namespace octavo::train
