// The loss of a transducer (TDT, RNN-T) with its joint network: hidden = drop(relu(f + g)), logits = weight .
// hidden + bias. The complete tensor of logits never exists, neither in the forward nor in the backward pass
// (octavo/transducer.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

struct TransducerOptions {
  std::int64_t blank = 0;
  std::vector<std::int64_t> durations;  // TDT durations, in the order of their outputs; empty: RNN-T
  double sigma = 0.0;
  double omega = 0.0;  // used only in training: a loss that is compared must not be random
  std::string reduction = "mean_batch";
  std::int64_t tile_cells = 0;  // 0: the backend chooses
};

// Returns the loss in fp32: 0-d, or [batch] for the reduction `none`.
//
// f is [batch, frames, hidden] and g is [batch, labels + 1, hidden], both projected with their biases. weight
// is [tokens with blank + durations, hidden]; bias is [tokens with blank + durations] or undefined. targets
// are int64 [batch, labels], on f's device. Matmuls are in f's type. Lengths are on the host, so that the
// host need not wait for a GPU. The mask of `drop` and the random draw of omega depend only on drop.pass.
//
// float32, bfloat16 and float16 run directly on a device that Octavo has code for. Other types are computed
// in float32, other devices on the CPU, with copies.
torch::Tensor joint_loss(const torch::Tensor& f, const torch::Tensor& g, const torch::Tensor& weight,
                         const torch::Tensor& bias, const torch::Tensor& targets,
                         std::span<const std::int64_t> frame_lengths,
                         std::span<const std::int64_t> label_lengths, const TransducerOptions& options,
                         const Drop& drop);

}  // namespace octavo_train
