// The loss of transducers and its gradient: TDT (token-and-duration transducer) with any set of durations,
// and plain RNN-T. There are two entries: on logits, and with the joint network, whose logits never all exist
// at the same time. On the CPU, sums in log space are in double, whatever the logits' type. On a GPU,
// additions to logs of probabilities are in double, and exponentials and their sums are in fp32.
//
// A clip has T frames and labels y_1 … y_U; its cells are (t, u), 0 <= t < T, 0 <= u <= U. Tokens (including
// blank) and durations have a softmax each. In log space, let B and Y be the scores of blank and of y_{u+1}
// minus sigma, and Q_d that of duration d. An alignment starts in (0, 0) and goes from (t, u) to
//   (t + d, u)      by blank, d >= 1:     B + Q_d
//   (t + d, u + 1)  by the next label:    Y + Q_d
// and ends by a blank that reaches frame T with u = U; a label may not reach it. The loss is minus the log of
// the sum over all alignments. In RNN-T, blank advances one frame and a label none, without Q and sigma.
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

// The reduction of the clips' losses. A clip without labels counts as one with one label if lengths divide.
enum class TransducerReduction : std::uint32_t {
  mean_batch = 0,   // their mean
  mean = 1,         // each divided by its number of labels, then their mean
  mean_volume = 2,  // their sum, divided by the number of all labels
  sum = 3,
  none = 4,  // one loss per clip
};
OCTAVO_API Result<TransducerReduction> parse_transducer_reduction(std::string_view text);

inline constexpr std::int64_t kMaxTransducerDurations = 64;

// The location of the outputs of the cells: those of (clip, t, u) are contiguous and begin at data + clip *
// strides[0] + t * strides[1] + u * strides[2], in elements. Three zeros mean dense memory. So tokens and
// durations may be parts of one tensor. The loss reads const views; gradients are not const.
template <class Void>
struct TransducerView {
  Void* data = nullptr;  // aligned to its element
  std::array<std::int64_t, 3> strides{};
};

// All memory is the caller's, on the device except for durations (always read on the host, before the call
// returns). On the CPU a wrong length or label is an error. On a GPU the host does not wait to check: a clip
// with a wrong one has a NaN loss and NaN gradients, and no memory outside of the tensors is accessed. A
// gradient whose workspace was filled by a loss with other arguments is NaN, too; on the CPU it is an error.
struct TransducerArgs {
  Device device;
  DType dtype = DType::f32;  // the type of the logits, or of the joint network's operands
  TransducerKind kind = TransducerKind::tdt;
  TransducerReduction reduction = TransducerReduction::mean_batch;
  // The padded sizes: clips, frames, labels of the longest transcript + 1, tokens with blank.
  std::int64_t batch = 0, frames = 0, positions = 0, tokens = 0;
  std::int64_t blank = 0;                   // its token
  TransducerView<const void> token_logits;  // ignored with a joint network
  TransducerView<const void>
      duration_logits;  // ignored with a joint network; tdt: the number of outputs is that of durations
  std::span<const std::int64_t> durations;       // tdt: frames, in the order of their logits; no two equal
  const std::int64_t* targets = nullptr;         // [batch, positions - 1]: tokens that are not blank
  std::int64_t target_stride = 0;                // from a clip's first label to the next clip's; 0: dense
  const std::int64_t* logit_lengths = nullptr;   // [batch]: frames of each clip, at least 1
  const std::int64_t* target_lengths = nullptr;  // [batch]: labels of each clip; the rest is not read
  double sigma = 0.0;                            // tdt: subtracted from every token's score
  // tdt: the probability that a call uses RNN-T on the tokens instead, as draws_rnnt() decides.
  double omega = 0.0;
  std::uint64_t seed = 0, step = 0;
  std::span<std::byte> workspace;  // aligned to 16; transducer_workspace_bytes() or transducer_joint_bytes()
  void* stream = nullptr;          // cuda: the cudaStream_t of the work; null on the CPU
  int threads = 0;                 // cpu: 0 is the pool's size
};

// Depends only on its arguments, so a resumed run draws the same.
OCTAVO_API bool draws_rnnt(double omega, std::uint64_t seed, std::uint64_t step);

