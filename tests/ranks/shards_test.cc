// Tests ZeRO's shards against one process that has the same gradients. Weights and saved states are
// bit-identical for every format and weight store, and within the tolerance of sums where norms are clipped
// or measured. Also covers empty pieces, skipped steps, bytes by the layout, and states on any number of
// ranks.
// SPDX-License-Identifier: MIT
#include "train/optim/shards.h"
#include "tests/ranks/ranks.h"
#include "tests/train/parts_support.h"

#include <octavo/backend.h>
#include <octavo/describe.h>
#include <torch/cuda.h>

#include <array>
#include <bit>
#include <cmath>
#include <iostream>
#include <limits>

namespace octavo_train {
namespace {

// This bucket size gives several buckets, pieces within parameters, and parameters of which some ranks have
// no elements.
constexpr std::int64_t kBucket = 40'000;

// Returns parameters with quantized states (one that is not a multiple of a block, one with several
// dimensions, one in another memory order) and small ones.
NamedTensors model(torch::ScalarType type) {
  NamedTensors out = make_parameters(type);
  torch::manual_seed(8);
  const auto add = [&](const char* name, const torch::Tensor& tensor) {
    out.emplace_back(name, tensor.to(type).requires_grad_());
  };
  add("kernel", torch::randn({32, 24, 3, 3}).contiguous(torch::MemoryFormat::ChannelsLast));
  add("scalar", torch::randn({}));
  add("large", torch::randn({97, 200}));
  add("none", torch::empty({0, 3}));
  return out;
}

// Returns a model that fits in one chunk.
NamedTensors tiny_model(torch::ScalarType type) {
  NamedTensors out = model(type);
  return {out[2], out[4], out[6]};
}

// Makes two groups; the second has fp32 states.
ParameterGroups grouped(const TrainingSettings& t, NamedTensors parameters) {
  ParameterGroups out = one_group(t, std::move(parameters));
  out.options.push_back(out.options[0]);
  out.options[1].weight_decay = 0, out.options[1].state = octavo::StateFormat::fp32;
  out.group[1] = out.group[2] = 1;
  return out;
}

// Returns the elements of `tensor` in the memory order of `like`.
torch::Tensor in_memory(const torch::Tensor& tensor, const torch::Tensor& like) {
  return torch::empty_strided(like.sizes(), like.strides(), tensor.options())
      .copy_(tensor)
      .as_strided({like.numel()}, {1});
}

// A run in one process, and the same run on the ranks of a process group.
struct Runs {
  TrainingSettings t;
  ParameterGroups one, groups;
  std::unique_ptr<StepOptimizer> alone;
  std::unique_ptr<ShardedWeights> shards;
  std::unique_ptr<StepOptimizer> sharded;

  Runs(ProcessGroup& process_group, const Words& words, NamedTensors (*make_model)(torch::ScalarType) = model,
       std::int64_t slice_bytes = kSliceBytes, const torch::Device& device = torch::kCPU)
      : t(training(words)) {
    NamedTensors parameters = make_model(has_bf16_weights(t) ? torch::kBFloat16 : torch::kFloat32);
    for (auto& [name, tensor] : parameters) tensor = tensor.detach().to(device).requires_grad_();
    one = grouped(t, parameters);
    groups = grouped(t, copies(parameters));
    TrainingSettings plain = t;  // its states stay on the weights' device
    plain.offload = Offload::none, plain.offload_ratio = 1;
    alone = std::make_unique<StepOptimizer>(plain, one);
    shards = std::make_unique<ShardedWeights>(
        process_group, groups, make_bucket_layout(groups, process_group.ranks(), true, kBucket), slice_bytes);
    sharded = std::make_unique<StepOptimizer>(t, groups, shards.get());
  }

