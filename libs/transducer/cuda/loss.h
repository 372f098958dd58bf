// The interface of the transducer loss's kernels.
//
// Each cell has a record: the tokens' denominator, B, Y, and Q of each duration (octavo/transducer.h), and
// alpha and beta. Cell (t, u) of clip b has the number first + t * (labels + 1) + u.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/transducer.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// A clip, and the offsets of its data. A clip without frames has wrong lengths.
struct TransducerClip {
  std::int64_t first;                        // its first cell
  std::int32_t first_frame, first_position;  // among those of all clips; for a joint network only
  std::int32_t frames, labels;
};

// The data that the loss stores for its gradient, besides the cells.
struct TransducerHead {
  std::uint64_t key;    // the key of its arguments
  std::int64_t labels;  // the labels of all clips
};

// Kernels get it by value.
struct TransducerLattice {
  std::int32_t batch, frames, positions, tokens, blank;  // frames and positions of the padded sizes
  std::int32_t durations;                                // durations with scores: 0 is RNN-T
  std::int32_t extra;  // outputs after the tokens; RNN-T may have some, which get no gradient
  std::int32_t ring;   // steps that the longest arc spans, + 1
  float sigma;
  TransducerReduction reduction;
  std::uint64_t key;
  std::int64_t target_stride;
  const std::int64_t* targets;
  TransducerHead* head;
  TransducerClip* clips;  // [batch]
  float* records;         // [cells, 3 + durations]
  double* alpha;          // [cells]
  double* beta;           // [cells]
  double* log_p;          // [batch]
  std::int32_t advance[kMaxTransducerDurations];

  [[nodiscard]] __host__ __device__ std::int32_t width() const { return 3 + durations; }
};

// Writes the clips through kernel arguments, so host memory is not read later. `start` writes the head, too.
cudaError_t put_clips(const TransducerLattice& lattice, const TransducerClip* clips, std::int64_t labels,
                      bool start, cudaStream_t stream);
// Writes them from lengths on the device; a clip then has all cells of the padded sizes.
cudaError_t find_clips(const TransducerLattice& lattice, const std::int64_t* frames,
                       const std::int64_t* labels, bool start, cudaStream_t stream);

// Computes alpha, beta and log P of every clip from the records, in one launch. `positions` is that of the
// longest clip.
cudaError_t walk_lattices(const TransducerLattice& lattice, std::int32_t positions, cudaStream_t stream);
cudaError_t put_losses(const TransducerLattice& lattice, float* losses, cudaStream_t stream);

}  // namespace octavo::cuda
