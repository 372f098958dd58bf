// Checks the results of a fixed problem before anything is timed. Its checksum is printed. A GPU must agree
// with the CPU in every byte.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/workload.h"

#include <string>

namespace octavo::cli {

struct Check {
  std::string checksum;  // 16 hex digits
  std::string error;  // how the GPU's results differ from the CPU's, or why there are no results; else empty
};

// Runs three steps on a fixed list of tensors: sizes 1, 31, 255, 256, 257, 4095, 4097, 100003 in one
// dimension, and 64x96, 1024x1x9, 16x3x5x7; all in the run's state format. The checksum (FNV-1a over each
// tensor's param, residual, codes and scales) depends only on optimizer, format, dtypes, store and block
// size. It does not depend on the device, the implementation, threads, guard, or what is timed. With
// `zero_rows` a GPU is compared once more, on the same tensors with half of their rows without a gradient;
// the checksum does not change.
Check check_steps(BenchDevice& device, const RunSpec& run, bool zero_rows);

// Compares the gradient norm of the same tensors. Returns an empty string, or how the GPU's norm differs from
// the CPU's.
std::string check_norm(BenchDevice& device, const RunSpec& run);

}  // namespace octavo::cli
