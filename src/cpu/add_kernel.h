// Adds gradients in host memory, in tiles that stay in the first-level cache. Each addition is rounded once,
// as in a framework that adds in the element type.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"
#include "cpu/tile_io.h"

namespace octavo::cpu {

template <class L>
void add_run(const AddTask& t) {
  for (std::int64_t at = 0; at < t.count; at += kTile) {
    const std::int64_t n = t.count - at < kTile ? t.count - at : kTile;
    float* const sum = t.scratch->grad;
    load_values<L>(t.from, t.from_dtype, t.at + at, n, sum);
    if (!t.first) {
      load_values<L>(t.to, t.to_dtype, t.at + at, n, t.scratch->param);
      for (std::int64_t i = 0; i < n; i += L::kWidth)
        L::store(L::load(t.scratch->param + i) + L::load(sum + i), sum + i);
    }
    store_values<L>(sum, n, t.to, t.to_dtype, t.at + at);
  }
}

}  // namespace octavo::cpu
