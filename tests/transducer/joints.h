// Batches for the transducer loss with its joint network, and the same network as plain loops that store all
// logits.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/transducer/lattices.h"

#include <octavo/dropout.h>

#include <cmath>
#include <vector>

namespace test {

using octavo::TransducerJoint;
using octavo::TransducerJointGrads;

struct JointGradients {
  std::vector<float> encoder, predictor, weight, bias;
  bool operator==(const JointGradients&) const = default;
};

// Encoder and predictor are NaN where no clip has a frame or position.
class JointBatch {
 public:
  JointBatch(std::vector<ClipSize> clips, std::vector<std::int64_t> durations, std::int64_t vocabulary,
             std::int64_t units, std::uint64_t seed, DType type = DType::f32)
      : lattice(std::move(clips), std::move(durations), vocabulary, seed, type), hidden(units), dtype(type) {
    Random random(seed + 1000);
    const auto fill = [&](std::vector<float>& to, std::int64_t count, double spread) {
      for (std::int64_t i = 0; i < count; ++i)
        to.push_back(rounded(spread * static_cast<double>(random.gaussian())));
    };
    fill(encoder, lattice.batch() * lattice.frames * hidden, 1.0);
    fill(predictor, lattice.batch() * lattice.positions * hidden, 1.0);
    fill(weight, lattice.outputs * hidden, 1.5 / std::sqrt(static_cast<double>(hidden)));
    fill(bias, lattice.outputs, 0.5);
    for (std::int64_t b = 0; b < lattice.batch(); ++b) {
      const ClipSize& clip = lattice.sizes[static_cast<std::size_t>(b)];
      for (std::int64_t t = clip.frames; t < lattice.frames; ++t) blot(encoder, b * lattice.frames + t);
      for (std::int64_t u = clip.labels + 1; u < lattice.positions; ++u)
        blot(predictor, b * lattice.positions + u);
      samples.push_back(100 + 7 * b);
    }
  }

  [[nodiscard]] float rounded(double x) const {
    std::byte place[4];
    reference::store_nearest(dtype, place, 0, static_cast<float>(x));
    return reference::load(dtype, place, 0);
  }

  // Returns the library's arguments; they live until the next call.
  [[nodiscard]] TransducerJoint joint() {
    TransducerJoint out;
    out.hidden = hidden;
    out.encoder = stored(encoder, 0);
    out.predictor = stored(predictor, 1);
    out.weight = stored(weight, 2);
    out.bias = stored(bias, 3);
    out.bias_dtype = dtype;
    out.dropout = dropout;
    out.samples = samples.data();
    out.layer = 3;
    out.tile_cells = tile_cells;
    TransducerArgs args = lattice.args();
    args.seed = 11;
    args.step = 12;
    const auto bytes = octavo::transducer_joint_bytes(args, out).value();
    lattice.workspace.resize(static_cast<std::size_t>(bytes.workspace + 7) / 8 + 2);
    scratch.resize(static_cast<std::size_t>(bytes.scratch + 7) / 8 + 2);
    out.scratch = std::as_writable_bytes(std::span(scratch));
    return out;
  }
  // REQUIRES: a call of joint() before.
  [[nodiscard]] TransducerArgs args() {
    TransducerArgs out = lattice.args();
    out.token_logits = out.duration_logits = {};
    out.seed = 11;
    out.step = 12;
    return out;
  }

  [[nodiscard]] std::vector<float> losses() {
    const TransducerJoint with = joint();
    return losses(args(), with);
  }
  [[nodiscard]] std::vector<float> losses(const TransducerArgs& with, const TransducerJoint& network) {
    std::vector<float> out(with.reduction == TransducerReduction::none ? lattice.sizes.size() : 1);
    check(octavo::transducer_joint_loss(with, network, out.data()));
    return out;
  }
  [[nodiscard]] JointGradients gradient(const TransducerArgs& with, const TransducerJoint& network,
                                        const std::vector<float>& upstream) {
    JointGradients out = empty();
    check(octavo::transducer_joint_gradient(
        with, network, upstream.data(),
        {out.encoder.data(), out.predictor.data(), out.weight.data(), out.bias.data()}));
    return out;
  }
  // Returns the gradient of the sum of all losses.
  [[nodiscard]] JointGradients gradient() {
    const TransducerJoint with = joint();
    (void)losses(args(), with);
    return gradient(args(), with, std::vector<float>(lattice.sizes.size(), 1.0F));
  }
  [[nodiscard]] JointGradients empty() const {
    const float mark = 7.0F;
    return {std::vector(encoder.size(), mark), std::vector(predictor.size(), mark),
            std::vector(weight.size(), mark), std::vector(bias.size(), mark)};
  }

