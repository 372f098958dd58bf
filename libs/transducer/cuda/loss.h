// The transducer loss on a GPU as its kernels see it.
//
// Of each cell there is a record: the tokens' denominator, B, Y, and Q of each duration
// (octavo/transducer.h), and alpha and beta. Of clip b cell (t, u) is number first + t * (labels + 1) + u.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/transducer.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// A clip, and where what belongs to it begins. Without frames it is one whose lengths are wrong.
struct TransducerClip {
  std::int64_t first;                        // cell
  std::int32_t first_frame, first_position;  // among those of all clips; of a joint network alone
  std::int32_t frames, labels;
};

// What the loss leaves for its gradient, besides the cells.
struct TransducerHead {
  std::uint64_t key;    // of its arguments
  std::int64_t labels;  // of all clips
};

// Kernels get it by value.
struct TransducerLattice {
  std::int32_t batch, frames, positions, tokens, blank;  // frames and positions of the padded sizes
  std::int32_t durations;                                // that have scores: 0 is RNN-T
  std::int32_t extra;  // outputs behind the tokens; RNN-T may have some, which get no gradient
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

// Writes the clips, by kernels' parameters: nothing of the host's memory is read later. `start`: the head
// too.
cudaError_t put_clips(const TransducerLattice& lattice, const TransducerClip* clips, std::int64_t labels,
                      bool start, cudaStream_t stream);
// The same from lengths on the device; the cells of a clip are as many as the padded sizes have.
cudaError_t find_clips(const TransducerLattice& lattice, const std::int64_t* frames,
                       const std::int64_t* labels, bool start, cudaStream_t stream);

// Alpha, beta and log P of every clip from the records, in one launch. `positions`: of the longest clip.
cudaError_t walk_lattices(const TransducerLattice& lattice, std::int32_t positions, cudaStream_t stream);
cudaError_t put_losses(const TransducerLattice& lattice, float* losses, cudaStream_t stream);

}  // namespace octavo::cuda
