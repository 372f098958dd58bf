// Tests ProcessGroup over NCCL. One GPU holds one rank, which covers every code path; communication between
// two GPUs is not tested here.
// SPDX-License-Identifier: MIT
#include "tests/ranks/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>

namespace octavo_train::ranks {
namespace {

std::unique_ptr<ProcessGroup> join_on_gpu() {
  return ProcessGroup::join(place_here(), torch::Device(torch::kCUDA, 0), {.timeout = kPatience}).value();
}

void check(bool fine, const char* what) {
  if (!fine) throw std::runtime_error(std::string(what) + " is wrong");
}

}  // namespace

RANKS_PROGRAM(nccl_paths) {
  const std::unique_ptr<ProcessGroup> process_group = join_on_gpu();
  const torch::Device device(torch::kCUDA, 0);
  for (const auto type :
       {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kFloat16, torch::kInt64}) {
    const auto given = torch::arange(1000, torch::TensorOptions().dtype(type).device(device));
    const auto one = given.clone(), other = torch::empty_like(given);
    process_group->all_reduce(one).wait();
    check(torch::equal(one, given), "all_reduce");
    process_group->all_reduce(one, ProcessGroup::Reduce::max).wait();
    process_group->reduce_scatter(one, one).wait();
    process_group->reduce_scatter(other, one).wait();
    check(torch::equal(other, given), "reduce_scatter");
    process_group->all_gather(one, one).wait();
    process_group->all_gather(other.zero_(), one).wait();
    check(torch::equal(other, given), "all_gather");
    process_group->reduce(one, 0).wait();
    process_group->broadcast(one, 0).wait();
    check(torch::equal(one, given), "reduce, broadcast");
  }
  check(process_group->gather("text").at(0) == "text", "gather");
  (void)process_group->take_traffic();
  const torch::Tensor large = torch::ones({std::int64_t{64} << 20}, device);
  for (int i = 0; i < 3; ++i) process_group->all_reduce(large).wait();
  const octavo_train::Traffic traffic = process_group->take_traffic();
  std::cout << "3 reductions of 256 MiB: " << traffic.seconds * 1e3 << " ms, waited " << traffic.waited * 1e3
            << " ms, " << traffic.bytes << " bytes\n";
  check(traffic.bytes == 0 && traffic.seconds > 0 && traffic.seconds < 1 &&
            traffic.waited <= traffic.seconds + 0.1,
        "traffic");
  const auto begin = std::chrono::steady_clock::now();
  const torch::Tensor small = torch::ones({1024}, device);
  for (int i = 0; i < 1000; ++i) process_group->all_reduce(small).wait();
  check(small.sum().item<float>() == 1024, "many");
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  std::cout << "1000 small reductions: " << time.count() * 1e3 << " ms\n"
            << "ok" << std::endl;
  return 0;
}

RANKS_PROGRAM(nccl_fails) {
  const std::unique_ptr<ProcessGroup> process_group = join_on_gpu();
  const torch::Tensor tensor = torch::ones({1024}, torch::kCUDA);
  process_group->all_reduce(tensor);
  process_group->fail("on purpose");
  try {
    process_group->gather("");
  } catch (const octavo_train::ProcessGroupError& error) {
    std::cout << error.what() << std::endl;
  }
  return 0;
}

TEST(Nccl, OneRankTakesEveryPath) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const Ended ended = Processes({.program = "nccl_paths", .ranks = 1}).wait().at(0);
  EXPECT_EQ(ended.code, 0) << "signal " << ended.signal;
  EXPECT_THAT(ended.output, testing::HasSubstr("ok\n"));
  std::cout << ended.output;
}

TEST(Nccl, AFailedRankEnds) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const Ended ended = Processes({.program = "nccl_fails", .ranks = 1}).wait().at(0);
  EXPECT_EQ(ended.code, 0) << "signal " << ended.signal;
  EXPECT_THAT(ended.output, testing::HasSubstr("rank 0: on purpose\n"));
}

// Starts a second rank on the only GPU: NCCL rejects it, and both ranks print the error.
RANKS_PROGRAM(nccl_joins) {
  const auto joined =
      ProcessGroup::join(place_here(), torch::Device(torch::kCUDA, 0), {.timeout = kPatience});
  std::cout << joined.status().message() << std::endl;
  return joined.ok() ? 0 : 1;
}

TEST(Nccl, TwoRanksOnOneGpuAreRefused) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  for (const Ended& each : Processes({.program = "nccl_joins", .ranks = 2}).wait()) {
    EXPECT_EQ(each.code, 1) << "signal " << each.signal;
    EXPECT_THAT(each.output, testing::HasSubstr("Duplicate GPU"));
  }
}

}  // namespace octavo_train::ranks