  [[nodiscard]] std::size_t unit(std::int64_t row, std::int64_t k) const {
    return static_cast<std::size_t>(row * hidden + k);
  }
  // Returns the factors of the units of (t, u): dropout of ones through the public API.
  [[nodiscard]] std::vector<float> mask(std::int64_t b, std::int64_t t, std::int64_t u) const {
    const ClipSize& clip = lattice.sizes[static_cast<std::size_t>(b)];
    std::vector<float> all(static_cast<std::size_t>(clip.frames * (clip.labels + 1) * hidden), 1.0F);
    octavo::DropoutArgs drop;
    drop.from = drop.to = all.data();
    drop.batch = 1;
    drop.inner = static_cast<std::int64_t>(all.size());
    drop.samples = &samples[static_cast<std::size_t>(b)];
    drop.probability = dropout;
    drop.seed = 11;
    drop.step = 12;
    drop.layer = 3;
    check(octavo::dropout(drop));
    const auto first = all.begin() + (t * (clip.labels + 1) + u) * hidden;
    return {first, first + hidden};
  }
  [[nodiscard]] std::vector<float> units(std::int64_t b, std::int64_t t, std::int64_t u) const {
    std::vector<float> out = mask(b, t, u);
    for (std::int64_t k = 0; k < hidden; ++k) {
      const float sum =
          encoder[unit(b * lattice.frames + t, k)] + predictor[unit(b * lattice.positions + u, k)];
      float& x = out[static_cast<std::size_t>(k)];
      x = x == 0.0F || sum <= 0.0F ? 0.0F : rounded(static_cast<double>(sum * x));
    }
    return out;
  }
  // Calls f(clip, t, u) for all cells.
  template <class Fn>
  void for_cells(Fn&& f) const {
    for (std::int64_t b = 0; b < lattice.batch(); ++b) {
      const ClipSize& clip = lattice.sizes[static_cast<std::size_t>(b)];
      for (std::int64_t t = 0; t < clip.frames; ++t) {
        for (std::int64_t u = 0; u <= clip.labels; ++u) f(b, t, u);
      }
    }
  }
  // Writes all logits into the lattice, summed in fp32.
  void make_plain() {
    for_cells([&](std::int64_t b, std::int64_t t, std::int64_t u) {
      const std::vector<float> h = units(b, t, u);
      for (std::int64_t o = 0; o < lattice.outputs; ++o) {
        float sum = bias[static_cast<std::size_t>(o)];
        for (std::int64_t k = 0; k < hidden; ++k) sum += h[static_cast<std::size_t>(k)] * weight[unit(o, k)];
        lattice.set(b, t, u, o, sum);
      }
    });
  }

  static void check(const octavo::Status& status) {
    if (!status.ok()) throw octavo::Error(status);
  }

  LatticeBatch lattice;
  std::int64_t hidden;
  DType dtype;
  double dropout = 0.0;
  std::int64_t tile_cells = 0;
  std::vector<float> encoder, predictor, weight, bias;  // values of dtype
  std::vector<std::int64_t> samples;
  std::vector<double> scratch;

 private:
  void blot(std::vector<float>& values, std::int64_t row) const {
    std::fill_n(values.begin() + row * hidden, hidden, std::nanf(""));
  }
  const void* stored(const std::vector<float>& values, std::size_t which) {
    std::vector<std::byte>& to = bytes_[which];
    to.resize(values.size() * lattice.bytes_each());
    for (std::size_t i = 0; i < values.size(); ++i)
      reference::store_nearest(dtype, to.data(), static_cast<std::int64_t>(i), values[i]);
    return to.data();
  }
  std::array<std::vector<std::byte>, 4> bytes_;
};

}  // namespace test
