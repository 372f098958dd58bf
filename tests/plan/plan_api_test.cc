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
  ASSERT_EQ(octavo_plan_gpu_count(), std::ssize(plan::known_gpus()));
  for (int32_t i = 0; i < octavo_plan_gpu_count(); ++i) {
    const plan::Gpu& gpu = plan::known_gpus()[static_cast<std::size_t>(i)];
    EXPECT_EQ(octavo_plan_gpu_key(i), gpu.key);
    const octavo_plan_gpu c = c_gpu(octavo_plan_gpu_key(i));
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
  EXPECT_EQ(octavo_plan_gpu_key(-1), nullptr);
  EXPECT_EQ(octavo_plan_gpu_key(octavo_plan_gpu_count()), nullptr);
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
    double seconds = 0;
    uint32_t bound = 9;
    ASSERT_EQ(octavo_plan_kernel_time(&gpu, &list.back(), &seconds, &bound), 0u) << octavo_last_error();
    EXPECT_EQ(seconds, plan::time(cpp, kernel).seconds);
    EXPECT_EQ(bound, static_cast<uint32_t>(plan::time(cpp, kernel).bound));
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
  double seconds = 0;
  uint32_t bound = 9;
  ASSERT_EQ(octavo_plan_kernel_time(&gpu, &zero, &seconds, &bound), 0u);
  EXPECT_EQ(seconds, plan::time(cpp, usual).seconds);
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
  ASSERT_EQ(octavo_plan_all_reduce_seconds(&links, 123456789, &seconds), 0u);
  EXPECT_EQ(seconds, plan::all_reduce_seconds(cpp, 123456789));
  EXPECT_GT(seconds, 0);
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

// A later program's structs are longer: the library writes the fields that it has, and reads arrays by their
// size.
TEST(PlanApi, LongerStructs) {
  struct Later {
    octavo_plan_kernel kernel;
    double more = 1e30;
  };
  std::vector<Later> later(3);
  for (std::size_t i = 0; i < 3; ++i) {
    later[i].kernel = c_kernel(kernels()[i]);
    later[i].kernel.struct_size = sizeof(Later);
  }
  const octavo_plan_gpu gpu = c_gpu("a100");
  auto step = sized<octavo_plan_step>();
  ASSERT_EQ(octavo_plan_step_time(&gpu, &later[0].kernel, 3, 1e-5, &step), 0u) << octavo_last_error();
  EXPECT_EQ(step.gpu_seconds, plan::time(plan::find_gpu("a100").value(), kernels(), 1e-5).gpu_seconds);
  later[1].kernel.struct_size = sizeof(octavo_plan_kernel);
  refused(octavo_plan_step_time(&gpu, &later[0].kernel, 3, 1e-5, &step), "kernels[1].struct_size");
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
  double seconds = 0;
  uint32_t bound = 0;
  refused(octavo_plan_kernel_time(nullptr, &kernel, &seconds, &bound), "gpu: got null");
  refused(octavo_plan_kernel_time(&gpu, nullptr, &seconds, &bound), "kernel: got null");
  refused(octavo_plan_kernel_time(&gpu, &kernel, nullptr, &bound), "seconds: got null");
  refused(octavo_plan_kernel_time(&gpu, &kernel, &seconds, nullptr), "bound: got null");
  kernel.work = 2;
  refused(octavo_plan_kernel_time(&gpu, &kernel, &seconds, &bound), "kernel.work: got 2, expected 0 to 1");
  kernel.work = 1;
  kernel.precision = 5;
  refused(octavo_plan_kernel_time(&gpu, &kernel, &seconds, &bound), "kernel.precision: got 5");
  auto step = sized<octavo_plan_step>();
  refused(octavo_plan_step_time(&gpu, nullptr, 1, 1e-5, &step), "kernels: got null");
  refused(octavo_plan_step_time(&gpu, nullptr, 0, 1e-5, nullptr), "step: got null");

  const auto links = sized<octavo_plan_links>();
  refused(octavo_plan_all_reduce_seconds(nullptr, 1, &seconds), "links: got null");
  refused(octavo_plan_all_reduce_seconds(&links, 1, nullptr), "seconds: got null");
  refused(octavo_plan_exposed_seconds(&links, nullptr, 1, 0, &seconds), "buckets: got null");
  refused(octavo_plan_exposed_seconds(&links, nullptr, 0, 0, nullptr), "seconds: got null");
}

}  // namespace
}  // namespace test
