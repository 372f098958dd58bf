// The memory of the joint loss on a GPU: its tiles, and the sizes of its buffers. It is in every build,
// because a plan needs it on machines without a GPU; the CUDA backend lays out its buffers with it.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/transducer.h>

#include <array>
#include <cstdint>

namespace octavo::transducer {

// The rows of a tile are a multiple of this.
inline constexpr std::int32_t kTileRows = 128;

// The default number of cells of a tile. On an H200 it takes 12.83 ms, and 32768 cells take 11.98 ms: 93 % of
// the speed with a quarter of the memory for logits.
inline constexpr std::int64_t kTileCells = 8192;

// The number of partial sums of the bias's gradient, each over the rows of one block. It is fixed, so that
// the sums do not depend on the GPU.
inline constexpr std::int32_t kBiasParts = 128;

// The numbers that the gradient of a row's logits needs: the tokens' denominator times log2(e), the shares
// and the label, five in all; then the gradients of the durations.
inline constexpr std::int32_t kShareHead = 5;

// The bytes of a clip, and of the data that the loss stores for its gradient besides the cells
// (transducer/cuda/loss.h).
inline constexpr std::int64_t kClipBytes = 24, kHeadBytes = 16;

// Returns the bytes of a buffer in a block: each begins at a multiple of 256 bytes, and the block at any
// multiple of sixteen.
constexpr std::int64_t placed_bytes(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
inline constexpr std::int64_t kBlockSlack = 240;

// The sizes of cells: records, alpha and beta. `extra` is the number of outputs after the tokens.
struct CellSizes {
  std::int64_t head, log_p, records, alpha, beta;
  CellSizes(std::int64_t batch, std::int64_t cells, std::int64_t extra)
      : head(kHeadBytes),
        log_p(8 * batch),
        records(4 * cells * (3 + extra)),
        alpha(8 * cells),
        beta(8 * cells) {}
  [[nodiscard]] std::int64_t bytes() const {
    return kBlockSlack + placed_bytes(head) + placed_bytes(log_p) + placed_bytes(records) +
           placed_bytes(alpha) + placed_bytes(beta);
  }
};

// The sizes of the joint network's tiles. Pitches are the elements from one row to the next.
struct JointSizes {
  std::int64_t hidden_pitch, output_pitch, share_pitch;
  std::int64_t clips, logits, activations, padded_weight, padded_bias, shares, weight_sums, bias_sums,
      products;

  // `rows` are those of the largest tile; `extra` is the number of outputs after the tokens.
  JointSizes(const TransducerArgs& args, const TransducerJoint& joint, std::int64_t rows, std::int64_t extra);
  [[nodiscard]] std::int64_t bytes() const;
};

// Returns an error if sizes exceed the range of the kernels' integers.
Status check_gpu_limits(const TransducerArgs& args);
// REQUIRES: checked arguments.
Result<TransducerJointBytes> joint_bytes_gpu(const TransducerArgs& args, const TransducerJoint& joint);

}  // namespace octavo::transducer
