// Shards with offsets, norms over ranks, formats of single parameters, and parameters that are added and
// removed, of the LibTorch adapter. Ranks are threads that communicate by a c10d::Backend.
// SPDX-License-Identifier: MIT
#include "tests/torch/support.h"

#include <octavo/backend.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <barrier>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace test {
namespace {

using octavo::torch::AdamW;
using octavo::torch::SGD;
using octavo::torch::Shard;
using testing::HasSubstr;

// Sums over two threads.
class TwoThreads : public c10d::Backend {
 public:
  struct Shared {
    std::barrier<> barrier{2};
    std::mutex mutex;
    torch::Tensor sum;
  };
  struct Done : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
  };
  TwoThreads(int rank, std::shared_ptr<Shared> shared) : Backend(rank, 2), shared_(std::move(shared)) {}

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    {
      const std::lock_guard<std::mutex> lock(shared_->mutex);
      shared_->sum = shared_->sum.defined() ? shared_->sum + tensors[0] : tensors[0].clone();
    }
    shared_->barrier.arrive_and_wait();
    tensors[0].copy_(shared_->sum);
    shared_->barrier.arrive_and_wait();
    if (getRank() == 0) shared_->sum = torch::Tensor();
    shared_->barrier.arrive_and_wait();
    return c10::make_intrusive<Done>();
  }

 private:
  std::shared_ptr<Shared> shared_;
};

torch::Tensor big(torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(5);
  return torch::randn({24, 256}).to(type).requires_grad_();
}

// Rows are blocks, so a part of the rows has the same blocks, and with its offset the same random numbers.
TEST(TorchShards, HaveTheBitsOfTheWhole) {
  const auto options = AdamWOptions(1e-2).state("8bit").master("stochastic").seed(11);
  const torch::Tensor whole = big(torch::kBFloat16);
  const Tensors parts = {whole.detach().slice(0, 0, 8).clone().requires_grad_(),
                         whole.detach().slice(0, 8, 24).clone().requires_grad_()};
  AdamW reference({whole}, options), first({parts[0]}, options), second({parts[1]}, options);
  first.set_shard(parts[0], Shard{0, whole.numel()});
  second.set_shard(parts[1], Shard{parts[0].numel(), whole.numel()});
  for (std::int64_t step = 1; step <= 4; ++step) {
    const torch::Tensor grad = gradient(whole, step);
    whole.mutable_grad() = grad;
    parts[0].mutable_grad() = grad.slice(0, 0, 8).contiguous();
    parts[1].mutable_grad() = grad.slice(0, 8, 24).contiguous();
    reference.step(), first.step(), second.step();
  }
  EXPECT_TRUE(same_bits(whole, torch::cat({parts[0], parts[1]})));
  EXPECT_EQ(first.state_of(parts[0])->format, "8bit") << "2048 elements of a parameter of 6144";
  const auto codes = [](const AdamW& o, const torch::Tensor& p) { return o.state_of(p)->codes[1]; };
  EXPECT_TRUE(
      same_bits(codes(reference, whole), torch::cat({codes(first, parts[0]), codes(second, parts[1])})));
}

