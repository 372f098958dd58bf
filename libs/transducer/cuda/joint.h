// The joint loss on a GPU: its kernels as the host sees them. Cells are taken in tiles of whole frames, so
// that all logits are never there at once.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/dropout.h"
#include "transducer/cuda/loss.h"
#include "transducer/gpu_sizes.h"

#include <cstdint>

namespace octavo::cuda {

// A run of whole frames. In its buffers there are `rows` rows, of which those behind the cells are zeros: a
// multiple, so that products have few shapes.
struct JointTile {
  std::int64_t first;  // cell
  std::int32_t cells, rows;
  std::int32_t first_frame, frames;        // among the frames of all clips
  std::int32_t first_position, positions;  // those of all clips that have frames here
};

using transducer::kBiasParts;
using transducer::kShareHead;

// Kernels get it by value. Pitches are elements from a row to the next one in the buffers, multiples of
// sixteen bytes; what is behind `hidden` and `outputs` there is zero.
struct JointWork {
  TransducerLattice lattice;
  DType dtype, bias_dtype;
  bool aligned;  // rows of encoder and predictor are whole vectors of sixteen bytes
  std::int32_t hidden, outputs;
  std::int32_t hidden_pitch, output_pitch, share_pitch;
  const void* encoder;    // [batch, frames, hidden]
  const void* predictor;  // [batch, positions, hidden]
  const void* weight;     // [outputs, hidden]
  const void* bias;       // [outputs], or null
  const std::int64_t* samples;
  std::uint64_t dropout_base;  // formula::dropout_base
  std::uint32_t layer;
  formula::Dropout dropout;
  const float* grad_losses;
  TransducerJointGrads grads;
  // A tile's.
  void* activations;       // [rows, hidden_pitch]: drop(relu(encoder + predictor))
  void* activations_grad;  // likewise
  void* logits;            // [rows, output_pitch], then their gradients
  float* shares;           // [rows, share_pitch]
  // Of all tiles.
  void* padded_weight;  // [output_pitch, hidden_pitch]
  void* padded_bias;    // [output_pitch]
  float* weight_sums;   // [output_pitch, hidden_pitch]
  float* bias_sums;     // [kBiasParts, output_pitch]
};

// Weight and bias with their pitches.
cudaError_t joint_pad(const JointWork& work, cudaStream_t stream);
// The tile's activations; with `shares`, also what the gradient of its logits needs, row by row.
cudaError_t joint_activations(const JointWork& work, const JointTile& tile, bool shares, cudaStream_t stream);
// Logits to records.
cudaError_t joint_records(const JointWork& work, const JointTile& tile, cudaStream_t stream);
// Logits to their gradients, in place, and the bias's. `start`: the tile is the first.
cudaError_t joint_gradients(const JointWork& work, const JointTile& tile, bool start, cudaStream_t stream);
// The activations' gradients to the encoder's and the predictor's, of which one may be null.
cudaError_t joint_sums(const JointWork& work, const JointTile& tile, cudaStream_t stream);
// The weight's and the bias's gradients from their sums, and zeros where no clip has a frame or a position.
cudaError_t joint_finish(const JointWork& work, cudaStream_t stream);

}  // namespace octavo::cuda
