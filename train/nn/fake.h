// The recorder of kernels on a fake device. Memory and time predictions (train/predict) run a training step
// on tensors without memory (device meta), and the kernels of train/nn report their work to the recorder.
// Without a recorder nothing is reported.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/autocast_type.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>

namespace octavo_train {

// A matmul among a function's kernels: `batch` times [rows, inner] . [inner, columns].
struct FakeMatmul {
  std::int64_t batch = 1, rows = 0, columns = 0, inner = 0;
  bool fp8 = false;
};

struct FakeRecorder {
  // Records kernels that read or write `bytes` bytes in total, in `launches` launches.
  std::function<void(const char* name, double bytes, std::int64_t launches)> kernel;
  std::function<void(const char* name, const FakeMatmul& product, torch::ScalarType type)> product;
  bool of_cpu = false;  // tensors without memory represent CPU tensors, not GPU tensors
};
// Returns a reference to this thread's recorder; null: there is none.
const FakeRecorder*& fake_recorder();

// Return true if x has no memory and represents a tensor of a GPU, or of a CPU.
bool is_fake_gpu(const torch::Tensor& x);
bool is_fake_cpu(const torch::Tensor& x);

// Records kernels that read or write each of these tensors once. Undefined tensors are ignored.
void record_kernel(const char* name, at::TensorList uses, std::int64_t launches = 1);
void record_matmul(const char* name, const FakeMatmul& product, torch::ScalarType type);

// Runs a fake of cuDNN's LSTM layer over x [batch, length, inputs], with all of its weights in one tensor.
// Returns [batch, length, width]. On tensors without memory torch would decompose the LSTM into steps, which
// need a different amount of memory.
torch::Tensor fake_lstm(const torch::Tensor& x, const torch::Tensor& weights, std::int64_t width);

}  // namespace octavo_train
