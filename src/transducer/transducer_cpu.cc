// The transducer loss on the CPU, written as its recursion. Rows of logits are read twice: for the softmax
// denominators, and for the gradient; threads take frames there. Between, each clip's lattice is walked by
// one thread, cell by cell. So nothing depends on the number of threads.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"
#include "transducer/backend.h"
#include "transducer/elements.h"
#include "transducer/lattice.h"

#include <algorithm>
#include <cmath>

namespace octavo::transducer {
namespace {

// A batch: logits by (clip, frame, label), and the cells that belong to them.
template <class E>
class Batch {
 public:
  using Stored = typename E::Stored;

  explicit Batch(const TransducerArgs& args)
      : args_(args),
        space_(args.workspace, args.batch),
        arcs_(is_rnnt(args) ? Arcs::rnnt() : Arcs(args.durations)),
        durations_(is_rnnt(args) ? 0 : static_cast<std::int64_t>(args.durations.size())),
        sigma_(is_rnnt(args) ? 0.0 : args.sigma),
        token_strides_(strides_of(args, args.token_logits.strides, args.tokens)),
        duration_strides_(strides_of(args, args.duration_logits.strides,
                                     static_cast<std::int64_t>(args.durations.size()))) {}

  [[nodiscard]] ClipState& state(std::int64_t clip) const { return space_.clips[clip]; }
  [[nodiscard]] std::int64_t frames(std::int64_t clip) const { return args_.logit_lengths[clip]; }
  [[nodiscard]] std::int64_t labels(std::int64_t clip) const { return args_.target_lengths[clip]; }
  [[nodiscard]] Cell& cell(std::int64_t clip, std::int64_t t, std::int64_t u) const {
    return space_.cells[state(clip).first + t * (labels(clip) + 1) + u];
  }
  [[nodiscard]] std::int64_t target(std::int64_t clip, std::int64_t u) const {
    return args_.targets[clip * target_stride(args_) + u];
  }
  [[nodiscard]] const Stored* tokens(std::int64_t clip, std::int64_t t, std::int64_t u) const {
    return row(args_.token_logits.data, token_strides_, clip, t, u);
  }
  [[nodiscard]] const Stored* durations(std::int64_t clip, std::int64_t t, std::int64_t u) const {
    return row(args_.duration_logits.data, duration_strides_, clip, t, u);
  }

  void norms_of_frame(std::int64_t clip, std::int64_t t) const {
    for (std::int64_t u = 0; u <= labels(clip); ++u) {
      Cell& c = cell(clip, t, u);
      c.token_norm = log_sum_exp<E>(tokens(clip, t, u), args_.tokens);
      c.duration_norm = durations_ > 0 ? log_sum_exp<E>(durations(clip, t, u), durations_) : 0.0;
    }
  }

  // f(is_label, arc, score, cell that it leads to) for every arc that leaves a cell and may be taken. Behind
  // the last frame there is no cell, and only a blank after the last label leads there.
  template <class Fn>
  void for_arcs(std::int64_t clip, std::int64_t t, std::int64_t u, Fn&& f) const {
    const std::int64_t left = frames(clip) - t, last = labels(clip);
    const Cell& c = cell(clip, t, u);
    const Stored* const token = tokens(clip, t, u);
    const auto score = [&](std::int64_t k, const Arc& arc) {
      double sum = E::load(token[k]) - c.token_norm - sigma_;
      if (arc.duration != kNoDuration) sum += E::load(durations(clip, t, u)[arc.duration]) - c.duration_norm;
      return sum;
    };
    for (const Arc& arc : arcs_.blank()) {
      if (arc.advance < left) f(false, arc, score(args_.blank, arc), &cell(clip, t + arc.advance, u));
      if (arc.advance == left && u == last) f(false, arc, score(args_.blank, arc), nullptr);
    }
    if (u == last) return;
    for (const Arc& arc : arcs_.label()) {
      if (arc.advance < left) {
        f(true, arc, score(target(clip, u), arc), &cell(clip, t + arc.advance, u + 1));
      }
    }
  }

