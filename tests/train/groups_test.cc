// Tests parameter groups: the options of each parameter, their effect on a step, and errors that name
// patterns without a match.
// SPDX-License-Identifier: MIT
#include "tests/train/parts_support.h"
#include "train/optim/param_groups.h"

#include <cmath>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const NoDecay kNone{};
const NoDecay kAuto{NoDecay::Kind::automatic, {}};

NoDecay spared(std::vector<std::string> patterns) { return {NoDecay::Kind::patterns, std::move(patterns)}; }

GroupSettings group(std::vector<std::string> params) {
  GroupSettings out;
  out.params = std::move(params);
  return out;
}

GroupSettings frozen(std::vector<std::string> params) {
  GroupSettings out = group(std::move(params));
  out.freeze = true;
  return out;
}

// Returns parameters with the names of a small network, each with typical dimensions.
NamedTensors network() {
  torch::manual_seed(5);
  NamedTensors out = {
      {"encoder.0.weight", torch::randn({80, 60})}, {"encoder.0.bias", torch::randn({80})},
      {"encoder.norm.weight", torch::randn({60})},  {"decoder.weight", torch::randn({90, 60})},
      {"decoder.bias", torch::randn({90})},         {"scale", torch::randn({})}};
  for (auto& [name, tensor] : out) tensor.requires_grad_();
  return out;
}

Result<ParameterGroups> resolve(TrainingSettings t, const std::vector<GroupSettings>& groups,
                                const NoDecay& no_decay, const NamedTensors& parameters) {
  t.groups = groups;
  t.no_decay = no_decay;
  return resolve_groups(t, parameters);
}

std::string error(const std::vector<GroupSettings>& groups, const NoDecay& no_decay = kNone) {
  return resolve(training(), groups, no_decay, network()).status().message();
}

const Words kPlainRun = {"optimizer=adamw", "compute_dtype=float32", "learning_rate=0.01", "weight_decay=0.1",
                         "max_grad_norm=0"};

