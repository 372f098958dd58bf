// Forecasts how long kernels take: a roofline with the rates that kernels reach. The constants were fitted to
// matmuls and elementwise kernels measured on an H200 (tests/plan/time_test.cc has the numbers); other GPUs
// get the same shares of their vendor's figures.
// SPDX-License-Identifier: MIT
#include <octavo/plan.h>

#include <algorithm>
#include <cmath>

namespace octavo::plan {
namespace {

// The share of the memory's bandwidth that a large copy reaches.
constexpr double kCopyShare = 0.9;
// The share of its arithmetic that a multiprocessor reaches in the middle of a large tile: the rest is lost
// to the clock under load and to instructions other than those of the matrix units.
constexpr double kArithmeticShare = 0.76;
// The seconds from one small kernel to the next one, for launching and draining.
constexpr double kGap = 1e-6;
// The seconds of a tile besides its arithmetic: its first operands are loaded, and its results are stored.
constexpr double kTileSeconds = 1.4e-6;
// Smaller tiles load more per multiplication: their rate falls with the area to this power.
constexpr double kTilePower = 0.14;
// Matrix units cannot fetch rows directly that are not a multiple of 16 bytes.
constexpr double kUnaligned = 3.6;
constexpr double kAlignment = 16;
// Memory and arithmetic of a kernel overlap incompletely: this is the p-norm of both, which is near the
// larger one. It also applies to the host and the GPU in a step, because the GPU idles whenever it has caught
// up with the host.
constexpr double kOverlap = 3, kHostOverlap = 6;

double overlapped(double a, double b, double norm) {
  const double larger = std::max(a, b), smaller = std::min(a, b);
  return smaller > 0 ? larger * std::pow(1 + std::pow(smaller / larger, norm), 1 / norm) : larger;
}

struct Tile {
  std::int64_t rows, columns;
};
// The tiles that libraries choose from. The first ones are the usual ones and reach the full rate.
constexpr Tile kTiles[] = {{128, 256}, {256, 128}, {128, 128}, {64, 128}, {128, 64}, {64, 64}};
constexpr double kFullTile = 128.0 * 256.0;

// A GPU without a precision computes in the next wider one.
Precision computed_in(const Gpu& gpu, Precision wanted) {
  const auto can = [&](Precision each) { return gpu.flops[static_cast<std::size_t>(each)] > 0; };
  if (static_cast<std::size_t>(wanted) >= kPrecisions) return Precision::fp32;
  if (wanted == Precision::fp8 && !can(wanted)) wanted = Precision::bf16;
  return can(wanted) ? wanted : Precision::fp32;
}

double element_bytes(Precision precision) {
  switch (precision) {
    case Precision::fp8:
      return 1;
    case Precision::fp16:
    case Precision::bf16:
      return 2;
    default:
      return 4;
  }
}

double parts(std::int64_t whole, std::int64_t part) {
  return std::ceil(static_cast<double>(whole) / static_cast<double>(part));
}

// Tiles are processed in waves, and the last wave takes as long as a full one.
double product_seconds(const Gpu& gpu, const Kernel& kernel) {
  if (std::min({kernel.batch, kernel.rows, kernel.columns, kernel.inner}) <= 0) return 0;
  const Precision precision = computed_in(gpu, kernel.precision);
  const double processors = std::max(1, gpu.multiprocessors);
  const double rate = kArithmeticShare * gpu.flops[static_cast<std::size_t>(precision)] / processors;
  double best = HUGE_VAL;
  for (const Tile& tile : kTiles) {
    const auto area = static_cast<double>(tile.rows * tile.columns);
    const double tiles = static_cast<double>(kernel.batch) * parts(kernel.rows, tile.rows) *
                         parts(kernel.columns, tile.columns);
    const double tile_rate = rate * std::pow(area / kFullTile, kTilePower);
    const double seconds =
        2 * area * static_cast<double>(kernel.inner) / tile_rate + kTileSeconds * area / kFullTile;
    best = std::min(best, std::ceil(tiles / processors) * seconds);
  }
  const auto aligned = [&](std::int64_t elements) {
    return std::fmod(static_cast<double>(elements) * element_bytes(precision), kAlignment) == 0;
  };
  const bool slow = precision != Precision::fp32 && !(aligned(kernel.columns) && aligned(kernel.inner));
  return slow ? kUnaligned * best : best;
}

}  // namespace

std::string_view name(Bound bound) {
  switch (bound) {
    case Bound::memory:
      return "memory";
    case Bound::arithmetic:
      return "arithmetic";
    case Bound::launch:
      return "launch";
  }
  return "unknown";
}

KernelTime time(const Gpu& gpu, const Kernel& kernel) {
  const double memory = kernel.bytes > 0 ? kernel.bytes / (gpu.bandwidth * kCopyShare * kernel.bandwidth) : 0;
  const double arithmetic = kernel.work == Work::product ? product_seconds(gpu, kernel) : 0;
  const double gaps = kGap * static_cast<double>(kernel.launches);
  const double both = overlapped(memory, arithmetic, kOverlap);
  const Bound bound = gaps > both ? Bound::launch : memory >= arithmetic ? Bound::memory : Bound::arithmetic;
  return {both + gaps, bound};
}

StepTime time(const Gpu& gpu, std::span<const Kernel> kernels, double launch_seconds) {
  StepTime step;
  for (const Kernel& kernel : kernels) {
    const KernelTime one = time(gpu, kernel);
    const auto times = static_cast<double>(kernel.times);
    step.gpu_seconds += times * one.seconds;
    step.by_bound[static_cast<std::size_t>(one.bound)] += times * one.seconds;
    step.host_seconds += times * launch_seconds * static_cast<double>(kernel.launches);
  }
  step.seconds = overlapped(step.gpu_seconds, step.host_seconds, kHostOverlap);
  return step;
}

}  // namespace octavo::plan
