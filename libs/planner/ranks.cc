// Forecasts the time that ranks wait for each other: all-reduces by rings, and the part of them that the
// backward pass does not hide.
// SPDX-License-Identifier: MIT
#include <octavo/plan.h>

#include <algorithm>

namespace octavo::plan {
namespace {

// The time of a reduce-scatter and an all-gather around a ring: each rank sends all parts but one, twice.
double ring(double ranks, double bytes, double bandwidth, double latency) {
  if (ranks <= 1) return 0;
  return 2 * (ranks - 1) * (bytes / ranks / bandwidth + latency);
}

}  // namespace

double all_reduce_seconds(const Links& links, std::int64_t bytes) {
  const auto all = static_cast<double>(bytes);
  const std::int64_t per_host =
      std::clamp<std::int64_t>(links.per_host, 1, std::max<std::int64_t>(links.ranks, 1));
  const std::int64_t hosts = (links.ranks + per_host - 1) / per_host;
  const auto local = static_cast<double>(per_host);
  // Several hosts: reduce-scatter within each, all-reduce of each rank's part between them, all-gather.
  return ring(local, all, links.within, links.latency) +
         ring(static_cast<double>(hosts), all / local, links.between, links.latency);
}

double exposed_seconds(const Links& links, std::span<const Bucket> buckets, double backward) {
  double end = 0;
  for (const Bucket& bucket : buckets) {
    end = std::max(end, bucket.ready) + all_reduce_seconds(links, bucket.bytes);
  }
  return std::max(0.0, end - backward);
}

}  // namespace octavo::plan
