// Tests the optimizer as the training loop uses it: it makes the updates of LibTorch's optimizers, skips
// steps with bad gradients, uses the predicted memory, and resumes from saved states to the same bits.
// SPDX-License-Identifier: MIT
#include "tests/train/libtorch_reference.h"
#include "tests/train/parts_support.h"
#include "train/config/options.h"

#include <octavo/describe.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace octavo_train {
namespace {

double largest(const torch::Tensor& t) { return t.detach().abs().max().item<double>(); }

void expect_parity(const Words& words) {
  constexpr int kSteps = 12;
  constexpr double kRate = 1e-2;
  Words all = {"learning_rate=0.01", "compute_dtype=float32"};
  all.insert(all.end(), words.begin(), words.end());
  const TrainingSettings t = training(all);
  const NamedTensors ours = make_parameters(), theirs = copies(ours), before = copies(ours);
  const auto native = make(t, ours);
  LibtorchReference plain(t, theirs);
  const torch::Tensor scale = torch::full({1}, 1024.0F);
  native->set_loss_scale(scale);
  plain.set_loss_scale(scale);
  for (int step = 1; step <= kSteps; ++step) {
    native->set_learning_rate(kRate / step);
    plain.set_learning_rate(kRate / step);
    give_gradients(ours, step, 1024.0);
    give_gradients(theirs, step, 1024.0);
    const double norm = std::sqrt(70 * 61 + 3 * 40 * 36 + 33);  // approximate norm of standard normal numbers
    native->step();
    plain.step();
    // fp32 sums of 9,000 squares, in at least 32 lanes.
    EXPECT_NEAR(native->grad_norm().item<double>(), plain.grad_norm().item<double>(),
                9000.0 / 32 * 0x1p-24 * 1024 * norm);
    EXPECT_NEAR(native->grad_norm().item<double>(), 1024 * norm, 0.05 * 1024 * norm) << "as it lay there";
    EXPECT_EQ(native->skipped().item<int>(), 0);
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    // Each step rounds the parameter to half an ulp, and its update of at most 10 learning rates a few times.
    // The clipping factor has the relative error of the norm.
    const double bound = kSteps * 0x1p-24 * (largest(ours[i].second) + (8 + 9000.0 / 32) * 10 * kRate);
    EXPECT_LE(largest(ours[i].second - theirs[i].second), bound) << words[0] << ", " << ours[i].first;
    EXPECT_GT(largest(ours[i].second - before[i].second), 100 * bound) << words[0] << ", " << ours[i].first;
  }
}

TEST(StepOptimizer, TakesTheStepsOfLibtorch) {
  for (const char* clip : {"max_grad_norm=50", "max_grad_norm=0"}) {
    expect_parity({"optimizer=adamw", clip});
    expect_parity({"optimizer=adam", "beta1=0.8", "beta2=0.95", "eps=1e-6", clip});
    expect_parity({"optimizer=sgd", clip});
    expect_parity({"optimizer=sgd", "momentum=0", clip});
    expect_parity({"optimizer=sgd", "momentum=0.8", "nesterov=true", clip});
    expect_parity({"optimizer=sgd", "momentum=0.8", "dampening=0.5", clip});
    expect_parity({"optimizer=adamw", "amsgrad=true", clip});
  }
}

TEST(StepOptimizer, AnUnknownAlgorithmIsAnError) {
  TrainingSettings t = training({"optimizer=lion", "compute_dtype=float32"});
  EXPECT_NO_THROW(make(t, make_parameters()));
  t.optimizer.algorithm = static_cast<octavo::Algorithm>(99);
  EXPECT_THROW(make(t, make_parameters()), c10::Error);
}

// Every option reaches the formula: a step with it differs from one without it.
TEST(StepOptimizer, EveryOptionChangesTheSteps) {
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    const Words start = {"optimizer=" + std::string(info.name), "compute_dtype=float32", "max_grad_norm=0"};
    const auto weights_after = [&](const Words& more) {
      Words words = start;
      words.insert(words.end(), more.begin(), more.end());
      const NamedTensors params = make_parameters();
      const auto optimizer = make(training(words), params);
      take_steps(*optimizer, params, 1, 4);
      return params;
    };
    for (const octavo::Option& option : info.options) {
      if (option.name == "lr") continue;
      const std::string key = std::string(option.name) + "=";
      Words without = {};  // settings that the option needs to have an effect
      if (option.name == "dampening" || option.name == "nesterov") without = {"momentum=0.5"};
      if (option.name == "trust_coefficient") without = {"trust_ratio=true"};
      std::string other = option.optional ? "10" : "0.25";  // a schedule's length is a number of steps
      if (option.range == octavo::Range::flag) other = option.value == 0.0 ? "true" : "false";
      Words with = without;
      with.push_back(key + other);
      EXPECT_FALSE(same_bits(weights_after(with), weights_after(without))) << info.name << " " << key;
    }
  }
}

