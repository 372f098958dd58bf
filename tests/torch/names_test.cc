// Options and classes of the LibTorch adapter follow the algorithms' descriptions: names, defaults, ranges,
// switches. Every algorithm of the library can be made by its name.
// SPDX-License-Identifier: MIT
#include "tests/torch/support.h"

#include <octavo/describe.h>

#include <limits>
#include <sstream>

namespace test {
namespace {

using octavo::torch::AnyOptions;
using octavo::torch::make_optimizer;
using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) out.emplace_back(info.name);
  return out;
}

TEST(TorchNames, EveryAlgorithmHasItsDefaults) {
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    const AnyOptions options{std::string(info.name)};
    for (const octavo::Option& option : info.options) {
      EXPECT_EQ(options.get(std::string(option.name)), option.value) << info.name << " " << option.name;
    }
    EXPECT_EQ(options.lr(), options.get_lr());
  }
}

// The numbers arrive: each one that is out of its range is refused by the core.
TEST(TorchNames, EveryNumberArrives) {
  const Tensors params = make_params();
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    for (const octavo::Option& option : info.options) {
      if (option.range == octavo::Range::flag || option.at < 0) continue;
      const std::string name(option.name);
      const auto options =
          AnyOptions(std::string(info.name)).set(name, std::numeric_limits<double>::quiet_NaN());
      EXPECT_THAT(error_of([&] { make_optimizer(params, options); }), HasSubstr(name + ": got "))
          << info.name;
    }
  }
}

TEST(TorchNames, EveryAlgorithmStepsSavesAndLoads) {
  for (const std::string& name : names()) {
    const auto options = AnyOptions(name).lr(1e-2).state("8bit");
    const Tensors params = make_params(), before = copies(params);
    const auto optimizer = make_optimizer(params, options);
    EXPECT_EQ(optimizer->algorithm(), name);
    run(*optimizer, params, 1, 2);
    EXPECT_FALSE(same_bits(params[0], before[0])) << name;
    const Tensors copy = copies(params);
    const auto other = make_optimizer(std::vector<ParamGroup>{ParamGroup(copy)}, AnyOptions(name));
    std::stringstream file;
    torch::save(*optimizer, file);
    torch::load(*other, file);
    run(*optimizer, params, 3, 4);
    run(*other, copy, 3, 4);
    EXPECT_TRUE(same_bits(params, copy)) << name;
    EXPECT_TRUE(same_bits(states(*optimizer), states(*other))) << name;
  }
}

// Switches change the moments, also between two steps.
TEST(TorchNames, SwitchesHaveTheirMoments) {
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    for (const octavo::Option& option : info.options) {
      if (!option.switches) continue;
      const Tensors params = make_params();
      const auto optimizer = make_optimizer(params, AnyOptions(std::string(info.name)));
      run(*optimizer, params, 1, 1);
      const std::int64_t without = optimizer->state_bytes();
      auto& options = static_cast<AnyOptions&>(optimizer->param_groups()[0].options());
      options.set(std::string(option.name), option.range == octavo::Range::flag ? 1.0 : 0.5);
      run(*optimizer, params, 2, 2);
      EXPECT_GT(optimizer->state_bytes(), without) << info.name << " " << option.name;
    }
  }
}

// torch's numbers: each rounds a handful of times per step.
template <class Class, class Theirs>
void expect_torchs(const Class& ours, const Theirs& theirs) {
  const Tensors params = make_params(), copy = copies(params);
  const auto optimizer = ours(params);
  const auto reference = theirs(copy);
  for (std::int64_t step = 1; step <= 10; ++step) {
    give_gradients(params, step);
    give_gradients(copy, step);
    optimizer->step();
    reference->step();
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    const double largest = params[i].abs().max().template item<double>();
    const double bound = 10 * 0x1p-24 * (largest + 8 * 10 * 1e-2);
    EXPECT_LE((params[i] - copy[i]).abs().max().template item<double>(), bound);
  }
}

