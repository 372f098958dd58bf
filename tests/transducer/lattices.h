// Batches of random logits for the transducer loss, in memory as a caller owns it, and their clips for the
// reference.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/reference/elements.h"
#include "tests/reference/transducer.h"
#include "tests/support/random.h"

#include <octavo/transducer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace test {

using octavo::DType;
using octavo::TransducerArgs;
using octavo::TransducerKind;
using octavo::TransducerReduction;

struct ClipSize {
  std::int64_t frames, labels;
};

// Logits [batch, frames, positions, tokens + durations]: tokens and durations are in one tensor, as a joint
// network computes them. Padding is NaN, and labels after a transcript are not labels.
class LatticeBatch {
 public:
  LatticeBatch(std::vector<ClipSize> clips, std::vector<std::int64_t> advances, std::int64_t vocabulary,
               std::uint64_t seed, DType type = DType::f32, double spread = 2.0)
      : sizes(std::move(clips)), durations(std::move(advances)), tokens(vocabulary), dtype(type) {
    for (const ClipSize& clip : sizes) {
      frames = std::max(frames, clip.frames);
      positions = std::max(positions, clip.labels + 1);
      logit_lengths.push_back(clip.frames);
      target_lengths.push_back(clip.labels);
    }
    blank = tokens - 1;
    outputs = tokens + static_cast<std::int64_t>(durations.size());
    logits.resize(count() * bytes_each());
    Random random(seed);
    for (std::int64_t b = 0; b < batch(); ++b) {
      const ClipSize& clip = sizes[static_cast<std::size_t>(b)];
      for (std::int64_t u = 0; u < positions - 1; ++u) {
        const auto label = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(tokens - 1)));
        targets.push_back(u < clip.labels ? label : -7);
      }
      for (std::int64_t t = 0; t < frames; ++t) {
        for (std::int64_t u = 0; u < positions; ++u) {
          const bool real = t < clip.frames && u <= clip.labels;
          for (std::int64_t k = 0; k < outputs; ++k) {
            const double x = real ? spread * static_cast<double>(random.gaussian())
                                  : std::numeric_limits<double>::quiet_NaN();
            set(b, t, u, k, static_cast<float>(x));
          }
        }
      }
    }
    workspace.resize(static_cast<std::size_t>(octavo::transducer_workspace_bytes(args()).value() + 7) / 8 +
                     2);
  }

  [[nodiscard]] std::int64_t batch() const { return static_cast<std::int64_t>(sizes.size()); }
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(batch() * frames * positions * outputs);
  }
  [[nodiscard]] std::size_t bytes_each() const {
    return static_cast<std::size_t>(octavo::dtype_bytes(dtype));
  }
  [[nodiscard]] std::int64_t at(std::int64_t b, std::int64_t t, std::int64_t u, std::int64_t k) const {
    return ((b * frames + t) * positions + u) * outputs + k;
  }
  void set(std::int64_t b, std::int64_t t, std::int64_t u, std::int64_t k, float x) {
    reference::store_nearest(dtype, logits.data(), at(b, t, u, k), x);
  }
  [[nodiscard]] std::array<std::int64_t, 3> strides() const {
    return {frames * positions * outputs, positions * outputs, outputs};
  }

  [[nodiscard]] TransducerArgs args() {
    TransducerArgs args;
    args.dtype = dtype;
    args.kind = durations.empty() ? TransducerKind::rnnt : TransducerKind::tdt;
    args.batch = batch();
    args.frames = frames;
    args.positions = positions;
    args.tokens = tokens;
    args.blank = blank;
    args.token_logits = {logits.data(), strides()};
    args.duration_logits = {logits.data() + static_cast<std::size_t>(tokens) * bytes_each(), strides()};
    args.durations = durations;
    args.targets = targets.data();
    args.logit_lengths = logit_lengths.data();
    args.target_lengths = target_lengths.data();
    args.sigma = sigma;
    args.reduction = reduction;
    args.workspace = std::as_writable_bytes(std::span(workspace));
    return args;
  }

  [[nodiscard]] std::vector<float> losses() { return losses(args()); }
  [[nodiscard]] std::vector<float> losses(const TransducerArgs& with) {
    std::vector<float> out(with.reduction == TransducerReduction::none ? sizes.size() : 1);
    const octavo::Status status = octavo::transducer_loss(with, out.data());
    if (!status.ok()) throw octavo::Error(status);
    return out;
  }
  // Returns the bytes of a gradient in the layout of the logits; the loss was computed before.
  [[nodiscard]] std::vector<std::byte> gradient(const TransducerArgs& with,
                                                std::vector<float> upstream = {}) {
    if (upstream.empty()) upstream.assign(sizes.size(), 1.0F);
    std::vector<std::byte> out(logits.size(), std::byte{0x7B});
    const octavo::Status status = octavo::transducer_gradient(
        with, upstream.data(), {out.data(), strides()},
        {out.data() + static_cast<std::size_t>(tokens) * bytes_each(), strides()});
    if (!status.ok()) throw octavo::Error(status);
    return out;
  }
  [[nodiscard]] std::vector<std::byte> gradient() { return gradient(args()); }
  [[nodiscard]] float element(const std::vector<std::byte>& of, std::int64_t b, std::int64_t t,
                              std::int64_t u, std::int64_t k) const {
    return reference::load(dtype, of.data(), at(b, t, u, k));
  }

  [[nodiscard]] reference::TransducerClip clip(std::int64_t b) const {
    const ClipSize& size = sizes[static_cast<std::size_t>(b)];
    reference::TransducerClip clip;
    clip.frames = size.frames;
    clip.tokens = tokens;
    clip.blank = blank;
    clip.durations = durations;
    clip.sigma = sigma;
    for (std::int64_t u = 0; u < size.labels; ++u)
      clip.labels.push_back(targets[static_cast<std::size_t>(b * (positions - 1) + u)]);
    for (std::int64_t t = 0; t < size.frames; ++t) {
      for (std::int64_t u = 0; u <= size.labels; ++u) {
        for (std::int64_t k = 0; k < outputs; ++k) {
          (k < tokens ? clip.token_logits : clip.duration_logits).push_back(element(logits, b, t, u, k));
        }
      }
    }
    return clip;
  }

  std::vector<ClipSize> sizes;
  std::vector<std::int64_t> durations;
  std::int64_t tokens, blank = 0, frames = 1, positions = 1, outputs = 0;
  DType dtype;
  double sigma = 0.0;
  TransducerReduction reduction = TransducerReduction::none;
  std::vector<std::byte> logits;
  std::vector<std::int64_t> targets, logit_lengths, target_lengths;
  std::vector<double> workspace;
};

}  // namespace test
