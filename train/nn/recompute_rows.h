// Activation checkpointing for a few rows of a batch at a time. It is meant for the first layers of a model,
// whose input needs no gradient and whose activations are too large to exist for the full batch even briefly.
// At most `rows_at_once` rows have activations at any time, in the forward and the backward pass. See
// recompute.h for layers whose input has a gradient.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace octavo_train {

// A pure function whose rows do not depend on each other: the result and the inputs have equal first
// dimensions. It may be called again later, from another thread. Autocast is off during the call.
using RowSegment = std::function<torch::Tensor(const std::vector<torch::Tensor>& inputs,
                                               const std::vector<torch::Tensor>& parameters)>;

// Returns segment(inputs, parameters). Only the parameters get gradients; the gradients of the parts are
// summed in fp32 or a wider type. REQUIRES: rows_at_once >= 1, and inputs with equally many rows.
torch::Tensor recompute_rows(RowSegment segment, const std::vector<torch::Tensor>& inputs,
                             const std::vector<torch::Tensor>& parameters, std::int64_t rows_at_once);

}  // namespace octavo_train
