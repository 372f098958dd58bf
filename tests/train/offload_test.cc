// Tests optimizer states in host memory as the training loop uses them: predicted bytes, gradients that are
// consumed while backward() runs, and checkpoints that do not depend on where the states are.
// SPDX-License-Identifier: MIT
#include "tests/train/parts_support.h"
#include "train/nn/recompute.h"
#include "train/optim/gradients.h"

namespace octavo_train {
namespace {

Words with(const Words& words, const Words& more) {
  Words out = words;
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST(Offload, BytesAreThoseThatWerePlanned) {
  const Words base = {"optimizer=adamw_8bit", "master_weights=24"};
  const auto planned = [&](const Words& more) {
    const TrainingSettings t = training(with(base, more));
    const NamedTensors params = make_parameters(torch::kBFloat16);
    const auto optimizer = make(t, params);
    take_steps(*optimizer, params, 1, 1);
    const StepOptimizer::Bytes out = planned_states(t, one_group(t, params)).bytes, real = optimizer->bytes();
    EXPECT_EQ(out.states, real.states) << testing::PrintToString(more);
    EXPECT_EQ(out.master, real.master) << testing::PrintToString(more);
    EXPECT_EQ(out.host_states, real.host_states) << testing::PrintToString(more);
    EXPECT_EQ(out.host_master, real.host_master) << testing::PrintToString(more);
    return out;
  };
  const auto none = planned({}), all = planned({"offload=host"}),
             half = planned({"offload=stream", "offload_ratio=0.5"}), automatic = planned({"offload=auto"}),
             budget = planned({"offload=stream", "gpu_state_budget=1 MB"});
  EXPECT_EQ(none.host_states + none.host_master, 0);
  EXPECT_EQ(all.states, 2 * 4 * 33) << "of the small one";
  EXPECT_EQ(all.master, 33);
  EXPECT_EQ(all.states + all.host_states, none.states);
  EXPECT_EQ(all.master + all.host_master, none.master);
  EXPECT_GT(half.states, all.states);
  EXPECT_GT(half.host_states, 0);
  EXPECT_EQ(automatic.host_states, 0) << "parameters on the CPU";
  EXPECT_EQ(budget.host_states, 0) << "all of it fits";
}

TEST(Offload, SavesWhatOthersLoad) {
  const Words base = {"optimizer=adamw_8bit", "master_weights=24", "max_grad_norm=0.5"};
  const NamedTensors plain = make_parameters(torch::kBFloat16);
  const auto reference = make(training(base), plain);
  take_steps(*reference, plain, 1, 3);
  const Saved kept = saved(*reference);
  const NamedTensors kept_params = copies(plain);
  take_steps(*reference, plain, 4, 6);
  for (const char* offload : {"offload=host", "offload=stream"}) {
    const NamedTensors params = make_parameters(torch::kBFloat16);
    const auto first = make(training(with(base, {offload})), params);
    take_steps(*first, params, 1, 3);
    EXPECT_TRUE(saved(*first) == kept) << offload;
    first->wait();
    EXPECT_TRUE(same_bits(params, kept_params)) << offload;
    for (const char* next : {"offload=none", "offload=host", "offload=stream"}) {
      const NamedTensors again = copies(kept_params);
      const auto loaded = make(training(with(base, {next})), again);
      const Status status = loaded->load(copies(kept.tensors), kept.numbers);
      ASSERT_TRUE(status.ok()) << status.message();
      take_steps(*loaded, again, 4, 6);
      EXPECT_TRUE(saved(*loaded) == saved(*reference)) << offload << " to " << next;
      loaded->wait();
      EXPECT_TRUE(same_bits(again, plain)) << offload << " to " << next;
    }
  }
}

// Returns a loss that gives each parameter its gradient at once, or in parts as recomputed segments do.
torch::Tensor loss_of(const NamedTensors& parameters, std::int64_t seed, bool in_parts) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  torch::Tensor loss = torch::zeros({});
  for (const auto& [name, param] : parameters) {
    const torch::Tensor factor = torch::randn(param.sizes()).to(param.scalar_type());
    const auto segment = [param = param](const std::vector<torch::Tensor>& in) {
      return (param * in[0]).sum();
    };
    for (int part = 0; part < 3; ++part) {
      const torch::Tensor input = (factor * (part + 1)).requires_grad_();
      loss = loss + (in_parts ? recompute(segment, {input}, {}, SegmentWeights::shared) : segment({input}));
    }
  }
  return loss.to(torch::kFloat32);
}

// Trains some steps with a run's gradients and its optimizer. Returns the weights and sets `states`.
NamedTensors trained(const Words& words, torch::ScalarType type, std::int64_t passes, bool in_parts,
                     bool take, Saved& states) {
  const TrainingSettings t = training(with(words, {"gradient_accumulation_steps=" + std::to_string(passes)}));
  NamedTensors params = make_parameters(type);
  const auto optimizer = make(t, params);
  std::unique_ptr<Gradients> gradients;
  if (take)
    gradients = std::make_unique<OffloadedGradients>(params, passes, *optimizer);
  else
    gradients = std::make_unique<GradientSums>(params, passes);
  const auto pass = [&](std::int64_t seed) {
    optimizer->wait();
    loss_of(params, seed, in_parts).backward();
    gradients->micro_batch_done();
  };
  for (std::int64_t step = 1; step <= 3; ++step) {
    gradients->clear();
    gradients->expect(passes, passes);
    if (step == 2) pass(99), gradients->clear(), gradients->expect(passes, passes);  // an abandoned step
    for (std::int64_t i = 0; i < passes; ++i) {
      pass(10 * step + i);
      const bool here = params[0].second.grad().defined();
      EXPECT_EQ(here, !take ? type == torch::kFloat32 || passes == 1
                            : in_parts && (type == torch::kFloat32 || passes == 1));
    }
    gradients->finish();
    EXPECT_EQ(gradients->bytes() > 10'000, !take);
    optimizer->step();
  }
  optimizer->wait();
  states = saved(*optimizer);
  return params;
}

TEST(Offload, TakenGradientsAddUpToTheSameBits) {
  for (const char* offload : {"host", "stream"}) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      for (const std::int64_t passes : {1, 3}) {
        for (const bool in_parts : {false, true}) {
          const Words base = {"optimizer=adamw_8bit", "max_grad_norm=0.5",
                              type == torch::kFloat32 ? "compute_dtype=float32" : "compute_dtype=bfloat16"};
          Saved plain_states, states;
          const NamedTensors plain = trained(base, type, passes, in_parts, false, plain_states);
          const NamedTensors taken =
              trained(with(base, {std::string("offload=") + offload, "offload_gradients=true"}), type, passes,
                      in_parts, true, states);
          EXPECT_TRUE(same_bits(taken, plain)) << offload << type << passes << in_parts;
          EXPECT_TRUE(states == plain_states) << offload << type << passes << in_parts;
        }
      }
    }
  }
}

}  // namespace
}  // namespace octavo_train
