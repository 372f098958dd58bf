// The recursion over the cells of a batch: alpha, beta, and the probabilities of arcs in a cell. It is the
// same for all sources of the cells' outputs.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/threads.h"
#include "transducer/backend.h"
#include "transducer/cpu/elements.h"
#include "transducer/lattice.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace octavo::transducer {

struct Place {
  std::int64_t clip, t, u;
};

// The cells of a batch by clip, frame and label.
class Cells {
 public:
  explicit Cells(const TransducerArgs& args) : args_(args), space_(args.workspace, args.batch) {}

  [[nodiscard]] ClipState& state(std::int64_t clip) const { return space_.clips[clip]; }
  [[nodiscard]] std::int64_t frames(std::int64_t clip) const { return args_.logit_lengths[clip]; }
  [[nodiscard]] std::int64_t labels(std::int64_t clip) const { return args_.target_lengths[clip]; }
  [[nodiscard]] std::int64_t number(const Place& at) const {
    return state(at.clip).first + at.t * (labels(at.clip) + 1) + at.u;
  }
  [[nodiscard]] Cell& cell(const Place& at) const { return space_.cells[number(at)]; }
  // Returns the next label, or blank after the last.
  [[nodiscard]] std::int64_t target(const Place& at) const {
    return at.u < labels(at.clip) ? args_.targets[at.clip * target_stride(args_) + at.u] : args_.blank;
  }

  // Computes the first cell of every clip.
  void pack() const {
    std::int64_t cells = 0;
    for (std::int64_t b = 0; b < args_.batch; ++b) {
      state(b).first = cells;
      cells += cells_of(args_, b);
    }
  }

 protected:
  const TransducerArgs& args_;
  Workspace space_;
};

// The probability that an alignment emits blank in a cell, the label, each duration; and the sum of them.
struct Taken {
  double blank = 0.0, label = 0.0, all = 0.0;
  std::array<double, kMaxTransducerDurations> durations{};
};

// Logits has blank(place), label(place) and duration(place, i): outputs of a cell.
template <class Logits>
class Walk : public Cells {
 public:
  Walk(const TransducerArgs& args, const Logits& logits)
      : Cells(args),
        logits_(logits),
        arcs_(is_rnnt(args) ? Arcs::rnnt() : Arcs(args.durations)),
        sigma_(is_rnnt(args) ? 0.0 : args.sigma) {}

  // Every cell adds to the cells at the ends of its arcs: alpha, and log P after the last frame.
  void alphas(std::int64_t clip) const {
    Cell* const first = &cell({clip, 0, 0});
    std::for_each(first, first + frames(clip) * (labels(clip) + 1), [](Cell& c) { c.alpha = kNever; });
    first->alpha = 0.0;
    double log_p = kNever;
    for (std::int64_t t = 0; t < frames(clip); ++t) {
      for (std::int64_t u = 0; u <= labels(clip); ++u) {
        const double alpha = cell({clip, t, u}).alpha;
        if (alpha == kNever) continue;  // no alignment reaches this cell
        for_arcs({clip, t, u}, [&](bool, const Arc&, double score, Cell* to) {
          double& sum = to != nullptr ? to->alpha : log_p;
          sum = log_add(sum, alpha + score);
        });
      }
    }
    state(clip).log_p = log_p;
  }

  void betas(std::int64_t clip) const {
    for (std::int64_t t = frames(clip) - 1; t >= 0; --t) {
      for (std::int64_t u = labels(clip); u >= 0; --u) {
        double beta = kNever;
        for_arcs({clip, t, u}, [&](bool, const Arc&, double score, const Cell* to) {
          const double after = beta_of(to);
          if (after != kNever) beta = log_add(beta, score + after);  // otherwise the score is ignored
        });
        cell({clip, t, u}).beta = beta;
      }
    }
  }

  [[nodiscard]] Taken taken(const Place& at) const {
    Taken out;
    const double log_p = state(at.clip).log_p, alpha = cell(at).alpha;
    if (log_p == kNever || alpha == kNever) return out;
    for_arcs(at, [&](bool is_label, const Arc& arc, double score, const Cell* to) {
      const double after = beta_of(to);
      if (after == kNever) return;
      const double p = std::exp(alpha + score + after - log_p);
      (is_label ? out.label : out.blank) += p;
      if (arc.duration != kNoDuration) out.durations[static_cast<std::size_t>(arc.duration)] += p;
      out.all += p;
    });
    return out;
  }

 private:
  // Calls f(is_label, arc, score, target cell) for every arc that may leave a cell. After the last frame
  // there is no cell, and only a blank after the last label leads there.
  template <class Fn>
  void for_arcs(const Place& at, Fn&& f) const {
    const std::int64_t left = frames(at.clip) - at.t, last = labels(at.clip);
    const Cell& c = cell(at);
    const auto score = [&](double token, const Arc& arc) {
      double sum = token - c.token_norm - sigma_;
      if (arc.duration != kNoDuration) sum += logits_.duration(at, arc.duration) - c.duration_norm;
      return sum;
    };
    for (const Arc& arc : arcs_.blank()) {
      if (arc.advance < left) {
        f(false, arc, score(logits_.blank(at), arc), &cell({at.clip, at.t + arc.advance, at.u}));
      }
      if (arc.advance == left && at.u == last) f(false, arc, score(logits_.blank(at), arc), nullptr);
    }
    if (at.u == last) return;
    for (const Arc& arc : arcs_.label()) {
      if (arc.advance < left) {
        f(true, arc, score(logits_.label(at), arc), &cell({at.clip, at.t + arc.advance, at.u + 1}));
      }
    }
  }

  static double beta_of(const Cell* cell) { return cell != nullptr ? cell->beta : 0.0; }

  const Logits& logits_;
  Arcs arcs_;
  double sigma_;
};

// Computes alpha and beta of every clip, each on one thread.
template <class Logits>
void walk_all(const TransducerArgs& args, const Walk<Logits>& walk) {
  auto clip = [&](std::int64_t b, cpu::Scratch&) {
    walk.alphas(b);
    walk.betas(b);
  };
  cpu::parallel_for(args.batch, args.threads, clip);
}

// Writes the clips' losses, reduced.
inline void write_losses(const TransducerArgs& args, float* losses) {
  const cpu::FloatMode mode;
  const Cells cells(args);
  const std::int64_t labels = all_labels(args);
  double sum = 0.0;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const double loss = -cells.state(b).log_p;
    if (args.reduction == TransducerReduction::none) losses[b] = static_cast<float>(loss);
    sum += loss / divisor(args, b, labels);
  }
  if (args.reduction != TransducerReduction::none) *losses = static_cast<float>(sum);
}

// Returns the factor of the gradient of a clip's loss.
inline double factor_of(const TransducerArgs& args, const float* grad_losses, std::int64_t clip,
                        std::int64_t labels) {
  const bool own = args.reduction == TransducerReduction::none;
  return static_cast<double>(grad_losses[own ? clip : 0]) / divisor(args, clip, labels);
}

}  // namespace octavo::transducer