TEST(TorchShards, NormsOverRanks) {
  const torch::Tensor whole = big(), small = make_params()[1];
  const Tensors copy = copies({whole, small});
  AdamW reference(copy, AdamWOptions(1e-2).clip_grad_norm(0.5).skip_nonfinite(true));
  const auto shared = std::make_shared<TwoThreads::Shared>();
  std::vector<double> norms(2);
  std::vector<int> skipped(2);
  Tensors result(2);
  const auto rank_main = [&](int rank) {
    torch::Tensor part = whole.detach().slice(0, 12 * rank, 12 * (rank + 1)).clone().requires_grad_();
    const Tensors params = {part, small.detach().clone().requires_grad_()};
    const std::int64_t offset = rank * part.numel();
    const auto ranks = c10::make_intrusive<TwoThreads>(rank, shared);
    AdamW opt(params, AdamWOptions(1e-2).clip_grad_norm(0.5).skip_nonfinite(true));
    opt.set_shard(part, {offset, 2 * part.numel(), /*part=*/1});
    opt.set_norm_reduce([&](std::uint32_t, torch::Tensor sums) {
      std::vector<torch::Tensor> list = {std::move(sums)};
      ranks->allreduce(list, {})->wait();
    });
    for (std::int64_t step = 1; step <= 3; ++step) {
      torch::Tensor grad = torch::arange(whole.numel()).remainder(7 + step).sub(3).to(torch::kFloat32);
      grad = grad.view(whole.sizes()).slice(0, 12 * rank, 12 * (rank + 1)).clone();
      if (step == 3 && rank == 1) grad[0][0] = std::numeric_limits<float>::quiet_NaN();
      part.mutable_grad() = grad;
      params[1].mutable_grad() = torch::full({33}, 0.5);  // the same on both: not a part
      opt.step();
      if (step == 2) norms[static_cast<std::size_t>(rank)] = opt.grad_norm().item<double>();
    }
    skipped[static_cast<std::size_t>(rank)] = opt.last_step_skipped() ? 1 : 0;
    // A step without a gradient here still takes part.
    if (rank == 0) part.mutable_grad() = torch::ones_like(part).detach();
    if (rank == 1) opt.zero_grad();
    opt.step();
    result[static_cast<std::size_t>(rank)] = rank == 1 ? part : opt.grad_norm();
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
  for (std::int64_t step = 1; step <= 2; ++step) {
    copy[0].mutable_grad() =
        torch::arange(whole.numel()).remainder(7 + step).sub(3).to(torch::kFloat32).view(whole.sizes());
    copy[1].mutable_grad() = torch::full({33}, 0.5);
    reference.step();
  }
  EXPECT_EQ(norms[0], norms[1]);
  EXPECT_NEAR(norms[0], reference.grad_norm().item<double>(), 1e-12 * norms[0]);
  EXPECT_EQ(skipped, (std::vector<int>{1, 1})) << "a bad gradient of one rank skips the step of both";
  // Two steps were applied, clipped by the norm of all ranks; norms may differ in their last bit.
  EXPECT_LT((result[1] - copy[0].slice(0, 12, 24)).abs().max().item<double>(), 1e-6);
  EXPECT_NEAR(result[0].item<double>(), std::sqrt(3072 + 33 * 0.25), 1e-9);
}

// Each rank's part becomes the norm of all ranks: the root of the squares, the count, and the maximum.
TEST(TorchShards, TheLargestGradientIsThatOfAllRanks) {
  const auto norm = [](double l2, double largest, std::int64_t nonfinite) {
    torch::Tensor out = octavo::torch::new_norm(torch::kCPU);
    out[0] = l2;
    out[1] = largest;
    out.view(torch::kInt64)[2] = nonfinite;
    return out;
  };
  const auto read = [](const torch::Tensor& t) {
    return std::tuple(t[0].item<double>(), t[1].item<double>(),
                      t.view(torch::kInt64)[2].item<std::int64_t>());
  };
  // The other rank has the norm (4, 3.5, 1).
  const octavo::torch::NormReduction reduce{
      [](std::uint32_t, const torch::Tensor& sums) {
        sums.add_(torch::tensor({16.0, 1.0}, torch::kFloat64));
      },
      [](std::uint32_t, const torch::Tensor& largest) { largest.clamp_min_(3.5); }};
  torch::Tensor total = norm(0, 0, 0);
  octavo::torch::combine_norms({{1, torch::kCPU, norm(3, 2.5, 2)}}, {total}, reduce);
  EXPECT_EQ(read(total), std::tuple(5.0, 3.5, 3));
  // Without a function for it the maximum is this rank's.
  const octavo::torch::NormReduction sums_alone{reduce.sum, nullptr};
  octavo::torch::combine_norms({{1, torch::kCPU, norm(3, 2.5, 2)}}, {total}, sums_alone);
  EXPECT_EQ(read(total), std::tuple(5.0, 2.5, 3));
}

// The norms of weights and updates are those of the complete tensor, except for the last bits of the sum.
TEST(TorchShards, WhatAnAlgorithmMeasuresIsOfTheWhole) {
  const auto options = octavo::torch::LAMBOptions(1e-1).set("trust_ratio", 1);
  const torch::Tensor whole = big(), grad = gradient(whole, 3);
  const Tensors copy = copies({whole});
  octavo::torch::LAMB reference(copy, options);
  copy[0].mutable_grad() = grad;
  reference.step();
  const auto shared = std::make_shared<TwoThreads::Shared>();
  Tensors parts(2);
  const auto rank_main = [&](int rank) {
    const auto rows = [&](const torch::Tensor& t) {
      return t.slice(0, rank == 0 ? 0 : 4, rank == 0 ? 4 : 24);
    };
    torch::Tensor part = rows(whole.detach()).clone().requires_grad_();
    part.mutable_grad() = rows(grad).clone();
    octavo::torch::LAMB opt({part}, options);
    opt.set_shard(part, {rank == 0 ? 0 : 4 * 256, whole.numel(), /*part=*/1});
    const auto ranks = c10::make_intrusive<TwoThreads>(rank, shared);
    opt.set_norm_reduce([&](std::uint32_t, torch::Tensor sums) {
      std::vector<torch::Tensor> list = {std::move(sums)};
      ranks->allreduce(list, {})->wait();
    });
    opt.step();
    parts[static_cast<std::size_t>(rank)] = part;
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
  const torch::Tensor together = torch::cat({parts[0], parts[1]});
  EXPECT_LT((together - copy[0]).abs().max().item<double>(), 1e-6);
  EXPECT_GT((together - whole).abs().max().item<double>(), 1e-2);

  octavo::torch::LAMB alone({parts[0]}, options);
  EXPECT_THAT(error_of([&] {
                alone.set_shard(parts[0], {0, whole.numel()});
              }),
              HasSubstr("lamb measures whole tensors"));
  alone.set_shard(parts[0], {0, whole.numel(), 1});
  EXPECT_THAT(error_of([&] { alone.step(); }), HasSubstr("lamb"));
  alone.set_norm_reduce([](std::uint32_t, const torch::Tensor&) { throw std::runtime_error("no network"); });
  EXPECT_THROW(alone.step(), std::runtime_error);
}

// Ranks step the same parameters in the same order, even if a rank has no element of one. 4bit-rank1 states
// belong to complete tensors, which one rank has; the other ranks' tensors are empty.
void expect_empty_ones_to_take_part(const torch::Device& device) {
  const auto options =
      octavo::torch::LAMBOptions(1e-1).set("trust_ratio", 1).state("4bit-rank1").skip_nonfinite(true);
  const auto there = [&](const torch::Tensor& tensor) { return tensor.detach().to(device).requires_grad_(); };
  const Tensors whole = {there(big()), there(make_params()[1])}, reference = copies(whole);
  octavo::torch::LAMB alone(reference, options);
  std::vector<Tensors> grads;  // by step
  for (std::int64_t step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < 2; ++i)
      reference[i].mutable_grad() =
          gradient(whole[i].cpu(), 10 * step + static_cast<std::int64_t>(i)).to(device);
    grads.push_back({reference[0].grad(), reference[1].grad()});
    alone.step();
  }
  const auto shared = std::make_shared<TwoThreads::Shared>();
  const auto rank_main = [&](int rank) {
    Tensors params = copies(whole);
    // Rank 0 has the large one, and rank 1 the small one.
    const auto other = static_cast<std::size_t>(1 - rank);
    params[other] = there(torch::empty({0}));
    octavo::torch::LAMB opt(params, options);
    opt.set_format(params[0], "4bit-rank1");
    opt.set_shard(params[0], {0, 0, /*part=*/1});
    opt.set_shard(params[1], {0, whole[1].numel(), /*part=*/1});
    const auto ranks = c10::make_intrusive<TwoThreads>(rank, shared);
    opt.set_norm_reduce([&](std::uint32_t, torch::Tensor sums) {
      std::vector<torch::Tensor> list = {std::move(sums)};
      ranks->allreduce(list, {})->wait();
    });
    for (const Tensors& now : grads) {
      for (std::size_t i = 0; i < 2; ++i)
        params[i].mutable_grad() = i == other ? torch::empty({0}, device) : now[i];
      opt.step();
    }
    const auto mine = static_cast<std::size_t>(rank);
    EXPECT_TRUE(same_bits(params[mine], reference[mine])) << "rank " << rank;
    EXPECT_NEAR(opt.grad_norm().item<double>(), alone.grad_norm().item<double>(), 1e-12);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(opt.state_of(params[i])->step(), 3);
      EXPECT_EQ(opt.state_of(params[i])->format, alone.state_of(reference[i])->format);
      EXPECT_EQ(opt.state_of(params[i])->bytes(), i == mine ? alone.state_of(reference[i])->bytes() : 0);
    }
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
}

TEST(TorchShards, AreEmptyOnSomeRanks) { expect_empty_ones_to_take_part(torch::kCPU); }

TEST(TorchCuda, ShardsAreEmptyOnSomeRanks) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  if (octavo::gpu_info().runtime_version == 0) GTEST_SKIP() << "this build has no CUDA backend";
  expect_empty_ones_to_take_part(torch::Device(torch::kCUDA, 0));
}

