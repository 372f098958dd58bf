// Measures the copy ceiling; see copy_speed.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/copy_speed.h"

#include "benchmarks/engine/data.h"
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/table.h"

#include <algorithm>
#include <utility>

namespace octavo::cli {
namespace {

constexpr std::int64_t kWanted = std::int64_t{1} << 30;

// Smaller copies would measure the caches instead of the memory.
std::int64_t least(const BenchDevice& device) { return std::int64_t{1} << (device.on_gpu() ? 28 : 26); }

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

CopyMeter::CopyMeter(BenchDevice& device) : device_(device) {
  const std::int64_t available = device.free_memory();
  std::int64_t bytes = kWanted;
  while (bytes > available / 5 * 2) bytes /= 2;
  if (bytes < least(device))
    throw Failure(kExitFailure, "the copy ceiling needs " + human_bytes(least(device) * 5 / 2) +
                                    " of free memory, " + human_bytes(available) +
                                    " are there; --dry-run measures nothing");
  if (bytes < kWanted)
    note_ = "copied " + human_bytes(bytes) + " instead of " + human_bytes(kWanted) + " each side: only " +
            human_bytes(available) + " of memory are free";
  from_ = device.allocate(bytes);
  to_ = device.allocate(bytes);
  device.fill(from_.data(), DType::f32, stream_of(0, 0), kWeightShift, bytes / 4);
}

CopySamples CopyMeter::sample(int repeat) {
  const auto by = [&](CopyWay way) {
    return device_.time_ms(repeat, [&] { device_.copy(way, to_.data(), from_.data(), from_.size); });
  };
  CopySamples out;
  out.library = by(CopyWay::library);
  out.streaming = by(CopyWay::streaming);
  return out;
}

double CopyMeter::gb_per_s(const CopySamples& before, const CopySamples& after) const {
  const auto both = [](std::vector<double> a, const std::vector<double>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return median(std::move(a));
  };
  const double ms = std::min(both(before.library, after.library), both(before.streaming, after.streaming));
  return 2e-6 * static_cast<double>(bytes()) / ms;
}

}  // namespace octavo::cli
