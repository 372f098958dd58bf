// The loss of a transducer (TDT, RNN-T) with its joint network: hidden = drop(relu(f + g)), logits = weight .
// hidden + bias. All logits never exist at once (octavo/transducer.h), neither forward nor backward.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

struct TransducerOptions {
  std::int64_t blank = 0;
  std::vector<std::int64_t> durations;  // of TDT, in the order of their outputs; none: RNN-T
  double sigma = 0.0;
  double omega = 0.0;  // in training alone: a loss that is compared should not be drawn
  std::string reduction = "mean_batch";
  std::int64_t tile_cells = 0;  // 0: the backend's choice
};

// 0-d in fp32; [batch] for the reduction `none`.
//
// f is [batch, frames, hidden], g [batch, labels + 1, hidden], both projected with their biases; weight is
// [tokens with blank + durations, hidden], bias [tokens with blank + durations] or undefined; targets are
// int64 [batch, labels], where f is. Products are in f's type. Lengths are on the host, so that nobody waits
// for a GPU. The mask of `drop` and the draw of omega depend on its pass alone.
//
// float32, bfloat16 and float16 on a device for which Octavo has code; others are computed in float32 or on
// the CPU, and copied.
torch::Tensor joint_loss(const torch::Tensor& f, const torch::Tensor& g, const torch::Tensor& weight,
                         const torch::Tensor& bias, const torch::Tensor& targets,
                         std::span<const std::int64_t> frame_lengths,
                         std::span<const std::int64_t> label_lengths, const TransducerOptions& options,
                         const Drop& drop);

}  // namespace octavo::train