TEST(TorchShards, BadOnesAreRefused) {
  const torch::Tensor part = big();
  AdamW optimizer({part}, AdamWOptions(1e-2).clip_grad_norm(1));
  EXPECT_THAT(error_of([&] {
                optimizer.set_shard(part, {100, 6200});
              }),
              HasSubstr("parameter 0 of group 0: set_shard: got offset 100 and whole_numel 6200"));
  EXPECT_THAT(error_of([&] {
                optimizer.set_shard(torch::zeros({3}), {0, 3});
              }),
              HasSubstr("set_shard: the parameter is not of this optimizer"));
  AdamW axes({part}, AdamWOptions(1e-2).state("4bit-rank1"));
  EXPECT_THAT(error_of([&] { axes.set_shard(part, {0, 9000}); }), HasSubstr("4bit-rank1"));
  optimizer.set_shard(part, {0, 9000, 1});
  part.mutable_grad() = torch::ones_like(part).detach();
  const Tensors before = copies({part});
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("set_norm_reduce"));
  optimizer.set_norm_reduce(
      [](std::uint32_t, const torch::Tensor&) { throw std::runtime_error("no network"); });
  EXPECT_THROW(optimizer.step(), std::runtime_error);
  EXPECT_TRUE(same_bits(part, before[0]));
  optimizer.set_norm_reduce([](std::uint32_t, const torch::Tensor&) {});
  optimizer.step();
  EXPECT_FALSE(same_bits(part, before[0]));
  EXPECT_THAT(error_of([&] {
                optimizer.set_shard(part, {0, 9000});
              }),
              HasSubstr("it has fp32 states already"));
}

