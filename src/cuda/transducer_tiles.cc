// SPDX-License-Identifier: MIT
#include "cuda/transducer_tiles.h"

#include "cuda/runtime.h"

#include <algorithm>

namespace octavo::cuda {
namespace {

std::int32_t rounded(std::int64_t value, std::int64_t to) {
  return static_cast<std::int32_t>((value + to - 1) / to * to);
}

Status queued(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return failed(std::string("[transducer] ") + what, error);
}

// Parts of a block of memory, one behind the other.
class Places {
 public:
  explicit Places(std::byte* base) : base_(base) {}
  template <class T>
  void put(T*& to, std::int64_t bytes) {
    to = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (bytes + 255) / 256 * 256;
  }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

}  // namespace

JointTiles plan_tiles(std::span<const std::int64_t> frames, std::span<const std::int64_t> labels,
                      std::int64_t most) {
  JointTiles out;
  JointTile tile{};
  std::int32_t frames_done = 0, positions_done = 0;
  const auto end_tile = [&] {
    if (tile.cells == 0) return;
    tile.rows = rounded(tile.cells, kTileRows);
    out.most_rows = std::max(out.most_rows, tile.rows);
    out.tiles.push_back(tile);
  };
  for (std::size_t b = 0; b < frames.size(); ++b) {
    const auto row = static_cast<std::int32_t>(labels[b] + 1);
    const auto count = static_cast<std::int32_t>(frames[b]);
    out.clips.push_back({out.cells, frames_done, positions_done, count, row - 1});
    for (std::int32_t done = 0; done < count;) {
      if (tile.cells + row > most) {
        end_tile();
        tile = {};
      }
      if (tile.cells == 0) {
        tile.first = out.cells;
        tile.first_frame = frames_done;
        tile.first_position = positions_done;
      }
      const auto fit = static_cast<std::int32_t>(std::max<std::int64_t>((most - tile.cells) / row, 1));
      const std::int32_t now = std::min(fit, count - done);
      tile.cells += now * row;
      tile.frames += now;
      tile.positions += row;  // once for each run of a clip's frames
      out.cells += std::int64_t{now} * row;
      frames_done += now;
      done += now;
    }
    positions_done += row;
    out.labels += labels[b];
  }
  end_tile();
  return out;
}

JointBytes place_joint(JointWork& w, const JointTiles& tiles, std::byte* kept, std::byte* scratch,
                       bool gradient) {
  const std::int64_t bytes = dtype_bytes(w.dtype);
  w.hidden_pitch = rounded(w.hidden, 16 / bytes);
  w.output_pitch = rounded(w.outputs, 16 / bytes);
  w.share_pitch = rounded(5 + w.lattice.extra, 4);
  TransducerLattice& l = w.lattice;
  Places keeps(kept);
  TransducerClip* clips = nullptr;
  keeps.put(clips, std::int64_t{l.batch} * static_cast<std::int64_t>(sizeof(TransducerClip)));
  l.clips = clips;
  keeps.put(l.log_p, 8 * std::int64_t{l.batch});
  keeps.put(l.records, 4 * tiles.cells * l.width());
  keeps.put(l.alpha, 8 * tiles.cells);
  keeps.put(l.beta, 8 * tiles.cells);
  Places places(scratch);
  const std::int64_t rows = tiles.most_rows, weights = std::int64_t{w.output_pitch} * w.hidden_pitch;
  places.put(w.logits, bytes * rows * w.output_pitch);
  places.put(w.activations, bytes * rows * w.hidden_pitch);
  places.put(w.padded_weight, bytes * weights);
  places.put(w.padded_bias, bytes * w.output_pitch);
  if (gradient) {
    places.put(w.activations_grad, bytes * rows * w.hidden_pitch);
    places.put(w.shares, 4 * rows * w.share_pitch);
    places.put(w.weight_sums, 4 * weights);
    places.put(w.predictor_sums, 4 * std::int64_t{l.batch} * w.positions * w.hidden_pitch);
    places.put(w.bias_sums, 4 * std::int64_t{kBiasParts} * w.output_pitch);
  }
  return {keeps.used(), places.used()};
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

Status JointSteps::begin() const { return queued("joint_pad", joint_pad(work_, stream_)); }

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
  std::int32_t positions = 0;
  for (const TransducerClip& clip : tiles_.clips) positions = std::max(positions, clip.labels + 1);
  if (Status bad = queued("walk_lattices", walk_lattices(work_.lattice, positions, stream_)); !bad.ok())
    return bad;
  return queued("put_losses", put_losses(work_.lattice, work_.mean, losses, stream_));
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
  auto* const clips = const_cast<TransducerClip*>(work_.lattice.clips);
  Status status = queued("put_clips", put_clips(tiles_.clips.data(), work_.lattice.batch, clips, stream_));
  if (status.ok()) status = begin();
  for (const JointTile& tile : tiles_.tiles) {
    if (status.ok()) status = activations(tile, false);
    if (status.ok()) status = logits(tile);
    if (status.ok()) status = records(tile);
  }
  return status.ok() ? walk(losses) : status;
}

Status JointSteps::gradient() const {
  Status status = begin();
  for (const JointTile& tile : tiles_.tiles) {
    if (status.ok()) status = activations(tile, true);
    if (status.ok()) status = logits(tile);
    if (status.ok()) status = gradients(tile);
    if (status.ok()) status = weight_sums(tile);
    if (status.ok()) status = activations_grad(tile);
    if (status.ok()) status = sums(tile);
  }
  return status.ok() ? finish() : status;
}

}  // namespace octavo::cuda
