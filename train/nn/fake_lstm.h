// What cuDNN's LSTM takes, for plans: on tensors without memory torch would put it together from steps, which
// take other memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace octavo::train {

// A layer over x [batch, length, inputs] with all of its weights in one piece: [batch, length, width].
// REQUIRES: x.is_meta().
torch::Tensor fake_lstm(const torch::Tensor& x, const torch::Tensor& weights, std::int64_t width);

}  // namespace octavo::train
