// The kernels of relative attention as the host sees them; the products between them are torch's. Every
// function queues its work on the stream and returns null, or what CUDA says is wrong. All memory is on the
// device and aligned to sixteen bytes, and contiguous but for the rows of q, k and v.
//
// Rows of scores and of probabilities are padded to whole vectors, and so are keys, values and positions,
// with zeros: products then need no care for T.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/ceil_div.h"
#include "train/nn/cuda/drop_call.h"

#include <cstdint>

namespace octavo::train::cuda {

inline constexpr std::int64_t kMostFrames = 8192;
// Of a query's row among the numbers of dropped elements: a mask does not depend on padding.
inline constexpr std::int64_t kKeyPitch = 65536;

struct AttentionShape {
  bool bf16;  // else fp32
  std::int64_t batch, frames, heads;
  std::int64_t size;  // of a head: a multiple of 8

  [[nodiscard]] constexpr std::int64_t channels() const { return heads * size; }
  [[nodiscard]] constexpr std::int64_t keys() const { return (frames + 7) / 8 * 8; }  // in a row of scores
  [[nodiscard]] constexpr std::int64_t distances() const { return (2 * frames - 1 + 7) / 8 * 8; }
};

// What products read.
struct Heads {
  void *content, *place;  // q + bias_u [batch, heads, frames, size]; q + bias_v [heads, batch, frames, size]
  void *keys, *values;    // [batch, heads, keys(), size]
  void* positions;        // [heads, distances(), size]
};
struct SplitWork {
  const void *q, *k, *v;             // [batch, frames, heads, size]
  std::int64_t q_row, k_row, v_row;  // elements from a frame to the next, also from a clip to the next
  const void* positions;             // [2 frames - 1, heads, size]
  const float *bias_u, *bias_v;      // [heads, size]
  Heads out;
};
const char* split_heads(const AttentionShape& shape, const SplitWork& work, void* stream);

// [batch, frames, heads, size] to [batch, heads, frames, size], or back.
const char* heads_first(const AttentionShape& shape, const void* from, void* to, void* stream);
const char* heads_last(const AttentionShape& shape, const void* from, void* to, void* stream);

struct ProbabilityWork {
  const std::int64_t* lengths;  // [batch]
  DropCall drop;                // sample b's masks are those of number samples[b] * heads + head
  double scale;                 // of a score, before the softmax
};
// Scores by key [batch, heads, frames, keys()] become probabilities, with zeros where a query or a key is
// beyond its clip. `places` are scores by distance [heads, batch, frames, distances()]: the score of query i
// and key j is that of column frames - 1 - i + j. `dropped` gets the probabilities with some dropped; null
// where none are.
const char* probabilities(const AttentionShape& shape, const ProbabilityWork& work, void* scores,
                          const void* places, void* dropped, void* stream);
// `grads` are those of the dropped probabilities and become those of the scores by key; dplaces, those by
// distance, are written whole; `dropped` as above.
const char* probabilities_backward(const AttentionShape& shape, const ProbabilityWork& work,
                                   const void* probabilities, void* grads, void* dplaces, void* dropped,
                                   void* stream);

// The gradients of q, k and v from those of what products read, and those of the biases, fp32
// [2, heads, size]. `partial` is scratch.
struct MergeWork {
  const void *content, *place, *keys, *values;
  void *dq, *dk, *dv;  // [batch, frames, heads, size]
  float *dbias, *partial;
};
inline constexpr int kMergedFrames = 16;  // that a block of merge_heads adds up
constexpr std::int64_t merge_runs(const AttentionShape& shape) {
  return ceil_div(shape.batch * shape.frames, kMergedFrames);
}
constexpr std::int64_t merge_partial_size(const AttentionShape& shape) {
  return merge_runs(shape) * 2 * shape.channels();
}
const char* merge_heads(const AttentionShape& shape, const MergeWork& work, void* stream);

}  // namespace octavo::train::cuda