TEST(TorchNames, ClassesHaveTorchsNumbers) {
  using octavo::torch::Adagrad, octavo::torch::RMSprop;
  using octavo::torch::AdagradOptions, octavo::torch::RMSpropOptions;
  expect_torchs(
      [](const Tensors& p) {
        return std::make_unique<RMSprop>(
            p, RMSpropOptions(1e-2).set("alpha", 0.9).set("momentum", 0.5).set("centered", 1));
      },
      [](const Tensors& p) {
        return std::make_unique<torch::optim::RMSprop>(
            p, torch::optim::RMSpropOptions(1e-2).alpha(0.9).momentum(0.5).centered(true));
      });
  expect_torchs(
      [](const Tensors& p) {
        return std::make_unique<Adagrad>(p, AdagradOptions(1e-2).set("lr_decay", 0.1).weight_decay(0.1));
      },
      [](const Tensors& p) {
        return std::make_unique<torch::optim::Adagrad>(
            p, torch::optim::AdagradOptions(1e-2).lr_decay(0.1).weight_decay(0.1));
      });
}

template <class Class, class Options>
std::string expect_by_name() {
  const Tensors params = make_params(), copy = copies(params);
  Class optimizer(params, Options(1e-2).state("8bit"));
  const auto by_name = make_optimizer(copy, AnyOptions(Options::kName).lr(1e-2).state("8bit"));
  run(optimizer, params, 1, 2);
  run(*by_name, copy, 1, 2);
  EXPECT_TRUE(same_bits(params, copy)) << Options::kName;
  return Options::kName;
}

TEST(TorchNames, EveryAlgorithmHasItsClass) {
  namespace ot = octavo::torch;
  const std::vector<std::string> classes = {
      expect_by_name<ot::AdamW, ot::AdamWOptions>(),       expect_by_name<ot::Adam, ot::AdamOptions>(),
      expect_by_name<ot::SGD, ot::SGDOptions>(),           expect_by_name<ot::Lion, ot::LionOptions>(),
      expect_by_name<ot::RMSprop, ot::RMSpropOptions>(),   expect_by_name<ot::Adagrad, ot::AdagradOptions>(),
      expect_by_name<ot::LARS, ot::LARSOptions>(),         expect_by_name<ot::LAMB, ot::LAMBOptions>(),
      expect_by_name<ot::AdEMAMix, ot::AdEMAMixOptions>(),
  };
  EXPECT_THAT(classes, testing::UnorderedElementsAreArray(names()));
}

// Flags of an algorithm's own arrive, on and off.
TEST(TorchNames, EveryFlagArrives) {
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    for (const octavo::Option& option : info.options) {
      if (option.range != octavo::Range::flag) continue;
      const Tensors params = make_params(), copy = copies(params);
      auto options = AnyOptions(std::string(info.name)).lr(0.5);
      if (options.has("momentum")) options.set("momentum", 0.9);
      if (options.has("weight_decay")) options.weight_decay(0.5);
      const auto optimizer = make_optimizer(params, options);
      const auto other = make_optimizer(copy, options.set(std::string(option.name), 1 - option.value));
      run(*optimizer, params, 1, 3);
      run(*other, copy, 1, 3);
      EXPECT_FALSE(same_bits(params, copy)) << info.name << " " << option.name;
    }
  }
}

TEST(TorchNames, WrongOnesAreErrors) {
  EXPECT_THAT(error_of([] { AnyOptions("adamx"); }), AllOf(HasSubstr("got 'adamx'"), HasSubstr("adamw")));
  EXPECT_THAT(error_of([] { AdamWOptions().set("alpha", 1); }),
              HasSubstr("octavo::torch::AdamW: got the option 'alpha', expected one of lr, beta1, beta2"));
  EXPECT_FALSE(SGDOptions().has("beta1"));
  EXPECT_TRUE(SGDOptions().has("dampening"));
  const Tensors params = make_params();
  std::vector<ParamGroup> groups;
  groups.emplace_back(params, std::make_unique<AnyOptions>("adam"));
  EXPECT_THAT(error_of([&] { make_optimizer(groups, AnyOptions("adamw")); }),
              HasSubstr("group 0 has options of another class, expected octavo::torch::AdamWOptions"));
}

}  // namespace
}  // namespace test
