// The element types of logits, and functions over one row of them: the outputs of a cell.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/narrow.h"

#include <cmath>
#include <cstdint>
#include <limits>

namespace octavo::transducer {

inline constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Float32 {
  using Stored = float;
  static double load(Stored x) { return x; }
  static Stored store(double x) { return formula::canonical(scalar::F32(static_cast<float>(x))).v; }
};
struct Bfloat16 {
  using Stored = std::uint16_t;
  static double load(Stored x) { return formula::bf16_to_float(scalar::I32(x)).v; }
  static Stored store(double x) {
    return static_cast<Stored>(formula::float_to_bf16(scalar::F32(static_cast<float>(x))).v);
  }
};
struct Float16 {
  using Stored = std::uint16_t;
  static double load(Stored x) { return formula::fp16_to_float(scalar::I32(x)).v; }
  static Stored store(double x) {
    return static_cast<Stored>(formula::float_to_fp16(scalar::F32(static_cast<float>(x))).v);
  }
};

// Converts an E to float.
template <class E>
struct Rounded {
  using Stored = float;
  static double load(Stored x) { return x; }
  static Stored store(double x) { return static_cast<float>(E::load(E::store(x))); }
};

// Returns log(exp(a) + exp(b)). NaN stays NaN.
inline double log_add(double a, double b) {
  if (a == kNever) return b;
  if (b == kNever) return a;
  const double more = a < b ? b : a, less = a < b ? a : b;
  return more + std::log1p(std::exp(less - more));
}

// Returns the log of the sum of exp(row). A row with a NaN or without a finite maximum gives NaN, as
// log-softmax does.
template <class E>
double log_sum_exp(const typename E::Stored* row, std::int64_t count) {
  double most = kNever;
  for (std::int64_t k = 0; k < count; ++k) {
    if (const double x = E::load(row[k]); most < x) most = x;
  }
  double sum = 0.0;
  for (std::int64_t k = 0; k < count; ++k) sum += std::exp(E::load(row[k]) - most);
  return most + std::log(sum);
}

}  // namespace octavo::transducer
