// Tests the C functions of plans: the results of the C++ functions, sizes of structs, and errors.
// SPDX-License-Identifier: MIT
#include "tests/plan/traces.h"
#include "tests/support/c_structs.h"

#include <gmock/gmock.h>

#include <cstring>

namespace test {
namespace {

using ::testing::HasSubstr;

void refused(octavo_status status, const std::string& message) {
  EXPECT_EQ(status, 1u) << message;
  EXPECT_THAT(octavo_last_error(), HasSubstr(message));
}

octavo_plan_gpu c_gpu(const char* text) {
  auto gpu = sized<octavo_plan_gpu>();
  EXPECT_EQ(octavo_plan_find_gpu(text, &gpu), 0u) << octavo_last_error();
  return gpu;
}

octavo_plan_kernel c_kernel(const plan::Kernel& kernel) {
  auto c = sized<octavo_plan_kernel>();
  c.work = static_cast<uint32_t>(kernel.work);
  c.precision = static_cast<uint32_t>(kernel.precision);
  c.bytes = kernel.bytes;
  c.bandwidth = kernel.bandwidth;
  c.batch = kernel.batch;
  c.rows = kernel.rows;
  c.columns = kernel.columns;
  c.inner = kernel.inner;
  c.launches = kernel.launches;
  return c;
}

const std::vector<plan::Kernel>& kernels() {
  static const std::vector<plan::Kernel> some = [] {
    std::vector<plan::Kernel> list(3);
    list[0].bytes = 1e8;
    list[0].bandwidth = 0.5;
    list[1] = {plan::Work::product, plan::Precision::fp8, 1e8, 1, 3, 4096, 1024, 2048, 1};
    list[2].launches = 7;
    return list;
  }();
  return some;
}

TEST(PlanApi, FindsGpus) {
  ASSERT_FALSE(plan::known_gpus().empty());
  for (const plan::Gpu& gpu : plan::known_gpus()) {
    const octavo_plan_gpu c = c_gpu(gpu.key.c_str());
    EXPECT_EQ(c.struct_size, sizeof c);
    EXPECT_EQ(c.key, gpu.key);
    EXPECT_EQ(c.name, gpu.name);
    EXPECT_EQ(c.compute_major, gpu.compute_major);
    EXPECT_EQ(c.compute_minor, gpu.compute_minor);
    EXPECT_EQ(c.multiprocessors, gpu.multiprocessors);
    EXPECT_EQ(c.gigabytes, gpu.gigabytes);
    EXPECT_EQ(c.memory, gpu.memory);
    EXPECT_EQ(c.context, gpu.context);
    EXPECT_EQ(c.cache, gpu.cache);
    EXPECT_EQ(c.bandwidth, gpu.bandwidth);
    EXPECT_TRUE(std::equal(gpu.flops.begin(), gpu.flops.end(), std::begin(c.flops)));
    EXPECT_EQ(c.peer_bandwidth, gpu.peer_bandwidth);
    EXPECT_EQ(c.host_bandwidth, gpu.host_bandwidth);
  }
}

TEST(PlanApi, Simulates) {
  const std::vector<plan::Event> events = random_trace(3, 800, 50);
  std::vector<octavo_plan_event> list;
  for (const plan::Event& event : events) {
    list.push_back({event.id, event.bytes, static_cast<uint32_t>(event.owner), 0});
  }
  for (const bool expandable : {false, true}) {
    auto rules = sized<octavo_plan_rules>();
    rules.expandable_segments = expandable ? 1 : 0;
    auto c = sized<octavo_plan_memory>();
    ASSERT_EQ(octavo_plan_simulate(list.data(), std::ssize(list), &rules, &c), 0u) << octavo_last_error();
    const plan::MemoryUse use = used(events, expandable);
    EXPECT_EQ(c.allocated, use.allocated);
    EXPECT_EQ(c.reserved, use.reserved);
    EXPECT_EQ(c.rounding, use.rounding);
    EXPECT_EQ(c.peak_event, use.peak_event);
    EXPECT_TRUE(std::equal(use.owners.begin(), use.owners.end(), std::begin(c.owners)));
    ASSERT_EQ(octavo_plan_simulate(nullptr, 0, &rules, &c), 0u);
    EXPECT_EQ(c.allocated, 0);
    EXPECT_EQ(c.peak_event, -1);
  }
}

TEST(PlanApi, TakesTimes) {
  const octavo_plan_gpu gpu = c_gpu("h100");
  const plan::Gpu cpp = plan::find_gpu("h100").value();
  std::vector<octavo_plan_kernel> list;
  for (const plan::Kernel& kernel : kernels()) {
    list.push_back(c_kernel(kernel));
    auto alone = sized<octavo_plan_step>();
    ASSERT_EQ(octavo_plan_step_time(&gpu, &list.back(), 1, 0, &alone), 0u) << octavo_last_error();
    EXPECT_EQ(alone.gpu_seconds, plan::time(cpp, {{kernel}}, 0).gpu_seconds);
  }
  auto step = sized<octavo_plan_step>();
  ASSERT_EQ(octavo_plan_step_time(&gpu, list.data(), 3, 1e-5, &step), 0u) << octavo_last_error();
  const plan::StepTime expected = plan::time(cpp, kernels(), 1e-5);
  EXPECT_EQ(step.seconds, expected.seconds);
  EXPECT_EQ(step.gpu_seconds, expected.gpu_seconds);
  EXPECT_EQ(step.host_seconds, expected.host_seconds);
  EXPECT_TRUE(std::equal(expected.by_bound.begin(), expected.by_bound.end(), std::begin(step.by_bound)));
  // Zero is the default.
  auto zero = sized<octavo_plan_kernel>();
  zero.bytes = 1e8;
  plan::Kernel usual;
  usual.bytes = 1e8;
  ASSERT_EQ(octavo_plan_step_time(&gpu, &zero, 1, 0, &step), 0u);
  EXPECT_EQ(step.gpu_seconds, plan::time(cpp, {{usual}}, 0).gpu_seconds);
}

TEST(PlanApi, AddsUpRanks) {
  auto links = sized<octavo_plan_links>();
  links.ranks = 16;
  links.per_host = 4;
  links.within = 300e9;
  links.between = 25e9;
  links.latency = 4e-6;
  const plan::Links cpp{16, 4, 300e9, 25e9, 4e-6};
  double seconds = 0;
  const octavo_plan_bucket buckets[] = {{0.1, 500000000}, {0.11, 700000000}};
  const std::vector<plan::Bucket> cpp_buckets = {{0.1, 500000000}, {0.11, 700000000}};
  ASSERT_EQ(octavo_plan_exposed_seconds(&links, buckets, 2, 0.12, &seconds), 0u);
  EXPECT_EQ(seconds, plan::exposed_seconds(cpp, cpp_buckets, 0.12));
  EXPECT_GT(seconds, 0);
  ASSERT_EQ(octavo_plan_exposed_seconds(&links, nullptr, 0, 0.12, &seconds), 0u);
  EXPECT_EQ(seconds, 0.0);
}

// A program that was compiled with this header must find every field at its offset.
TEST(PlanApi, SizesOfStructs) {
  EXPECT_EQ(sizeof(octavo_plan_gpu), 208u);
  EXPECT_EQ(sizeof(octavo_plan_event), 24u);
  EXPECT_EQ(sizeof(octavo_plan_rules), 8u);
  EXPECT_EQ(sizeof(octavo_plan_memory), 104u);
  EXPECT_EQ(sizeof(octavo_plan_kernel), 72u);
  EXPECT_EQ(sizeof(octavo_plan_step), 56u);
  EXPECT_EQ(sizeof(octavo_plan_links), 48u);
  EXPECT_EQ(sizeof(octavo_plan_bucket), 16u);
}

TEST(PlanApi, Refuses) {
  octavo_plan_gpu gpu = c_gpu("h200");
  auto small = gpu;
  small.struct_size = 8;
  refused(octavo_plan_find_gpu(nullptr, &gpu), "text: got null");
  refused(octavo_plan_find_gpu("h200", nullptr), "gpu: got null");
  refused(octavo_plan_find_gpu("h200", &small), "gpu.struct_size: got 8");
  refused(octavo_plan_find_gpu("h900", &gpu), "[plan] gpu: got 'h900'");
  EXPECT_STREQ(gpu.key, "h200");  // a failed call writes nothing

  const auto rules = sized<octavo_plan_rules>();
  auto memory = sized<octavo_plan_memory>();
  octavo_plan_event event{1, 2, 8, 0};
  refused(octavo_plan_simulate(&event, 1, &rules, &memory), "events[0].owner: got 8");
  refused(octavo_plan_simulate(nullptr, 1, &rules, &memory), "events: got null");
  refused(octavo_plan_simulate(&event, -1, &rules, &memory), "count: got -1");
  refused(octavo_plan_simulate(&event, 1, nullptr, &memory), "rules: got null");
  event.owner = 0;
  refused(octavo_plan_simulate(&event, 1, &rules, nullptr), "memory: got null");

  octavo_plan_kernel kernel = c_kernel(kernels()[0]);
  auto step = sized<octavo_plan_step>();
  refused(octavo_plan_step_time(nullptr, &kernel, 1, 1e-5, &step), "gpu: got null");
  kernel.work = 2;
  refused(octavo_plan_step_time(&gpu, &kernel, 1, 1e-5, &step), "kernel.work: got 2, expected 0 to 1");
  kernel.work = 1;
  kernel.precision = 5;
  refused(octavo_plan_step_time(&gpu, &kernel, 1, 1e-5, &step), "kernel.precision: got 5");
  kernel.struct_size -= 8;
  refused(octavo_plan_step_time(&gpu, &kernel, 1, 1e-5, &step), "kernels.struct_size");
  refused(octavo_plan_step_time(&gpu, nullptr, 1, 1e-5, &step), "kernels: got null");
  refused(octavo_plan_step_time(&gpu, nullptr, 0, 1e-5, nullptr), "step: got null");

  const auto links = sized<octavo_plan_links>();
  double seconds = 0;
  refused(octavo_plan_exposed_seconds(nullptr, nullptr, 0, 0, &seconds), "links: got null");
  refused(octavo_plan_exposed_seconds(&links, nullptr, 1, 0, &seconds), "buckets: got null");
  refused(octavo_plan_exposed_seconds(&links, nullptr, 0, 0, nullptr), "seconds: got null");
}

}  // namespace
}  // namespace test