// On the CPU, the bytes are those of the cells that clips really have, 32 each, and a few for each clip; the
// lengths and the sizes of `args` are read. On a GPU they are those of all cells of the padded sizes, and the
// lengths are not read.
OCTAVO_API Result<std::int64_t> transducer_workspace_bytes(const TransducerArgs& args);

// Writes `batch` losses for `none`, otherwise one. The loss of a clip that no alignment can end (durations
// without 0, too few frames) is infinite. A NaN that an alignment can reach makes its clip's loss NaN. Fills
// the workspace, which the gradient reads.
OCTAVO_API Status transducer_loss(const TransducerArgs& args, float* losses);

// Computes the gradient of transducer_loss with respect to the logits, times `grad_losses` (`batch` numbers
// for `none`, otherwise one), in the logits' type. Every element is written, with zeros where no clip has a
// cell. `args` and the workspace must be unchanged since that call. A view of a gradient may be the logits'
// own, which it then overwrites. A clip with an infinite loss has zeros, and RNN-T's duration gradient is
// zero.
OCTAVO_API Status transducer_gradient(const TransducerArgs& args, const float* grad_losses,
                                      TransducerView<void> token_grad, TransducerView<void> duration_grad);

// The joint network, whose logits are computed tile by tile, twice, and never stored:
//   hidden(t, u) = drop(relu(encoder[t] + predictor[u])),  logits(t, u) = weight . hidden(t, u) + bias
// with the tokens first, then the durations. Hidden units, logits and the gradient of the logits are rounded
// to `dtype`, as in a network of that type; all sums are in fp32 or better. A unit that is zero has no
// gradient.
//
// On a GPU, where cuBLASLt does the matmuls (loaded by the first call), the bias and the gradient of the
// hidden units are rounded to `dtype` too. Results have the same bits each time for one GPU, one version of
// that library and one size of tiles.
//
// With a joint network, logit_lengths and target_lengths of TransducerArgs are in host memory on every device
// (tiles are planned with them) and are checked; targets and samples are on the device.
struct TransducerJoint {
  std::int64_t hidden = 0;  // the number of units
  const void* encoder =
      nullptr;  // [batch, frames, hidden], dense like the tensors below; aligned to its element
  const void* predictor = nullptr;  // [batch, positions, hidden]
  const void* weight = nullptr;     // [tokens + durations, hidden]
  const void* bias = nullptr;       // [tokens + durations]; null: none
  DType bias_dtype = DType::f32;    // f32 or `dtype`
  // Dropout of the hidden units as in octavo/dropout.h, with the seed and step of TransducerArgs: unit k of
  // (t, u) is element (t * (labels of the clip + 1) + u) * hidden + k of the clip's sample, whatever the
  // padding of clips.
  double dropout = 0.0;                   // the probability: at least 0, below 1
  const std::int64_t* samples = nullptr;  // `batch` numbers; not read if dropout is 0
  std::uint32_t layer = 0;
  // The approximate number of cells of a tile, which is a run of complete frames, at least one. 0 is the
  // backend's default, 8192 on a GPU.
  std::int64_t tile_cells = 0;
  std::span<std::byte> scratch;  // aligned to 16; its contents are not needed between two calls
};

// All fp32 and dense, of the shapes above; null gradients are not computed. Every element is written.
struct TransducerJointGrads {
  float* encoder = nullptr;
  float* predictor = nullptr;
  float* weight = nullptr;
  float* bias = nullptr;
};

struct TransducerJointBytes {
  std::int64_t workspace;  // used from the loss to its gradient: about 64 bytes for each cell that a clip has
  std::int64_t scratch;    // one tile, and the backend's workspace for matmuls
};
OCTAVO_API Result<TransducerJointBytes> transducer_joint_bytes(const TransducerArgs& args,
                                                               const TransducerJoint& joint);

// Like transducer_loss and transducer_gradient, on the joint network's logits.
OCTAVO_API Status transducer_joint_loss(const TransducerArgs& args, const TransducerJoint& joint,
                                        float* losses);
OCTAVO_API Status transducer_joint_gradient(const TransducerArgs& args, const TransducerJoint& joint,
                                            const float* grad_losses, const TransducerJointGrads& grads);

}  // namespace octavo
