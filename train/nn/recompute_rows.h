// Activations that are computed again for a few rows of a batch at a time: the first layers of a model, whose
// input needs no gradient and whose activations are too large even for one moment. Only that many rows have
// activations at once, in either pass. See recompute.h for layers whose input has a gradient.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace octavo::train {

// A pure function whose rows do not depend on each other: the result's first dimension is the inputs'. It may
// be called again later, from another thread. Autocast is off in it.
using RowSegment = std::function<torch::Tensor(const std::vector<torch::Tensor>& inputs,
                                               const std::vector<torch::Tensor>& parameters)>;

// segment(inputs, parameters). Gradients go to the parameters alone; the parts of the rows add up in fp32 at
// least. REQUIRES: rows_at_once >= 1, and inputs with equally many rows.
torch::Tensor recompute_rows(RowSegment segment, const std::vector<torch::Tensor>& inputs,
                             const std::vector<torch::Tensor>& parameters, std::int64_t rows_at_once);

}  // namespace octavo::train
