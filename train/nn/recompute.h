// Activations that are computed again (activation checkpointing): a segment of a model keeps nothing for the
// backward pass but its inputs, and runs once more in it. It costs one more forward pass of the segment and
// saves the memory inside it.
//
// The second run sees what the first saw: the same random numbers (the generators of the CPU and of the
// inputs' devices are set back, and afterwards restored), the same autocast settings, the same precision of
// products (product_scope.h) and the same values in the segment's buffers, so gradients are those of the
// plain segment. What the second run does to the buffers is undone, so they are updated once, by the first.
// Segments may nest. Gradients go to the inputs and, by accumulation, to every parameter that the segment
// uses: call backward(), as training does; torch::autograd::grad() does not see those parameters.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace octavo::train {

// A function that is pure except for its random numbers and its buffers. It may be called again later, from
// another thread, with equal inputs. Tensors that need gradients must be inputs or parameters (leaves).
using Segment = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;

// Whether a segment's parameters are those of no other segment. Each segment gives its parameters gradients
// on its own, so shared ones get theirs in parts.
enum class SegmentWeights { own, shared };

// segment(inputs). Where gradients are off, or no input needs one, it is just called. `buffers` are the
// tensors that the segment changes in place, such as a BatchNorm's running statistics: module->buffers().
torch::Tensor recompute(Segment segment, std::vector<torch::Tensor> inputs,
                        std::vector<torch::Tensor> buffers = {},
                        SegmentWeights weights = SegmentWeights::own);

// Whether the backward pass of a segment with shared parameters is running: a parameter that gets a gradient
// now may get more in the same pass.
bool gradients_come_again();

}  // namespace octavo::train
