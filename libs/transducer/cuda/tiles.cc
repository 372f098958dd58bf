// SPDX-License-Identifier: MIT
#include "transducer/cuda/tiles.h"

#include "status/first_error.h"
#include "transducer/tiles.h"

#include <algorithm>

namespace octavo::cuda {
namespace {

std::int32_t rounded(std::int64_t value, std::int64_t to) {
  return static_cast<std::int32_t>((value + to - 1) / to * to);
}

}  // namespace

JointTiles::JointTiles(const TransducerArgs& args, std::int64_t tile_cells) {
  std::int32_t all_frames = 0, all_positions = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const auto frames = static_cast<std::int32_t>(args.logit_lengths[b]);
    const auto row = static_cast<std::int32_t>(args.target_lengths[b] + 1);
    clips.push_back({cells, all_frames, all_positions, frames, row - 1});
    cells += std::int64_t{frames} * row;
    labels += row - 1;
    all_frames += frames;
    all_positions += row;
    positions = std::max(positions, row);
  }
  const std::int64_t wanted = tile_cells > 0 ? tile_cells : transducer::kTileCells;
  transducer::for_tiles(args, wanted, [&](const transducer::Tile& run) {
    auto at = clips.begin() + run.clip;
    JointTile tile{};
    tile.first = run.first;
    tile.cells = static_cast<std::int32_t>(run.cells);
    tile.rows = rounded(run.cells, transducer::kTileRows);
    tile.first_frame = at->first_frame + static_cast<std::int32_t>(run.frame);
    tile.first_position = at->first_position;
    // The clips that the tile crosses.
    for (auto left = tile.cells, before = static_cast<std::int32_t>(run.frame); left > 0; ++at, before = 0) {
      const std::int32_t row = at->labels + 1, frames = std::min(left / row, at->frames - before);
      tile.frames += frames;
      tile.positions += row;
      left -= frames * row;
    }
    most_rows = std::max(most_rows, tile.rows);
    tiles.push_back(tile);
  });
}

void* place_joint(JointWork& w, const JointTiles& tiles, const transducer::JointSizes& sizes, Places& kept,
                  Places& scratch) {
  w.hidden_pitch = static_cast<std::int32_t>(sizes.hidden_pitch);
  w.output_pitch = static_cast<std::int32_t>(sizes.output_pitch);
  w.share_pitch = static_cast<std::int32_t>(sizes.share_pitch);
  place_cells(w.lattice, tiles.cells, kept);
  scratch.put(w.lattice.clips, sizes.clips);
  scratch.put(w.logits, sizes.logits);
  scratch.put(w.activations, sizes.activations);
  scratch.put(w.padded_weight, sizes.padded_weight);
  scratch.put(w.padded_bias, sizes.padded_bias);
  scratch.put(w.activations_grad, sizes.activations);
  scratch.put(w.shares, sizes.shares);
  scratch.put(w.weight_sums, sizes.weight_sums);
  scratch.put(w.bias_sums, sizes.bias_sums);
  void* products = nullptr;
  scratch.put(products, sizes.products);
  return products;
}

Product JointSteps::logits_product(const JointTile& tile) const {
  Product p;
  p.from = p.to = work_.dtype;
  p.rows = tile.rows, p.columns = work_.output_pitch, p.inner = work_.hidden_pitch;
  p.b_turned = true;
  p.a_pitch = p.b_pitch = work_.hidden_pitch, p.to_pitch = work_.output_pitch;
  p.bias = work_.bias != nullptr;
  return p;
}

Product JointSteps::weight_product(const JointTile& tile) const {
  Product p;
  p.from = work_.dtype, p.to = DType::f32;
  p.rows = work_.output_pitch, p.columns = work_.hidden_pitch, p.inner = tile.rows;
  p.a_turned = true;
  p.a_pitch = work_.output_pitch, p.b_pitch = p.to_pitch = work_.hidden_pitch;
  p.add = !is_first(tile);
  return p;
}

Product JointSteps::activations_product(const JointTile& tile) const {
  Product p;
  p.from = p.to = work_.dtype;
  p.rows = tile.rows, p.columns = work_.hidden_pitch, p.inner = work_.output_pitch;
  p.a_pitch = work_.output_pitch, p.b_pitch = p.to_pitch = work_.hidden_pitch;
  return p;
}

Status JointSteps::begin(bool start) const {
  const cudaError_t clips = put_clips(work_.lattice, tiles_.clips.data(), tiles_.labels, start, stream_);
  OCTAVO_TRY(queued("put_clips", clips));
  return queued("joint_pad", joint_pad(work_, stream_));
}

Status JointSteps::activations(const JointTile& tile, bool shares) const {
  return queued("joint_activations", joint_activations(work_, tile, shares, stream_));
}

Status JointSteps::logits(const JointTile& tile) const {
  return multiply(logits_product(tile),
                  {work_.activations, work_.padded_weight, work_.padded_bias, work_.logits}, workspace_,
                  stream_);
}

Status JointSteps::records(const JointTile& tile) const {
  return queued("joint_records", joint_records(work_, tile, stream_));
}

Status JointSteps::walk(float* losses) const {
  const cudaError_t walked = walk_lattices(work_.lattice, tiles_.positions, stream_);
  OCTAVO_TRY(queued("walk_lattices", walked));
  return queued("put_losses", put_losses(work_.lattice, losses, stream_));
}

Status JointSteps::gradients(const JointTile& tile) const {
  return queued("joint_gradients", joint_gradients(work_, tile, is_first(tile), stream_));
}

Status JointSteps::weight_sums(const JointTile& tile) const {
  return multiply(weight_product(tile), {work_.logits, work_.activations, nullptr, work_.weight_sums},
                  workspace_, stream_);
}

Status JointSteps::activations_grad(const JointTile& tile) const {
  return multiply(activations_product(tile),
                  {work_.logits, work_.padded_weight, nullptr, work_.activations_grad}, workspace_, stream_);
}

Status JointSteps::sums(const JointTile& tile) const {
  return queued("joint_sums", joint_sums(work_, tile, stream_));
}

Status JointSteps::finish() const { return queued("joint_finish", joint_finish(work_, stream_)); }

Status JointSteps::loss(float* losses) const {
  Status status = begin(true);
  for (const JointTile& tile : tiles_.tiles) {
    if (status.ok()) status = activations(tile, false);
    if (status.ok()) status = logits(tile);
    if (status.ok()) status = records(tile);
  }
  return status.ok() ? walk(losses) : status;
}

Status JointSteps::gradient() const {
  Status status = begin(false);
  for (const JointTile& tile : tiles_.tiles) {
    if (status.ok()) status = activations(tile, true);
    if (status.ok()) status = logits(tile);
    if (status.ok()) status = gradients(tile);
    if (status.ok() && work_.grads.weight != nullptr) status = weight_sums(tile);
    if (!wants_activations()) continue;
    if (status.ok()) status = activations_grad(tile);
    if (status.ok()) status = sums(tile);
  }
  return status.ok() ? finish() : status;
}

}  // namespace octavo::cuda
