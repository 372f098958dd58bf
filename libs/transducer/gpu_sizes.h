// The memory of the joint loss on a GPU: its tiles, and the sizes of its buffers. In every build, because a
// plan asks for them where there is no GPU; the CUDA backend places its buffers by them.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/transducer.h>

#include <array>
#include <cstdint>

namespace octavo::transducer {

// Rows of a tile are a multiple of this.
inline constexpr std::int32_t kTileRows = 128;

// Cells of a tile where the caller leaves it open. On an H200 12.83 ms were measured with it, and 11.98 ms
// with 32768 cells: 93 % of the speed with a quarter of the memory for logits.
inline constexpr std::int64_t kTileCells = 8192;

// Partial sums of the bias's gradient, each over the rows that one block takes. Fixed, so that the sums do
// not depend on the GPU.
inline constexpr std::int32_t kBiasParts = 128;

// What the gradient of a row's logits needs: the tokens' denominator times log2(e), the shares and the label,
// five numbers; then the gradients of the durations.
inline constexpr std::int32_t kShareHead = 5;

// Bytes of a clip, and of what the loss leaves for its gradient besides the cells; see
// transducer/cuda/loss.h.
inline constexpr std::int64_t kClipBytes = 24, kHeadBytes = 16;

// A block of buffers: each begins at a multiple of 256 bytes, and the block at any multiple of sixteen.
constexpr std::int64_t placed_bytes(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
inline constexpr std::int64_t kBlockSlack = 240;

// Of a cell: records, alpha and beta. `extra`: outputs behind the tokens.
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

// Of the joint network's tiles. Pitches are elements from a row to the next one.
struct JointSizes {
  std::int64_t hidden_pitch, output_pitch, share_pitch;
  std::int64_t clips, logits, activations, padded_weight, padded_bias, shares, weight_sums, bias_sums,
      products;

  // `rows`: of the largest tile; `extra`: outputs behind the tokens.
  JointSizes(const TransducerArgs& args, const TransducerJoint& joint, std::int64_t rows, std::int64_t extra);
  [[nodiscard]] std::int64_t bytes() const;
};

// What is too large for the kernels' numbers.
Status check_gpu_limits(const TransducerArgs& args);
// REQUIRES: checked arguments.
Result<TransducerJointBytes> joint_bytes_gpu(const TransducerArgs& args, const TransducerJoint& joint);

}  // namespace octavo::transducer
