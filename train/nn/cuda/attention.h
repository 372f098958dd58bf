// Host functions that launch the kernels of relative attention. The matmuls between the kernels are torch's.
// Every function enqueues its work on the stream and returns null, or CUDA's error message. All memory is on
// the device, aligned to 16 bytes, and contiguous except for the rows of q, k and v.
//
// Rows of scores and of probabilities are padded to a multiple of 8 elements. Keys, values and positions are
// padded likewise, with zeros, so that matmuls work for any T.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/ceil_div.h"
#include "train/nn/cuda/drop_call.h"

#include <cstdint>

namespace octavo_train::cuda {

inline constexpr std::int64_t kMostFrames = 8192;
// The distance between the rows of two queries in the numbering of dropped elements, so that a mask does not
// depend on padding.
inline constexpr std::int64_t kKeyPitch = 65536;

struct AttentionShape {
  bool bf16;  // else fp32
  std::int64_t batch, frames, heads;
  std::int64_t size;  // of a head; a multiple of 8

  [[nodiscard]] constexpr std::int64_t channels() const { return heads * size; }
  [[nodiscard]] constexpr std::int64_t keys() const { return (frames + 7) / 8 * 8; }  // per row
  [[nodiscard]] constexpr std::int64_t distances() const { return (2 * frames - 1 + 7) / 8 * 8; }
};

// The inputs of the matmuls.
struct Heads {
  void *content, *place;  // q + bias_u [batch, heads, frames, size]; q + bias_v [heads, batch, frames, size]
  void *keys, *values;    // [batch, heads, keys(), size]
  void* positions;        // [heads, distances(), size]
};
struct SplitWork {
  const void *q, *k, *v;             // [batch, frames, heads, size]
  std::int64_t q_row, k_row, v_row;  // elements between consecutive frames, also across clips
  const void* positions;             // [2 frames - 1, heads, size]
  const float *bias_u, *bias_v;      // [heads, size]
  Heads out;
};
const char* split_heads(const AttentionShape& shape, const SplitWork& work, void* stream);

// heads_first() transposes [batch, frames, heads, size] to [batch, heads, frames, size]; heads_last()
// transposes back.
const char* heads_first(const AttentionShape& shape, const void* from, void* to, void* stream);
const char* heads_last(const AttentionShape& shape, const void* from, void* to, void* stream);

struct ProbabilityWork {
  const std::int64_t* lengths;  // [batch]
  DropoutArgs drop;             // row b and a head have the sample number samples[b] * heads + head
  double scale;                 // factor of a score, before the softmax
};
// Replaces scores by key [batch, heads, frames, keys()] by probabilities, with zeros where a query or a key
// is beyond its clip. `places` are scores by distance [heads, batch, frames, distances()]: query i and key j
// use column frames - 1 - i + j. `dropped` receives the probabilities after dropout; it is null if nothing is
// dropped.
const char* probabilities(const AttentionShape& shape, const ProbabilityWork& work, void* scores,
                          const void* places, void* dropped, void* stream);
// `grads` are the gradients of the probabilities after dropout; the gradients of the scores by key replace
// them. All of `dplaces`, the gradients of the scores by distance, is written. `dropped` is as above.
const char* probabilities_backward(const AttentionShape& shape, const ProbabilityWork& work,
                                   const void* probabilities, void* grads, void* dplaces, void* dropped,
                                   void* stream);

// Arguments of merge_heads(), which computes the gradients of q, k and v from the gradients of the matmuls'
// inputs, and the gradients of the biases, fp32 [2, heads, size]. `partial` is scratch memory.
struct MergeWork {
  const void *content, *place, *keys, *values;
  void *dq, *dk, *dv;  // [batch, frames, heads, size]
  float *dbias, *partial;
};
inline constexpr int kMergedFrames = 16;  // frames that a block of merge_heads() adds up
constexpr std::int64_t merge_runs(const AttentionShape& shape) {
  return ceil_div(shape.batch * shape.frames, kMergedFrames);
}
constexpr std::int64_t merge_partial_size(const AttentionShape& shape) {
  return merge_runs(shape) * 2 * shape.channels();
}
const char* merge_heads(const AttentionShape& shape, const MergeWork& work, void* stream);

}  // namespace octavo_train::cuda
