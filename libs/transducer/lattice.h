// The lattice of a batch: the arcs of a cell, and the packed cells in the caller's workspace.
//
// The workspace is a head, a record for each clip, and the cells, clip by clip, frame by frame. It contains
// only cells that a clip really has.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/transducer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace octavo::transducer {

// The data of a cell that the gradient needs from the loss.
struct Cell {
  double token_norm;     // log of the sum over exp(token logits)
  double duration_norm;  // log of the sum over exp(duration logits)
  double alpha;          // log of the probability of reaching this cell
  double beta;           // and of ending from this cell
};

struct Head {
  std::uint64_t key;  // the key of the arguments that filled the workspace
  std::uint64_t reserved;
};

struct ClipState {
  std::int64_t first;  // its first cell
  double log_p;        // log of the sum over all alignments
};

inline std::int64_t workspace_bytes(std::int64_t batch, std::int64_t cells) {
  return static_cast<std::int64_t>(sizeof(Head)) + static_cast<std::int64_t>(sizeof(ClipState)) * batch +
         static_cast<std::int64_t>(sizeof(Cell)) * cells;
}

struct Workspace {
  Head* head;
  ClipState* clips;
  Cell* cells;

  Workspace(std::span<std::byte> bytes, std::int64_t batch)
      : head(reinterpret_cast<Head*>(bytes.data())),
        clips(reinterpret_cast<ClipState*>(head + 1)),
        cells(reinterpret_cast<Cell*>(clips + batch)) {}
};

// An arc's frames, and the duration whose score it has, or kNoDuration.
struct Arc {
  std::int64_t advance;
  std::int64_t duration;
};
inline constexpr std::int64_t kNoDuration = -1;

// The arcs by blank and by the next label: the same for every cell.
class Arcs {
 public:
  explicit Arcs(std::span<const std::int64_t> durations) {
    for (std::size_t i = 0; i < durations.size(); ++i) {
      const Arc arc{durations[i], static_cast<std::int64_t>(i)};
      if (arc.advance >= 1) blank_[blanks_++] = arc;
      label_[labels_++] = arc;
    }
  }
  static Arcs rnnt() {
    Arcs arcs({});
    arcs.blank_[arcs.blanks_++] = {1, kNoDuration};
    arcs.label_[arcs.labels_++] = {0, kNoDuration};
    return arcs;
  }

  [[nodiscard]] std::span<const Arc> blank() const { return {blank_.data(), blanks_}; }
  [[nodiscard]] std::span<const Arc> label() const { return {label_.data(), labels_}; }

 private:
  std::array<Arc, kMaxTransducerDurations> blank_{}, label_{};
  std::size_t blanks_ = 0, labels_ = 0;
};

inline bool is_rnnt(const TransducerArgs& args) {
  return args.kind == TransducerKind::rnnt || draws_rnnt(args.omega, args.seed, args.step);
}

// Returns the number of cells of a clip.
inline std::int64_t cells_of(const TransducerArgs& args, std::int64_t clip) {
  return args.logit_lengths[clip] * (args.target_lengths[clip] + 1);
}

inline std::int64_t all_labels(const TransducerArgs& args) {
  std::int64_t labels = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) labels += args.target_lengths[b];
  return labels;
}
inline std::int64_t all_cells(const TransducerArgs& args) {
  std::int64_t cells = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) cells += cells_of(args, b);
  return cells;
}

// Returns the divisor of a clip's loss. `labels` are those of all clips.
inline double divisor(const TransducerArgs& args, std::int64_t clip, std::int64_t labels) {
  const auto at_least_one = [](std::int64_t count) { return static_cast<double>(count > 0 ? count : 1); };
  switch (args.reduction) {
    case TransducerReduction::mean_batch:
      return static_cast<double>(args.batch);
    case TransducerReduction::mean:
      return static_cast<double>(args.batch) * at_least_one(args.target_lengths[clip]);
    case TransducerReduction::mean_volume:
      return at_least_one(labels);
    case TransducerReduction::sum:
    case TransducerReduction::none:
      break;
  }
  return 1.0;
}

}  // namespace octavo::transducer