TEST(TorchFormats, OfOneParameter) {
  const Tensors params = make_params(), plain = copies(params);
  AdamW optimizer(params, AdamWOptions(1e-2).state("8bit")),
      reference(plain, AdamWOptions(1e-2).state("8bit"));
  optimizer.set_format(params[0], "fp32");
  optimizer.set_format(params[1], "4bit", 64);
  EXPECT_EQ(optimizer.kind_of(params[1]).format, "4bit");
  EXPECT_THAT(error_of([&] { optimizer.set_format(params[1], "5bit"); }), HasSubstr("5bit"));
  EXPECT_THAT(error_of([&] { optimizer.set_format(params[1], "4bit", 100); }), HasSubstr("100"));
  run(optimizer, params, 1, 2);
  run(reference, plain, 1, 2);
  EXPECT_EQ(optimizer.state_of(params[0])->format, "fp32");
  EXPECT_EQ(optimizer.state_of(params[1])->format, "4bit");
  EXPECT_EQ(optimizer.state_of(params[1])->block_size, 64);
  EXPECT_EQ(reference.state_of(plain[1])->format, "fp32");
  EXPECT_THAT(error_of([&] { optimizer.set_format(params[0], "8bit"); }),
              HasSubstr("it has fp32 states already"));
}

TEST(TorchGroups, MayBeTakenAway) {
  const Tensors params = make_params(), alone = copies({params[1]});
  AdamW optimizer(std::vector<ParamGroup>{ParamGroup({params[0]}), ParamGroup({params[1]})},
                  AdamWOptions(1e-2).state("8bit"));
  AdamW reference(alone, AdamWOptions(1e-2).state("8bit"));
  run(optimizer, params, 1, 2);
  optimizer.param_groups().erase(optimizer.param_groups().begin());
  for (std::int64_t step = 1; step <= 4; ++step) {
    alone[0].mutable_grad() = gradient(alone[0], 10 * step + 1);
    reference.step();
  }
  run(optimizer, params, 3, 4);
  EXPECT_TRUE(same_bits(params[1], alone[0]));
}

}  // namespace
}  // namespace test
