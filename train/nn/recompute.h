// Activation checkpointing: a segment of a model keeps only its inputs for the backward pass, which runs the
// segment again. This costs one more forward pass of the segment and saves the memory of its activations.
//
// The second run sees the same state as the first: the same random numbers (the generators of the CPU and of
// the inputs' devices are set back, and restored afterwards), the same autocast settings, the same precision
// of matmuls (weight_matmul.h) and the same values in the segment's buffers. The gradients therefore equal
// those without checkpointing. The second run's changes to the buffers are undone, so buffers are updated
// once, by the first run. Segments may nest. Gradients go to the inputs and, by accumulation, to every
// parameter that the segment uses: call backward(), as training does; torch::autograd::grad() does not see
// these parameters.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace octavo_train {

// A function that is pure except for its random numbers and its buffers. It may be called again later, from
// another thread, with equal inputs. Tensors that need gradients must be inputs or parameters (leaves).
using Segment = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;

// `own`: no other segment uses the segment's parameters. `shared`: other segments may use them. Each segment
// computes gradients separately, so shared parameters receive their gradient in several parts.
enum class SegmentWeights { own, shared };

// Returns segment(inputs). If gradients are off, or no input needs a gradient, the segment is only called.
// `buffers` are the tensors that the segment changes in place, such as a BatchNorm's running statistics:
// module->buffers().
torch::Tensor recompute(Segment segment, std::vector<torch::Tensor> inputs,
                        std::vector<torch::Tensor> buffers = {},
                        SegmentWeights weights = SegmentWeights::own);

// Returns true while the backward pass of a segment with shared parameters is running: a parameter that
// receives a gradient now may receive more in the same backward pass.
bool gradients_come_again();

// A pure function whose rows do not depend on each other: the result and the inputs have equal first
// dimensions. It may be called again later, from another thread. Autocast is off during the call.
using RowSegment = std::function<torch::Tensor(const std::vector<torch::Tensor>& inputs,
                                               const std::vector<torch::Tensor>& parameters)>;

// Returns segment(inputs, parameters), computed for at most `rows_at_once` rows at a time in the forward and
// the backward pass. It is for the first layers of a model, whose input needs no gradient and whose
// activations are too large to exist for the full batch even briefly. Only the parameters get gradients; the
// gradients of the parts are summed in fp32 or a wider type. REQUIRES: rows_at_once >= 1, and inputs with
// equally many rows.
torch::Tensor recompute_rows(RowSegment segment, const std::vector<torch::Tensor>& inputs,
                             const std::vector<torch::Tensor>& parameters, std::int64_t rows_at_once);

}  // namespace octavo_train
