// The C ABI of the forecasts: reads structs, and calls octavo/plan.h.
// SPDX-License-Identifier: MIT
#include "abi/c_common.h"

#include <octavo/octavo.h>
#include <octavo/plan.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

using namespace octavo::c;  // NOLINT(google-build-using-namespace)
using octavo::Status;
namespace plan = octavo::plan;

static_assert(plan::kPrecisions == std::size(decltype(octavo_plan_gpu::flops){}));
static_assert(plan::kOwners == std::size(decltype(octavo_plan_memory::owners){}));

template <std::size_t kSize>
void write_text(const std::string& text, char (&to)[kSize]) {
  const std::size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}
template <std::size_t kSize>
std::string read_text(const char (&from)[kSize]) {
  return {from, std::find(std::begin(from), std::end(from), '\0')};
}

octavo_plan_gpu convert(const plan::Gpu& from) {
  octavo_plan_gpu c{};
  c.compute_major = from.compute_major;
  c.compute_minor = from.compute_minor;
  c.multiprocessors = from.multiprocessors;
  c.gigabytes = from.gigabytes;
  c.memory = from.memory;
  c.context = from.context;
  c.cache = from.cache;
  c.bandwidth = from.bandwidth;
  std::copy(from.flops.begin(), from.flops.end(), std::begin(c.flops));
  c.peer_bandwidth = from.peer_bandwidth;
  c.host_bandwidth = from.host_bandwidth;
  write_text(from.key, c.key);
  write_text(from.name, c.name);
  return c;
}
plan::Gpu convert(const octavo_plan_gpu* from) {
  const octavo_plan_gpu& c = read_struct("gpu", from);
  plan::Gpu gpu;
  gpu.key = read_text(c.key);
  gpu.name = read_text(c.name);
  gpu.compute_major = c.compute_major;
  gpu.compute_minor = c.compute_minor;
  gpu.multiprocessors = c.multiprocessors;
  gpu.gigabytes = c.gigabytes;
  gpu.memory = c.memory;
  gpu.context = c.context;
  gpu.cache = c.cache;
  gpu.bandwidth = c.bandwidth;
  std::copy(std::begin(c.flops), std::end(c.flops), gpu.flops.begin());
  gpu.peer_bandwidth = c.peer_bandwidth;
  gpu.host_bandwidth = c.host_bandwidth;
  return gpu;
}

void check_below(const char* name, uint32_t got, uint32_t end) {
  if (got >= end) {
    refuse(std::string(name) + ": got " + std::to_string(got) + ", expected 0 to " + std::to_string(end - 1));
  }
}

plan::Kernel convert(const octavo_plan_kernel& c) {
  check_below("kernel.work", c.work, 2);
  check_below("kernel.precision", c.precision, plan::kPrecisions);
  plan::Kernel kernel;
  kernel.work = static_cast<plan::Work>(c.work);
  kernel.precision = static_cast<plan::Precision>(c.precision);
  kernel.bytes = c.bytes;
  kernel.bandwidth = c.bandwidth == 0 ? 1 : c.bandwidth;
  kernel.batch = c.batch == 0 ? 1 : c.batch;
  kernel.rows = c.rows;
  kernel.columns = c.columns;
  kernel.inner = c.inner;
  kernel.launches = c.launches == 0 ? 1 : c.launches;
  return kernel;
}

plan::Links convert(const octavo_plan_links* from) {
  const octavo_plan_links& c = read_struct("links", from);
  return {c.ranks, c.per_host, c.within, c.between, c.latency};
}

}  // namespace

extern "C" {

octavo_status octavo_plan_find_gpu(const char* text, octavo_plan_gpu* gpu) {
  return guarded([&] {
    check_given("text", text);
    return write_struct("gpu", convert(plan::find_gpu(text).value()), gpu);
  });
}

octavo_status octavo_plan_simulate(const octavo_plan_event* events, int64_t count,
                                   const octavo_plan_rules* rules, octavo_plan_memory* memory) {
  return guarded([&] {
    check_array("events", events, count);
    const bool expandable = read_struct("rules", rules).expandable_segments != 0;
    std::vector<plan::Event> trace(static_cast<std::size_t>(count));
    std::transform(events, events + count, trace.begin(), [](const octavo_plan_event& c) {
      return plan::Event{c.id, c.bytes, static_cast<plan::Owner>(c.owner)};
    });
    const plan::MemoryUse use = plan::simulate(trace, {expandable}).value();
    octavo_plan_memory c{};
    c.allocated = use.allocated;
    c.reserved = use.reserved;
    std::copy(use.owners.begin(), use.owners.end(), std::begin(c.owners));
    c.rounding = use.rounding;
    c.peak_event = use.peak_event;
    return write_struct("memory", c, memory);
  });
}

octavo_status octavo_plan_step_time(const octavo_plan_gpu* gpu, const octavo_plan_kernel* kernels,
                                    int64_t count, double launch_seconds, octavo_plan_step* step) {
  return guarded([&] {
    const std::vector<plan::Kernel> list = convert_all<plan::Kernel>(
        "kernels", kernels, count, [](const octavo_plan_kernel& c) { return convert(c); });
    const plan::StepTime found = plan::time(convert(gpu), list, launch_seconds);
    octavo_plan_step c{};
    c.seconds = found.seconds;
    c.gpu_seconds = found.gpu_seconds;
    c.host_seconds = found.host_seconds;
    std::copy(found.by_bound.begin(), found.by_bound.end(), std::begin(c.by_bound));
    return write_struct("step", c, step);
  });
}

octavo_status octavo_plan_exposed_seconds(const octavo_plan_links* links, const octavo_plan_bucket* buckets,
                                          int64_t count, double backward, double* seconds) {
  return guarded([&]() -> Status {
    check_given("seconds", seconds);
    check_array("buckets", buckets, count);
    std::vector<plan::Bucket> list;
    for (int64_t i = 0; i < count; ++i) list.push_back({buckets[i].ready, buckets[i].bytes});
    *seconds = plan::exposed_seconds(convert(links), list, backward);
    return {};
  });
}

}  // extern "C"
