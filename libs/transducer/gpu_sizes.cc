// SPDX-License-Identifier: MIT
#include "transducer/gpu_sizes.h"

#include "status/first_error.h"
#include "transducer/invalid_argument.h"
#include "transducer/tiles.h"

#include <octavo/fp8.h>

#include <algorithm>
#include <string>

namespace octavo::transducer {
namespace {

std::int64_t rounded(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

JointSizes::JointSizes(const TransducerArgs& args, const TransducerJoint& joint, std::int64_t rows,
                       std::int64_t extra) {
  const std::int64_t bytes = dtype_bytes(args.dtype);
  hidden_pitch = rounded(joint.hidden, 16 / bytes);
  output_pitch = rounded(args.tokens + duration_outputs(args), 16 / bytes);
  share_pitch = rounded(kShareHead + extra, 4);
  const std::int64_t weights = output_pitch * hidden_pitch;
  clips = args.batch * kClipBytes;
  logits = bytes * rows * output_pitch;
  activations = bytes * rows * hidden_pitch;
  padded_weight = bytes * weights;
  padded_bias = bytes * output_pitch;
  shares = 4 * rows * share_pitch;
  weight_sums = 4 * weights;
  bias_sums = 4 * kBiasParts * output_pitch;
  products = fp8::workspace_bytes({DeviceKind::cuda, 0});
}

std::int64_t JointSizes::bytes() const {
  std::int64_t out = kBlockSlack;
  // The activations' gradients have the size of the activations.
  for (const std::int64_t each : {clips, logits, activations, padded_weight, padded_bias, activations, shares,
                                  weight_sums, bias_sums, products})
    out += placed_bytes(each);
  return out;
}

Status check_gpu_limits(const TransducerArgs& args) {
  constexpr std::int64_t kRows = (std::int64_t{1} << 31) - 256, kOutputs = std::int64_t{1} << 24;
  const std::int64_t longer = std::max(args.frames, args.positions) + 1;
  if (args.batch > kRows / longer) {
    return invalid("batch", args.batch,
                   "up to " + std::to_string(kRows / longer) +
                       " on a GPU: 2^31 frames or positions of all clips, with padding");
  }
  if (args.tokens > kOutputs) return invalid("tokens", args.tokens, "up to 2^24 on a GPU");
  return {};
}

Result<TransducerJointBytes> joint_bytes_gpu(const TransducerArgs& args, const TransducerJoint& joint) {
  OCTAVO_TRY(check_gpu_limits(args));
  constexpr std::int64_t kRows = std::int64_t{1} << 30;
  if (tile_capacity(args, joint.tile_cells) > kRows)
    return invalid("tile_cells", joint.tile_cells, "tiles of up to 2^30 cells on a GPU");
  std::int64_t cells = 0, most = 0;
  for_tiles(args, joint.tile_cells > 0 ? joint.tile_cells : kTileCells, [&](const Tile& tile) {
    cells += tile.cells;
    most = std::max(most, rounded(tile.cells, kTileRows));
  });
  const auto extra = static_cast<std::int64_t>(args.durations.size());
  return TransducerJointBytes{CellSizes(args.batch, cells, extra).bytes(),
                              JointSizes(args, joint, most, extra).bytes()};
}

}  // namespace octavo::transducer