// Adam's steps have the same size for all gradients, so SGD is used here: it shows whether gradients were
// clipped.
TEST(StepOptimizer, ClipsAfterTheLossScale) {
  const TrainingSettings t = training({"optimizer=sgd", "momentum=0", "weight_decay=0", "learning_rate=1",
                                       "max_grad_norm=0.5", "compute_dtype=float32"});
  const NamedTensors params = {{"w", torch::zeros({2}).requires_grad_()}};
  const auto optimizer = make(t, params);
  optimizer->set_loss_scale(torch::full({1}, 1024.0F));
  const auto step = [&](float x, float y) {
    params[0].second.mutable_grad() = torch::tensor({1024 * x, 1024 * y});
    const torch::Tensor before = params[0].second.detach().clone();
    optimizer->step();
    return (before - params[0].second.detach());
  };
  EXPECT_LE(largest(step(0.25F, 0.125F) - torch::tensor({0.25F, 0.125F})), 0x1p-24);  // not clipped
  EXPECT_LE(largest(step(30.0F, 40.0F) - torch::tensor({0.3F, 0.4F})), 2e-7) << "0.5 times (0.6, 0.8)";
}

TEST(StepOptimizer, ABadGradientLeavesEverythingAsItIs) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
    const TrainingSettings t = training({"optimizer=adamw", "compute_dtype=float32"});
    const NamedTensors params = make_parameters(), clean = copies(params);
    const auto optimizer = make(t, params), reference = make(t, clean);
    take_steps(*optimizer, params, 1, 2);
    take_steps(*reference, clean, 1, 2);
    const Saved before = saved(*optimizer);
    give_gradients(params, 3);
    params[1].second.mutable_grad().view(-1)[5] = bad;
    optimizer->step();
    EXPECT_NE(optimizer->skipped().item<int>(), 0);
    EXPECT_TRUE(same_bits(params, clean));
    EXPECT_TRUE(saved(*optimizer) == before);
    take_steps(*optimizer, params, 4, 5);
    take_steps(*reference, clean, 4, 5);
    EXPECT_EQ(optimizer->skipped().item<int>(), 0);
    EXPECT_TRUE(same_bits(params, clean));
  }
}

torch::ScalarType weight_type(const Words& words) {
  return has_bf16_weights(training(words)) ? torch::kBFloat16 : torch::kFloat32;
}

std::vector<Words> kinds() {
  std::vector<Words> out;
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    const std::string algorithm(info.name);
    for (const octavo::StateFormat format : octavo::all_state_formats()) {
      const std::string asked = "optimizer=" + algorithm + "_" + std::string(name(format));
      out.push_back({asked, "compute_dtype=float32"});
      for (const char* master : {"24", "32", "stochastic", "none"})
        out.push_back({asked, std::string("master_weights=") + master});
    }
    // Adds one case for each of the algorithm's switches.
    for (const octavo::Option& option : info.options) {
      const std::string on =
          std::string(option.name) + (option.range == octavo::Range::flag ? "=true" : "=0.5");
      if (!option.switches) continue;
      out.push_back({"optimizer=" + algorithm + "_8bit", on, "compute_dtype=float32"});
    }
  }
  out.push_back({"optimizer=sgd", "momentum=0", "compute_dtype=float32"});
  out.push_back({"optimizer=sgd", "momentum=0", "master_weights=24"});
  return out;
}

TEST(StepOptimizer, ContinuesFromWhatItSavedToTheSameBits) {
  for (const Words& words : kinds()) {
    SCOPED_TRACE(testing::PrintToString(words));
    const TrainingSettings t = training(words);
    const NamedTensors params = make_parameters(weight_type(words));
    const auto uninterrupted = make(t, params);
    take_steps(*uninterrupted, params, 1, 3);
    const NamedTensors resumed = copies(params);
    const Saved at_save = saved(*uninterrupted);
    take_steps(*uninterrupted, params, 4, 6);

    const auto optimizer = make(t, resumed);
    const auto numbers = nlohmann::ordered_json::parse(at_save.numbers.dump());
    const Status status = optimizer->load(copies(at_save.tensors), numbers);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(saved(*optimizer) == at_save);
    take_steps(*optimizer, resumed, 4, 6);
    EXPECT_TRUE(same_bits(resumed, params));
    EXPECT_TRUE(saved(*optimizer) == saved(*uninterrupted));
  }
}

TEST(StepOptimizer, HoldsWhatWasPlanned) {
  for (const Words& words : kinds()) {
    SCOPED_TRACE(testing::PrintToString(words));
    const TrainingSettings t = training(words);
    NamedTensors params = make_parameters(weight_type(words));
    params.emplace_back("scalar", torch::ones({}, weight_type(words)).requires_grad_());
    params.emplace_back("deepest",  // more dimensions than the core supports
                        torch::ones({2, 2, 2, 2, 2, 2, 2, 2, 2, 9}, weight_type(words)).requires_grad_());
    const StepOptimizer::Bytes planned = planned_states(t, one_group(t, params)).bytes;
    const auto optimizer = make(t, params);
    EXPECT_EQ(optimizer->bytes().states, 0);
    take_steps(*optimizer, params, 1, 1);
    EXPECT_EQ(optimizer->bytes().states, planned.states);
    EXPECT_EQ(optimizer->bytes().master, planned.master);
    const bool bf16 = has_bf16_weights(t);
    const octavo::WeightStore store = weight_store(t);
    EXPECT_EQ(planned.master > 0,
              bf16 && store != octavo::WeightStore::nearest && store != octavo::WeightStore::stochastic);
    EXPECT_EQ(planned.states > 0,
              !slots(t.optimizer.algorithm, group_config(t, t.optimizer.algorithm).switches).empty());
  }
}

}  // namespace
}  // namespace octavo_train