TEST(Groups, WithoutRulesThereIsOneWithTheRunsOptions) {
  const TrainingSettings t = training(kPlainRun);
  const ParameterGroups groups = resolve(t, {}, kNone, network()).value();
  EXPECT_THAT(groups.options, ElementsAre(GroupOptions{0.1, 0.01, octavo::StateFormat::fp32}));
  EXPECT_THAT(groups.group, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(group_lines(groups, t), IsEmpty());
}

TEST(Groups, AutoSparesBiasesAndNorms) {
  const TrainingSettings t = training(kPlainRun);
  const ParameterGroups groups = resolve(t, {}, kAuto, network()).value();
  ASSERT_EQ(groups.options.size(), 2U);
  EXPECT_EQ(groups.options[1].weight_decay, 0);
  EXPECT_EQ(groups.options[1].learning_rate, 0.01);
  EXPECT_THAT(groups.group, ElementsAre(0, 1, 1, 0, 1, 1));
  EXPECT_THAT(group_lines(groups, t), ElementsAre("4 parameters of 231 weights: weight_decay 0"));
  // Without weight decay there is nothing to exempt, so all parameters have the same options.
  Words without = kPlainRun;
  without.push_back("weight_decay=0");
  EXPECT_EQ(resolve(training(without), {}, kAuto, network())->options.size(), 1U);
}

TEST(Groups, TheFirstThatMatchesCounts) {
  const TrainingSettings t = training(kPlainRun);
  GroupSettings norm = group({"*norm*", "scale"}), encoder = group({"encoder.*"});
  norm.weight_decay = 0.5;
  encoder.learning_rate = 1e-3;
  encoder.state = octavo::StateFormat::int4;
  const ParameterGroups groups = resolve(t, {norm, encoder}, spared({"*.bias"}), network()).value();
  const GroupOptions of_norm{0.5, 0.01, octavo::StateFormat::fp32},
      of_encoder{0.1, 1e-3, octavo::StateFormat::int4}, of_encoder_bias{0, 1e-3, octavo::StateFormat::int4},
      own{0.1, 0.01, octavo::StateFormat::fp32}, own_bias{0, 0.01, octavo::StateFormat::fp32};
  const std::vector<GroupOptions> expected = {of_encoder, of_encoder_bias, of_norm, own, own_bias, of_norm};
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(groups.options[groups.group[i]] == expected[i]) << groups.parameters[i].first;
  EXPECT_THAT(groups.options, testing::SizeIs(5));
  EXPECT_THAT(group_lines(groups, t)[0], "1 parameter of 4.80k weights: learning_rate 0.001, 4bit states");
  // In the other order, the encoder's norm belongs to the encoder's group.
  const ParameterGroups other = resolve(t, {encoder, norm}, kNone, network()).value();
  EXPECT_TRUE(other.options[other.group[2]] == of_encoder);
}

TEST(Groups, Errors) {
  EXPECT_THAT(error({group({"encodr.*"})}),
              AllOf(HasSubstr("training.groups[0].params: no parameter's name matches \"encodr.*\""),
                    HasSubstr("near it are: encoder.0.weight, encoder.0.bias, encoder.norm.weight"),
                    HasSubstr("(of 6)")));
  // One of several patterns, and a pattern that matches only part of a name.
  EXPECT_THAT(
      error({group({"scale"}), group({"encoder.*", "decoder"})}),
      AllOf(HasSubstr("training.groups[1].params"), HasSubstr("near it are: decoder.weight, decoder.bias")));
  EXPECT_THAT(error({}, spared({"*.bias", "*.beta"})), HasSubstr("training.no_decay: no parameter's name"));
  EXPECT_THAT(
      error({group({"encoder.*"}), frozen({"*norm*"})}),
      AllOf(HasSubstr("training.groups[1].params: every parameter that it matches is in a group before"),
            HasSubstr("the first group that matches counts")));
  EXPECT_THAT(error({frozen({"*"})}), HasSubstr("every parameter is frozen"));
  EXPECT_THAT(error({group({"*"})}, spared({"scale"})), IsEmpty());
}

// A step of each group equals the step of a run that has only its options.
TEST(Groups, StepsAreThoseOfTheirOptions) {
  constexpr int kSteps = 4;
  const NamedTensors params = network();
  Words words = kPlainRun;
  GroupSettings encoder = group({"encoder.*"});
  encoder.learning_rate = 0.002;
  encoder.weight_decay = 0.7;
  encoder.state = octavo::StateFormat::int8;
  const TrainingSettings t = training(words);
  ParameterGroups groups = resolve(t, {encoder}, spared({"*.bias"}), params).value();
  const auto optimizer = std::make_unique<StepOptimizer>(t, groups);
  const auto alone = [&](const std::string& name, const Words& more) {
    const TrainingSettings own = [&] {
      Words all = words;
      all.insert(all.end(), more.begin(), more.end());
      return training(all);
    }();
    const NamedTensors fresh = network();
    const auto reference = make(own, fresh);
    for (int step = 1; step <= kSteps; ++step) {
      reference->set_learning_rate(own.learning_rate / step);
      give_gradients(fresh, step);
      reference->step();
    }
    return *find_tensor(fresh, name);
  };
  for (int step = 1; step <= kSteps; ++step) {
    optimizer->set_learning_rate(0.01 / step);
    give_gradients(params, step);
    optimizer->step();
  }
  const Words of_encoder = {"optimizer=adamw_8bit", "learning_rate=0.002", "weight_decay=0.7"};
  for (const char* name : {"encoder.0.weight", "encoder.0.bias", "encoder.norm.weight"})
    EXPECT_TRUE(same_bits(*find_tensor(params, name), alone(name, of_encoder))) << name;
  EXPECT_TRUE(same_bits(*find_tensor(params, "decoder.weight"), alone("decoder.weight", {})));
  EXPECT_TRUE(same_bits(*find_tensor(params, "decoder.bias"), alone("decoder.bias", {"weight_decay=0"})));
  EXPECT_FALSE(same_bits(*find_tensor(params, "decoder.bias"), alone("decoder.bias", {})));
}

TEST(Groups, RatesKeepTheirProportion) {
  EXPECT_EQ(rate_of({0, 0.3, {}}, 0.3, 0.1), 0.1);
  EXPECT_EQ(rate_of({0, 0.07, {}}, 0.3, 0.3), 0.07) << "its own at the highest, to the bit";
  EXPECT_DOUBLE_EQ(rate_of({0, 0.03, {}}, 0.3, 0.1), 0.01);
}

TEST(Groups, WhatIsFrozenHasNoGradientAndNoState) {
  const TrainingSettings t = training(kPlainRun);
  const NamedTensors params = network(), before = copies(params);
  const ParameterGroups groups = resolve(t, {frozen({"encoder.*"})}, kAuto, params).value();
  EXPECT_THAT(group_lines(groups, t), ElementsAre("2 parameters of 91 weights: weight_decay 0",
                                                  "3 parameters of 4.94k weights: frozen"));
  give_gradients(params, 0);
  freeze(groups);
  const auto optimizer = std::make_unique<StepOptimizer>(t, groups);
  for (int step = 0; step < 2; ++step) {
    torch::Tensor loss = torch::zeros({});
    for (const auto& [name, param] : params) loss = loss + param.square().sum();
    loss.backward();
    optimizer->step();
  }
  const Saved states = saved(*optimizer);
  for (std::size_t i = 0; i < params.size(); ++i) {
    const bool is_frozen = params[i].first.starts_with("encoder.");
    EXPECT_EQ(params[i].second.grad().defined(), !is_frozen) << params[i].first;
    EXPECT_EQ(same_bits(params[i].second, before[i].second), is_frozen) << params[i].first;
    EXPECT_EQ(states.numbers.contains(params[i].first), !is_frozen) << params[i].first;
  }
}

TEST(Groups, PlannedBytesAreThoseOfEachGroupsFormat) {
  Words words = kPlainRun;
  const TrainingSettings t = training(words);
  const NamedTensors params = network();
  GroupSettings small = group({"encoder.0.weight"}), bf16 = group({"decoder.*"});
  small.state = octavo::StateFormat::int4;
  bf16.state = octavo::StateFormat::bf16;
  const ParameterGroups groups = resolve(t, {small, bf16, frozen({"scale"})}, kAuto, params).value();
  const StepOptimizer::Bytes planned = planned_states(t, groups).bytes;
  const auto optimizer = std::make_unique<StepOptimizer>(t, groups);
  take_steps(*optimizer, groups.parameters, 1, 1);
  EXPECT_EQ(optimizer->bytes().states, planned.states);
  // 4,800 weights have codes and one scale per 128; 5,490 weights have bf16 states, and 140 have fp32 states.
  EXPECT_EQ(planned.states, 2 * (4800 / 2 + 4 * 38) + 2 * 2 * 5490 + 2 * 4 * 140);
  EXPECT_EQ(planned_states(t, with_states(groups, octavo::StateFormat::fp32)).bytes.states,
            2 * 4 * (4800 + 5490 + 140));
}

// Saved states are in the model's order and can be resumed with any groups.
TEST(Groups, SavedStatesContinueToTheSameBits) {
  const TrainingSettings t = training({"optimizer=adamw_8bit", "master_weights=24"});
  const auto make_one = [&](const NamedTensors& params) {
    GroupSettings decoder = group({"decoder.*"});
    decoder.state = octavo::StateFormat::bf16;  // rounded stochastically, so the parameters' numbers matter
    return std::make_unique<StepOptimizer>(t, resolve(t, {decoder}, kAuto, params).value());
  };
  NamedTensors params = network();
  for (auto& [name, tensor] : params) tensor = tensor.detach().to(torch::kBFloat16).requires_grad_();
  const auto uninterrupted = make_one(params);
  take_steps(*uninterrupted, params, 1, 3);
  const NamedTensors resumed = copies(params);
  const Saved at_save = saved(*uninterrupted);
  EXPECT_EQ(at_save.tensors[0].first.rfind("encoder.0.weight.", 0), 0U);
  EXPECT_EQ(at_save.tensors.back().first, "scale.master");
  take_steps(*uninterrupted, params, 4, 6);
  const auto optimizer = make_one(resumed);
  const Status status = optimizer->load(copies(at_save.tensors), at_save.numbers);
  ASSERT_TRUE(status.ok()) << status.message();
  take_steps(*optimizer, resumed, 4, 6);
  EXPECT_TRUE(same_bits(resumed, params));
}

}  // namespace
}  // namespace octavo_train