  // Every third step, "deep" has no gradient.
  void step(std::int64_t number, double bad = 0) const {
    give_gradients(one.parameters, number);
    for (const auto& [name, param] : one.parameters) param.mutable_grad() = param.grad().to(param.device());
    if (number % 3 == 0) one.parameters[1].second.mutable_grad().reset();
    if (bad != 0) one.parameters[5].second.mutable_grad().view(-1)[97 * 200 - 1] = bad;
    alone->step();
    for (std::size_t i = 0; i < groups.parameters.size(); ++i) {
      const torch::Tensor& piece = shards->pieces()[i];
      const torch::Tensor grad = one.parameters[i].second.grad();
      piece.mutable_grad().reset();
      if (!grad.defined()) continue;
      const Piece at = shards->piece(i);
      const torch::Tensor flat = in_memory(grad, one.parameters[i].second);
      piece.mutable_grad() = piece.dim() == 1 ? flat.narrow(0, at.begin, at.elements()) : grad;
    }
    sharded->step();
    shards->gather();
  }
};

// Checks that the first steps, the steps after a load, and the saved states are bit-identical to one process.
void expect_bits(ProcessGroup& process_group, const Words& words) {
  SCOPED_TRACE(testing::PrintToString(words));
  const Runs runs(process_group, words);
  for (std::int64_t number = 1; number <= 2; ++number) {
    runs.step(number);
    EXPECT_TRUE(same_bits(runs.groups.parameters, runs.one.parameters)) << "step " << number;
  }
  const Saved mine = saved(*runs.sharded), whole = saved(*runs.alone);
  EXPECT_EQ(mine.numbers, whole.numbers);
  EXPECT_TRUE(process_group.leads() ? mine == whole : mine.tensors.empty());
  // One process and these ranks load the states that one process saved.
  const Runs other(process_group, words);
  const auto numbers = nlohmann::ordered_json::parse(whole.numbers.dump());
  for (StepOptimizer* each : {other.alone.get(), other.sharded.get()}) {
    const Status loaded = each->load(copies(whole.tensors), numbers);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
  }
  other.step(3);
  other.step(4);
  EXPECT_TRUE(same_bits(other.groups.parameters, other.one.parameters)) << "after the load";
  const Saved later = saved(*other.sharded), later_whole = saved(*other.alone);
  EXPECT_TRUE(process_group.leads() ? later == later_whole : later.tensors.empty());

  // This rank's bytes equal the layout's prediction, and the sum over all ranks equals one process's bytes.
  const BucketLayout& layout = other.shards->layout();
  const StepOptimizer::Bytes here = other.sharded->bytes(), all = other.alone->bytes();
  const auto planned = planned_states(other.t, other.groups, &layout, process_group.rank()).bytes;
  const auto planned_whole = planned_states(other.t, other.groups).bytes;
  EXPECT_EQ(here.states, planned.states);
  EXPECT_EQ(here.master, planned.master);
  EXPECT_EQ(here.host_states, planned.host_states);
  EXPECT_EQ(here.host_master, planned.host_master);
  EXPECT_EQ(all.states, planned_whole.states + planned_whole.host_states);
  std::array<double, 2> sums = {static_cast<double>(here.states + here.host_states),
                                static_cast<double>(here.master + here.host_master)};
  process_group.sum(sums);
  EXPECT_EQ(sums[0], static_cast<double>(all.states));
  EXPECT_EQ(sums[1], static_cast<double>(all.master));
}

RANKS_TEST(shards_of_adamw_have_the_bits_of_one_process, 2, 3, 4) {
  for (const octavo::StateFormat format : octavo::all_state_formats()) {
    const std::string asked = "optimizer=adamw_" + std::string(name(format));
    expect_bits(process_group, {asked, "compute_dtype=float32", "max_grad_norm=0"});
    for (const char* master : {"24", "32", "stochastic", "none"})
      expect_bits(process_group, {asked, std::string("master_weights=") + master, "max_grad_norm=0"});
  }
}

// States are in host memory, for all pieces or for some.
RANKS_TEST(offloaded_shards_have_the_bits_of_one_process, 2) {
  for (const char* offload : {"offload=host", "offload=stream"}) {
    expect_bits(process_group, {"optimizer=adamw_8bit", "master_weights=24", "max_grad_norm=0", offload});
    expect_bits(process_group, {"optimizer=adamw_4bit-rank1", "compute_dtype=float32", "max_grad_norm=0",
                                offload, "offload_ratio=0.5"});
  }
}

RANKS_TEST(shards_of_other_families_have_the_bits_of_one_process, 3) {
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    if (info.name == "lamb" || info.name == "lars" || info.name == "adamw") continue;
    expect_bits(process_group, {"optimizer=" + std::string(info.name) + "_8bit", "compute_dtype=float32",
                                "max_grad_norm=0"});
  }
  expect_bits(process_group, {"optimizer=sgd", "momentum=0", "master_weights=24", "max_grad_norm=0"});
  expect_bits(process_group,
              {"optimizer=adamw_8bit", "amsgrad=true", "master_weights=24", "max_grad_norm=0"});
}

double largest(const torch::Tensor& t) { return t.numel() == 0 ? 0 : t.detach().abs().max().item<double>(); }

// Expects weights within a tolerance. Every update is multiplied by a number whose sum has another order over
// ranks: as a float it differs by at most one ulp, and so does each later rounding.
void expect_near(ProcessGroup& process_group, const Words& words, int steps) {
  SCOPED_TRACE(testing::PrintToString(words));
  const Runs runs(process_group, words);
  const NamedTensors before = copies(runs.one.parameters);
  for (int number = 1; number <= steps; ++number) {
    runs.step(number);
    const auto norm = runs.sharded->grad_norm().item<double>();
    const auto whole = runs.alone->grad_norm().item<double>();
    EXPECT_NEAR(norm, whole, 1e-12 * whole);
    const std::string bits = std::to_string(std::bit_cast<std::uint64_t>(norm));
    for (const std::string& each : process_group.gather(bits)) EXPECT_EQ(each, bits);
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    const torch::Tensor &one = runs.one.parameters[i].second, &mine = runs.groups.parameters[i].second;
    const double moved = largest(one - before[i].second);
    EXPECT_LE(largest(one - mine), steps * 0x1p-22 * (largest(one) + moved)) << before[i].first;
    EXPECT_TRUE(one.numel() == 0 || moved > 1000 * 0x1p-24) << before[i].first;
  }
}

RANKS_TEST(what_ranks_sum_is_of_whole_parameters, 2, 3, 4) {
  const Words common = {"trust_ratio=true", "compute_dtype=float32", "max_grad_norm=0", "learning_rate=0.1"};
  for (const char* optimizer : {"lamb_8bit", "lamb_4bit-rank1", "lars"}) {
    Words words = common;
    words.push_back(std::string("optimizer=") + optimizer);
    if (words.back() == "optimizer=lars") words.emplace_back("trust_coefficient=0.5");
    expect_near(process_group, words, 3);
  }
  expect_near(
      process_group,
      {"optimizer=sgd", "momentum=0", "compute_dtype=float32", "max_grad_norm=0.5", "learning_rate=0.1"}, 3);
  expect_near(process_group, {"optimizer=adamw_8bit", "compute_dtype=float32", "max_grad_norm=0.5"}, 1);
}

// A gradient that is not finite, in one rank's piece, makes all ranks skip the step and keep their weights
// and states.
RANKS_TEST(a_bad_gradient_of_one_rank_skips_on_all, 2, 3) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
    const Runs runs(process_group, {"optimizer=adamw_8bit", "master_weights=stochastic", "max_grad_norm=0"});
    runs.step(1);
    EXPECT_EQ(runs.sharded->skipped().item<int>(), 0);
    const NamedTensors before = copies(runs.groups.parameters);
    const Saved states = saved(*runs.sharded);
    runs.step(2, bad);
    EXPECT_NE(runs.sharded->skipped().item<int>(), 0);
    EXPECT_TRUE(same_bits(runs.groups.parameters, before));
    EXPECT_TRUE(saved(*runs.sharded) == states);
    runs.step(4);
    EXPECT_EQ(runs.sharded->skipped().item<int>(), 0);
    EXPECT_TRUE(same_bits(runs.groups.parameters, runs.one.parameters));
  }
}

