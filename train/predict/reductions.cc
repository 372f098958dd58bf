// SPDX-License-Identifier: MIT
#include "train/predict/reductions.h"

#include <algorithm>
#include <bit>

namespace octavo_train {
namespace {

constexpr std::int64_t kThreads = 512;  // of a block whose threads load one column each
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kFewValues = 16, kMany = 256;  // values that a thread adds up

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t power_below(std::int64_t x, std::int64_t most) {
  return x < most ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(x))) : most;
}

std::int64_t threads_of_a_multiprocessor(const octavo::plan::Gpu& gpu) {
  const int version = 10 * gpu.compute_major + gpu.compute_minor;
  if (version == 75) return 1024;
  return version == 86 || version == 89 || version >= 120 ? 1536 : 2048;
}

}  // namespace

std::int64_t row_sum_bytes(const octavo::plan::Gpu& gpu, std::int64_t rows, std::int64_t columns) {
  if (rows < 1 || columns < 1) return 0;
  // A thread sums `vector` neighbouring columns, which it loads with one instruction.
  const std::int64_t vector = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
  const std::int64_t lanes = columns / vector, most = kThreads / vector;
  const std::int64_t high = power_below(rows, most);
  std::int64_t width = std::min(power_below(lanes, most), kWarp);
  const std::int64_t height = std::min(high, most / width);
  width = std::min(power_below(lanes, most), most / height);
  // If there are enough rows, several threads of a block share the rows of a column.
  if (rows < height * kFewValues && rows < kMany) return 0;
  const std::int64_t values = ceil_div(rows, height), blocks = ceil_div(lanes, width);
  const std::int64_t room = gpu.multiprocessors * (threads_of_a_multiprocessor(gpu) / (width * height));
  if (values < kMany || blocks > room) return 0;
  // Several blocks share them too, and each block writes its partial sums.
  const std::int64_t together =
      std::max(std::min(ceil_div(room, blocks), ceil_div(values, kFewValues)), ceil_div(values, kMany));
  if (together <= 1) return 0;
  return 4 * columns * together * width * vector;
}

}  // namespace octavo_train
