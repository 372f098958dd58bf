// A fake of cuDNN's LSTM, for memory and time predictions. On tensors without memory torch would decompose
// the LSTM into steps, which need a different amount of memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace octavo_train {

// Runs a layer over x [batch, length, inputs], with all of its weights in one tensor. Returns [batch, length,
// width].
torch::Tensor fake_lstm(const torch::Tensor& x, const torch::Tensor& weights, std::int64_t width);

}  // namespace octavo_train
