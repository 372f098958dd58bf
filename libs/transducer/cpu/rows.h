// Computes the softmax denominators of a cell's outputs, and their gradient.
// SPDX-License-Identifier: MIT
#pragma once

#include "transducer/cpu/elements.h"
#include "transducer/cpu/walk.h"

#include <algorithm>
#include <cmath>

namespace octavo::transducer {

// The number of a cell's outputs, and which of them are special.
struct Outputs {
  explicit Outputs(const TransducerArgs& args)
      : tokens(args.tokens),
        durations(static_cast<std::int64_t>(args.durations.size())),
        blank(args.blank),
        scored(durations > 0 && !is_rnnt(args)) {}

  std::int64_t tokens, durations, blank;
  bool scored;  // the durations have scores
};

template <class E>
void set_norms(Cell& cell, const Outputs& outputs, const typename E::Stored* token,
               const typename E::Stored* duration) {
  cell.token_norm = log_sum_exp<E>(token, outputs.tokens);
  cell.duration_norm = outputs.scored ? log_sum_exp<E>(duration, outputs.durations) : 0.0;
}

// Computes the gradient of a cell's outputs, times `factor`; it may overwrite them. `next` is the next label.
template <class E>
void row_gradient(const Cell& cell, const Outputs& outputs, const Taken& taken, std::int64_t next,
                  double factor, const typename E::Stored* token, const typename E::Stored* duration,
                  typename E::Stored* token_grad, typename E::Stored* duration_grad) {
  using Stored = typename E::Stored;
  // No element can be larger than this: below half of the smallest float all are zero.
  if (std::fabs(taken.all * factor) <= 0x1p-150) {
    std::fill_n(token_grad, outputs.tokens, Stored{});
    std::fill_n(duration_grad, outputs.durations, Stored{});
    return;
  }
  for (std::int64_t k = 0; k < outputs.tokens; ++k) {
    double g = std::exp(E::load(token[k]) - cell.token_norm) * taken.all;
    if (k == outputs.blank) g -= taken.blank;
    if (k == next) g -= taken.label;  // 0 after the last label
    token_grad[k] = E::store(factor * g);
  }
  if (!outputs.scored) std::fill_n(duration_grad, outputs.durations, Stored{});
  for (std::int64_t i = 0; outputs.scored && i < outputs.durations; ++i) {
    const double p = std::exp(E::load(duration[i]) - cell.duration_norm);
    duration_grad[i] = E::store(factor * (p * taken.all - taken.durations[static_cast<std::size_t>(i)]));
  }
}

// Calls f(E{}) for the elements of a type.
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

}  // namespace octavo::transducer
