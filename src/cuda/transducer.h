// The transducer loss on a GPU as its kernels see it.
//
// Cells are packed: of clip b cell (t, u) is number first + t * (labels + 1) + u. Of each cell there is a
// record: the tokens' denominator, B, Y, and Q of each duration (octavo/transducer.h), and alpha and beta.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/transducer.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// A clip, and where what belongs to it begins in arrays over all cells, all frames and all positions.
struct TransducerClip {
  std::int64_t first;                        // cell
  std::int32_t first_frame, first_position;  // among all frames, and all positions
  std::int32_t frames, labels;
};

// Kernels get it by value.
struct TransducerLattice {
  std::int32_t batch, tokens, blank;
  std::int32_t durations;  // that have scores: 0 is RNN-T
  std::int32_t extra;      // outputs behind the tokens; RNN-T may have some, which get no gradient
  std::int32_t ring;       // steps that an arc of a lattice's longest duration spans, + 1
  float sigma;
  std::int64_t target_stride;
  const TransducerClip* clips;  // [batch]
  const std::int64_t* targets;
  float* records;  // [cells, 3 + durations]
  double* alpha;   // [cells]
  double* beta;    // [cells]
  double* log_p;   // [batch]
  std::int32_t advance[kMaxTransducerDurations];

  [[nodiscard]] __host__ __device__ std::int32_t width() const { return 3 + durations; }
};

// Writes the clips to the device by kernels' parameters: nothing of the host's memory is read later.
cudaError_t put_clips(const TransducerClip* clips, std::int32_t count, TransducerClip* to,
                      cudaStream_t stream);

// Alpha, beta and log P of every clip from the records, in one launch. `positions`: of the longest clip.
cudaError_t walk_lattices(const TransducerLattice& lattice, std::int32_t positions, cudaStream_t stream);

// What the losses are divided by; `labels`: of all clips.
struct TransducerMean {
  TransducerReduction reduction;
  std::int64_t labels;
};
cudaError_t put_losses(const TransducerLattice& lattice, const TransducerMean& mean, float* losses,
                       cudaStream_t stream);

}  // namespace octavo::cuda
