// The loss of transducers on logits, and its gradient: TDT (token-and-duration transducer) with any set of
// durations, and plain RNN-T. Log-space sums are in double, whatever the logits' type.
//
// A clip has T frames and labels y_1 … y_U; its cells are (t, u), 0 <= t < T, 0 <= u <= U. Tokens (blank
// among them) and durations have a softmax each. In log space, with B and Y the scores of blank and of
// y_{u+1} less sigma, and Q_d that of duration d, an alignment starts in (0, 0) and goes from (t, u) to
//   (t + d, u)      by blank, d >= 1:     B + Q_d
//   (t + d, u + 1)  by the next label:    Y + Q_d
// and ends by a blank that lands on frame T with u = U; a label may not land there. The loss is minus the log
// of the sum over all alignments. In RNN-T blank advances one frame and a label none, without Q and sigma.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace octavo {

enum class TransducerKind : std::uint32_t { tdt = 0, rnnt = 1 };

// What becomes of the clips' losses. A clip without labels counts as one with one label where lengths divide.
enum class TransducerReduction : std::uint32_t {
  mean_batch = 0,   // their mean
  mean = 1,         // each divided by its number of labels, then their mean
  mean_volume = 2,  // their sum, divided by the number of all labels
  sum = 3,
  none = 4,  // one loss per clip
};
OCTAVO_API Result<TransducerReduction> parse_transducer_reduction(std::string_view text);

inline constexpr std::int64_t kMaxTransducerDurations = 64;

// Where the outputs of the cells lie: those of (clip, t, u) are contiguous and begin at data +
// clip * strides[0] + t * strides[1] + u * strides[2], in elements. Three zeros stand for dense memory. So
// tokens and durations may be parts of one tensor. Const is what the loss reads, not const its gradient.
template <class Void>
struct TransducerView {
  Void* data = nullptr;  // aligned to its element
  std::array<std::int64_t, 3> strides{};
};

// All memory is the caller's.
struct TransducerArgs {
  Device device;  // the CPU; there is no CUDA backend yet
  DType dtype = DType::f32;
  TransducerKind kind = TransducerKind::tdt;
  TransducerReduction reduction = TransducerReduction::mean_batch;
  // The padded sizes: clips, frames, labels of the longest transcript + 1, tokens with blank.
  std::int64_t batch = 0, frames = 0, positions = 0, tokens = 0;
  std::int64_t blank = 0;  // its token
  TransducerView<const void> token_logits;
  TransducerView<const void> duration_logits;    // tdt: as many outputs as durations
  std::span<const std::int64_t> durations;       // tdt: frames, in the order of their logits; no two equal
  const std::int64_t* targets = nullptr;         // [batch, positions - 1]: tokens that are not blank
  std::int64_t target_stride = 0;                // from a clip's first label to the next one's; 0: dense
  const std::int64_t* logit_lengths = nullptr;   // [batch]: frames of each clip, at least 1
  const std::int64_t* target_lengths = nullptr;  // [batch]: labels of each clip; what follows is not read
  double sigma = 0.0;                            // tdt: taken from every token's score
  // tdt: the probability that a call takes RNN-T on the tokens instead, as draws_rnnt() says.
  double omega = 0.0;
  std::uint64_t seed = 0, step = 0;
  std::span<std::byte> workspace;  // aligned to 16; transducer_workspace_bytes()
  void* stream = nullptr;          // null on the CPU
  int threads = 0;                 // 0 means the pool's size
};

// Depends on the numbers alone, so that a resumed run draws the same.
OCTAVO_API bool draws_rnnt(double omega, std::uint64_t seed, std::uint64_t step);

// Bytes for the cells that clips really have, 32 each, and a little for each clip. Reads both lengths and the
// sizes of `args`.
OCTAVO_API Result<std::int64_t> transducer_workspace_bytes(const TransducerArgs& args);

// Writes `batch` losses for `none`, else one. Of a clip that no alignment can end (durations without 0, too
// few frames) the loss is infinite. A NaN where an alignment can pass makes its clip's loss NaN. Fills the
// workspace, which the gradient reads.
OCTAVO_API Status transducer_loss(const TransducerArgs& args, float* losses);

// The gradient of transducer_loss with respect to the logits, times `grad_losses` (`batch` numbers for
// `none`, else one), in the logits' type. Every element is written, zero where no clip has a cell. `args` and
// the workspace are those of the call before, which stay as they are. A view of a gradient may be the logits'
// own: it then replaces them. A clip with an infinite loss has zeros, and RNN-T's duration gradient is zero.
OCTAVO_API Status transducer_gradient(const TransducerArgs& args, const float* grad_losses,
                                      TransducerView<void> token_grad, TransducerView<void> duration_grad);

}  // namespace octavo