// A rank without any elements of the model still takes part in counting, summing and saving.
RANKS_TEST(a_rank_that_has_nothing_takes_part, 4) {
  for (const char* optimizer : {"optimizer=lamb_8bit", "optimizer=adamw_4bit-rank1"}) {
    const Runs runs(process_group, {optimizer, "compute_dtype=float32", "max_grad_norm=0"}, tiny_model);
    EXPECT_EQ(runs.shards->layout().chunk(0, process_group.rank()).elements(), 256);
    EXPECT_EQ(runs.shards->pieces()[0].numel(), process_group.rank() == 1 ? 33 : 0);
    for (std::int64_t number = 1; number <= 3; ++number) runs.step(number);
    EXPECT_TRUE(same_bits(runs.groups.parameters, runs.one.parameters));
    const Saved mine = saved(*runs.sharded), whole = saved(*runs.alone);
    EXPECT_EQ(mine.numbers, whole.numbers);
    EXPECT_TRUE(process_group.leads() ? mine == whole : mine.tensors.empty());
    EXPECT_EQ(runs.sharded->bytes().states > 0, process_group.rank() < 2);
  }
}

// A checkpoint written right after another one was loaded is identical to it, for any slice size.
RANKS_TEST(shards_are_saved_before_a_step, 3) {
  const Runs runs(process_group, {"optimizer=adamw_4bit-rank1", "master_weights=24"}, model,
                  /*slice_bytes=*/1001);
  EXPECT_TRUE(saved(*runs.sharded).tensors.empty());
  runs.step(1);
  const Saved whole = saved(*runs.alone);
  const Status loaded = runs.sharded->load(copies(whole.tensors), whole.numbers);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  const Saved again = saved(*runs.sharded);
  EXPECT_TRUE(process_group.leads() ? again == whole : again.tensors.empty());
}