  // Every cell passes what it has on along its arcs: alpha, and log P behind the last frame.
  void alphas(std::int64_t clip) const {
    Cell* const first = &cell(clip, 0, 0);
    std::for_each(first, first + frames(clip) * (labels(clip) + 1), [](Cell& c) { c.alpha = kNever; });
    first->alpha = 0.0;
    double log_p = kNever;
    for (std::int64_t t = 0; t < frames(clip); ++t) {
      for (std::int64_t u = 0; u <= labels(clip); ++u) {
        const double alpha = cell(clip, t, u).alpha;
        if (alpha == kNever) continue;  // no alignment comes here
        for_arcs(clip, t, u, [&](bool, const Arc&, double score, Cell* to) {
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
        for_arcs(clip, t, u, [&](bool, const Arc&, double score, const Cell* to) {
          const double after = beta_of(to);
          if (after != kNever) beta = log_add(beta, score + after);  // else whatever the score is
        });
        cell(clip, t, u).beta = beta;
      }
    }
  }

  void gradient_of_cell(std::int64_t clip, std::int64_t t, std::int64_t u, Stored* token_grad,
                        Stored* duration_grad, double factor) const {
    const double log_p = state(clip).log_p;
    const auto count = static_cast<std::int64_t>(args_.durations.size());
    const Cell& c = cell(clip, t, u);
    // The probability that an alignment takes blank here, the label, each duration; and any of them.
    double blank = 0.0, label = 0.0, all = 0.0;
    std::array<double, kMaxTransducerDurations> taken{};
    if (log_p != kNever && c.alpha != kNever) {
      for_arcs(clip, t, u, [&](bool is_label, const Arc& arc, double score, const Cell* to) {
        const double after = beta_of(to);
        if (after == kNever) return;
        const double p = std::exp(c.alpha + score + after - log_p);
        (is_label ? label : blank) += p;
        if (arc.duration != kNoDuration) taken[static_cast<std::size_t>(arc.duration)] += p;
        all += p;
      });
    }
    // No element can be larger than this: below half of the smallest float all are zero.
    if (std::fabs(all * factor) <= 0x1p-150) {
      std::fill_n(token_grad, args_.tokens, Stored{});
      std::fill_n(duration_grad, count, Stored{});
      return;
    }
    const Stored* const token = tokens(clip, t, u);
    const std::int64_t next = u < labels(clip) ? target(clip, u) : args_.blank;
    for (std::int64_t k = 0; k < args_.tokens; ++k) {
      double g = std::exp(E::load(token[k]) - c.token_norm) * all;
      if (k == args_.blank) g -= blank;
      if (k == next) g -= label;  // 0 behind the last label
      token_grad[k] = E::store(factor * g);
    }
    if (durations_ == 0) std::fill_n(duration_grad, count, Stored{});
    for (std::int64_t i = 0; i < durations_; ++i) {
      const double p = std::exp(E::load(durations(clip, t, u)[i]) - c.duration_norm);
      duration_grad[i] = E::store(factor * (p * all - taken[static_cast<std::size_t>(i)]));
    }
  }

  static double beta_of(const Cell* cell) { return cell != nullptr ? cell->beta : 0.0; }

  static const Stored* row(const void* data, const std::array<std::int64_t, 3>& strides, std::int64_t clip,
                           std::int64_t t, std::int64_t u) {
    return static_cast<const Stored*>(data) + clip * strides[0] + t * strides[1] + u * strides[2];
  }

 private:
  const TransducerArgs& args_;
  Workspace space_;
  Arcs arcs_;
  std::int64_t durations_;  // that have scores
  double sigma_;
  std::array<std::int64_t, 3> token_strides_, duration_strides_;
};

template <class E>
void loss(const TransducerArgs& args, float* losses) {
  const cpu::FloatMode mode;  // of the sums here; the pool has its own
  const Batch<E> batch(args);
  std::int64_t cells = 0, labels = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    batch.state(b).first = cells;
    cells += cells_of(args, b);
    labels += args.target_lengths[b];
  }
  auto norms = [&](std::int64_t i, cpu::Scratch&) {
    const std::int64_t clip = i / args.frames, t = i % args.frames;
    if (t < batch.frames(clip)) batch.norms_of_frame(clip, t);
  };
  cpu::parallel_for(args.batch * args.frames, args.threads, norms);
  auto walk = [&](std::int64_t clip, cpu::Scratch&) {
    batch.alphas(clip);
    batch.betas(clip);
  };
  cpu::parallel_for(args.batch, args.threads, walk);
  double sum = 0.0;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const double loss = -batch.state(b).log_p;
    if (args.reduction == TransducerReduction::none) losses[b] = static_cast<float>(loss);
    sum += loss / divisor(args, b, labels);
  }
  if (args.reduction != TransducerReduction::none) *losses = static_cast<float>(sum);
}

template <class E>
void gradient(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
              TransducerView<void> duration_grad) {
  using Stored = typename E::Stored;
  const Batch<E> batch(args);
  const auto count = static_cast<std::int64_t>(args.durations.size());
  std::int64_t labels = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) labels += args.target_lengths[b];
  const auto token_strides = strides_of(args, token_grad.strides, args.tokens);
  const auto duration_strides = strides_of(args, duration_grad.strides, count);
  auto frame = [&](std::int64_t i, cpu::Scratch&) {
    const std::int64_t clip = i / args.frames, t = i % args.frames;
    const bool own = args.reduction == TransducerReduction::none;
    const double factor = static_cast<double>(grad_losses[own ? clip : 0]) / divisor(args, clip, labels);
    for (std::int64_t u = 0; u < args.positions; ++u) {
      auto* const token = const_cast<Stored*>(Batch<E>::row(token_grad.data, token_strides, clip, t, u));
      auto* const duration =
          const_cast<Stored*>(Batch<E>::row(duration_grad.data, duration_strides, clip, t, u));
      if (t < batch.frames(clip) && u <= batch.labels(clip)) {
        batch.gradient_of_cell(clip, t, u, token, duration, factor);
      } else {
        std::fill_n(token, args.tokens, Stored{});
        std::fill_n(duration, count, Stored{});
      }
    }
  };
  cpu::parallel_for(args.batch * args.frames, args.threads, frame);
}

template <class Fn>
void by_element(DType dtype, Fn&& f) {
  switch (dtype) {
    case DType::f32:
      return f(Float32{});
    case DType::bf16:
      return f(Bfloat16{});
    case DType::f16:
      return f(Float16{});
  }
}

}  // namespace

void loss_cpu(const TransducerArgs& args, float* losses) {
  by_element(args.dtype, [&](auto element) { loss<decltype(element)>(args, losses); });
}

void gradient_cpu(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                  TransducerView<void> duration_grad) {
  by_element(args.dtype, [&](auto element) {
    gradient<decltype(element)>(args, grad_losses, token_grad, duration_grad);
  });
}

}  // namespace octavo::transducer
