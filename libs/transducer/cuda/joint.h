// The host's interface to the kernels of the joint loss. Cells are processed in tiles of complete frames, so
// that all logits never exist at the same time.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/dropout.h"
#include "transducer/cuda/loss.h"
#include "transducer/gpu_sizes.h"

#include <cstdint>

namespace octavo::cuda {

// A run of complete frames. Its buffers have `rows` rows, of which those after the cells are zeros. `rows` is
// a multiple, so that matmuls have few shapes.
struct JointTile {
  std::int64_t first;  // its first cell
  std::int32_t cells, rows;
  std::int32_t first_frame, frames;        // among the frames of all clips
  std::int32_t first_position, positions;  // the positions of all clips with frames in the tile
};

using transducer::kBiasParts;
using transducer::kShareHead;

// Kernels get it by value. Pitches are the elements from one row to the next in the buffers, multiples of
// sixteen bytes. Elements after `hidden` and `outputs` are zero.
struct JointWork {
  TransducerLattice lattice;
  DType dtype, bias_dtype;
  bool aligned;  // rows of encoder and predictor are complete vectors of sixteen bytes
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
  // The buffers of one tile:
  void* activations;       // [rows, hidden_pitch]: drop(relu(encoder + predictor))
  void* activations_grad;  // [rows, hidden_pitch]
  void* logits;            // [rows, output_pitch], then their gradients
  float* shares;           // [rows, share_pitch]
  // The buffers that all tiles share:
  void* padded_weight;  // [output_pitch, hidden_pitch]
  void* padded_bias;    // [output_pitch]
  float* weight_sums;   // [output_pitch, hidden_pitch]
  float* bias_sums;     // [kBiasParts, output_pitch]
};

// Copies weight and bias to their pitches.
cudaError_t joint_pad(const JointWork& work, cudaStream_t stream);
// Computes the tile's activations; with `shares`, also the numbers for the gradient of its logits, row by
// row.
cudaError_t joint_activations(const JointWork& work, const JointTile& tile, bool shares, cudaStream_t stream);
// Converts logits to records.
cudaError_t joint_records(const JointWork& work, const JointTile& tile, cudaStream_t stream);
// Converts logits to their gradients, in place, and adds the bias's. `start`: the tile is the first.
cudaError_t joint_gradients(const JointWork& work, const JointTile& tile, bool start, cudaStream_t stream);
// Adds the activations' gradients to those of the encoder and the predictor, of which one may be null.
cudaError_t joint_sums(const JointWork& work, const JointTile& tile, cudaStream_t stream);
// Writes the weight's and the bias's gradients from their sums, and zeros if no clip has a frame or a
// position.
cudaError_t joint_finish(const JointWork& work, cudaStream_t stream);

}  // namespace octavo::cuda