// Compares one rank with a process without a group: the bits are equal, also with clipping and with LAMB's
// norms. Returns the differences.
std::string differences_of_one_rank(ProcessGroup& process_group, const torch::Device& device) {
  std::string out;
  std::vector<Words> all = {{"optimizer=lamb_8bit", "trust_ratio=true", "compute_dtype=float32"}};
  for (const octavo::StateFormat format : octavo::all_state_formats()) {
    const std::string asked = "optimizer=adamw_" + std::string(name(format));
    for (const char* master : {"24", "stochastic"})
      all.push_back({asked, std::string("master_weights=") + master});
  }
  const auto on_host = [](NamedTensors tensors) {
    for (auto& [name, tensor] : tensors) tensor = tensor.detach().cpu();
    return tensors;
  };
  for (Words words : all) {
    words.emplace_back("max_grad_norm=0.5");
    const Runs runs(process_group, words, model, kSliceBytes, device);
    for (std::int64_t number = 1; number <= 3; ++number) runs.step(number);
    Saved mine = saved(*runs.sharded), whole = saved(*runs.alone);
    mine.tensors = on_host(mine.tensors), whole.tensors = on_host(whole.tensors);
    if (!same_bits(on_host(runs.groups.parameters), on_host(runs.one.parameters)))
      out += words[0] + ": weights\n";
    if (!(mine == whole)) out += words[0] + ": what is saved\n";
  }
  return out;
}

TEST(Shards, OfOneRankAreThoseOfOneProcess) {
  EXPECT_EQ(differences_of_one_rank(*ProcessGroup::alone(), torch::kCPU), "");
}

RANKS_PROGRAM(nccl_shards) {
  const torch::Device device(torch::kCUDA, 0);
  auto process_group = ProcessGroup::join(octavo_train::ranks::place_here(), device,
                                          {.timeout = octavo_train::ranks::kPatience});
  const std::string differ = differences_of_one_rank(*process_group.value(), device);
  std::cout << differ << (differ.empty() ? "ok" : "differs") << std::endl;
  return differ.empty() ? 0 : 1;
}

TEST(Nccl, ShardsOfOneRankAreThoseOfOneProcess) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  if (octavo::gpu_info().runtime_version == 0) GTEST_SKIP() << "this build has no CUDA backend";
  const octavo_train::ranks::Ended ended =
      octavo_train::ranks::Processes({.program = "nccl_shards", .ranks = 1}).wait().at(0);
  EXPECT_EQ(ended.code, 0) << ended.output;
}

// Missing states, or states of another format, are an error that changes nothing, as in one process.
RANKS_TEST(shards_refuse_what_does_not_fit, 2) {
  const Runs runs(process_group, {"optimizer=adamw_8bit", "compute_dtype=float32"});
  const Runs other(process_group, {"optimizer=adamw_4bit", "compute_dtype=float32"});
  runs.step(1);
  const Saved whole = saved(*runs.alone);
  const Status one = other.alone->load(whole.tensors, whole.numbers);
  const Status ranks = other.sharded->load(whole.tensors, whole.numbers);
  EXPECT_THAT(ranks.message(), testing::HasSubstr("large: 8bit states"));
  EXPECT_EQ(ranks.message(), one.message());
}

}  // namespace
}  // namespace octavo_train
