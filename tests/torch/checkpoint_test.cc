// save, load and set_state of the LibTorch adapter: a run that is saved and loaded resumes with the same
// bits, and states that do not fit change nothing.
// SPDX-License-Identifier: MIT
#include "tests/torch/support.h"

#include <memory>
#include <sstream>

namespace test {
namespace {

using octavo::torch::Adam;
using octavo::torch::AdamW;
using octavo::torch::Lion;
using octavo::torch::ParamState;
using octavo::torch::SGD;
using testing::HasSubstr;

std::string saved(const torch::optim::Optimizer& optimizer) {
  std::ostringstream out;
  torch::save(optimizer, out);
  return out.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  std::istringstream in(bytes);
  torch::load(optimizer, in);
}

template <class Class, class Options>
void expect_continues(const Options& options, torch::ScalarType type) {
  const Tensors params = make_params(type);
  Class uninterrupted(params, options);
  run(uninterrupted, params, 1, 3);
  const Tensors at_save = copies(params), resumed = copies(params);
  const std::string bytes = saved(uninterrupted);
  run(uninterrupted, params, 4, 6);

  Class optimizer(resumed, Options(0.5));  // everything comes from the archive
  run(optimizer, resumed, 90, 91);         // also over a state that is there
  for (std::size_t i = 0; i < resumed.size(); ++i) resumed[i].set_data(at_save[i].detach());
  load(optimizer, bytes);
  EXPECT_EQ(static_cast<const Options&>(optimizer.param_groups()[0].options()).lr(), options.lr());
  run(optimizer, resumed, 4, 6);
  EXPECT_TRUE(same_bits(resumed, params)) << options.state();
  EXPECT_TRUE(same_bits(states(optimizer), states(uninterrupted))) << options.state();
}

TEST(TorchCheckpoint, ContinuesToTheSameBits) {
  for (const std::string& format : formats()) {
    expect_continues<AdamW>(AdamWOptions(1e-2).state(format).seed(3), torch::kFloat32);
    expect_continues<AdamW>(AdamWOptions(1e-2).state(format).master("24").skip_nonfinite(true),
                            torch::kBFloat16);
  }
  expect_continues<AdamW>(AdamWOptions(1e-2).state("8bit").block_size(64).amsgrad(true), torch::kFloat32);
  expect_continues<Adam>(AdamOptions(1e-2).state("4bit").master("stochastic").seed(9), torch::kBFloat16);
  expect_continues<SGD>(SGDOptions(1e-2).state("8bit").momentum(0.9).clip_grad_norm(1), torch::kFloat32);
  expect_continues<SGD>(SGDOptions(1e-2), torch::kFloat32);
  expect_continues<Lion>(LionOptions(1e-2).state("fp8"), torch::kFloat32);
}

TEST(TorchCheckpoint, StatesOfLateParameters) {
  const Tensors params = make_params();
  AdamW optimizer(params, AdamWOptions(1e-2));
  params[0].mutable_grad() = gradient(params[0], 1);
  optimizer.step();
  run(optimizer, params, 2, 3);
  const Tensors copy = copies(params);
  AdamW other(copy, AdamWOptions(1e-2));
  load(other, saved(optimizer));
  EXPECT_EQ(other.state_of(copy[0])->step(), 3);
  EXPECT_EQ(other.state_of(copy[1])->step(), 2);
  run(optimizer, params, 4, 5);
  run(other, copy, 4, 5);
  EXPECT_TRUE(same_bits(params, copy));
}

// Archives that version 0.1 has written, after three steps of these.
Tensors old_params(torch::ScalarType type) {
  Tensors out = {torch::arange(320).to(torch::kFloat32).mul(0.015625).view({16, 20}),
                 torch::arange(7).to(torch::kFloat32).sub(3)};
  for (torch::Tensor& p : out) p = p.to(type).requires_grad_();
  return out;
}

void old_steps(octavo::torch::Optimizer& optimizer, const Tensors& params, int from, int to) {
  for (int step = from; step <= to; ++step) {
    for (const torch::Tensor& p : params) {
      const torch::Tensor numbers = torch::arange(p.numel()).remainder(17).sub(8 - step);
      p.mutable_grad() = numbers.to(torch::kFloat32).mul(0.0625).view(p.sizes()).to(p.scalar_type());
    }
    optimizer.step();
  }
}

void expect_continues_from(octavo::torch::Optimizer& uninterrupted, const Tensors& params,
                           octavo::torch::Optimizer& optimizer, const Tensors& resumed,
                           const std::string& file) {
  old_steps(uninterrupted, params, 1, 3);
  torch::load(optimizer, std::string(OCTAVO_TEST_DATA) + "/" + file);
  EXPECT_TRUE(same_bits(states(optimizer), states(uninterrupted)));
  for (std::size_t i = 0; i < params.size(); ++i) resumed[i].set_data(params[i].detach().clone());
  old_steps(uninterrupted, params, 4, 5);
  old_steps(optimizer, resumed, 4, 5);
  EXPECT_TRUE(same_bits(resumed, params));
  EXPECT_TRUE(same_bits(states(optimizer), states(uninterrupted)));
}

TEST(TorchCheckpoint, ArchivesOfVersion01) {
  const auto groups = [](const Tensors& p) {
    std::vector<ParamGroup> out;
    out.emplace_back(Tensors{p[0]}, std::make_unique<AdamWOptions>(
                                        AdamWOptions().state("8bit").block_size(64).min_quantized_size(64)));
    out.emplace_back(Tensors{p[1]}, std::make_unique<AdamWOptions>(AdamWOptions().weight_decay(0)));
    return out;
  };
  const Tensors params = old_params(torch::kBFloat16), resumed = old_params(torch::kBFloat16);
  AdamW uninterrupted(groups(params),
                      AdamWOptions(1e-2).betas({0.8, 0.95}).amsgrad(true).master("24").seed(3));
  AdamW optimizer({ParamGroup({resumed[0]}), ParamGroup({resumed[1]})});
  expect_continues_from(uninterrupted, params, optimizer, resumed, "adamw_0_1.pt");
  const auto& second = static_cast<const AdamWOptions&>(optimizer.param_groups()[1].options());
  EXPECT_EQ(second.betas(), octavo::torch::Betas(0.8, 0.95));
  EXPECT_TRUE(second.amsgrad());
  EXPECT_TRUE(second.skip_nonfinite());
  EXPECT_EQ(second.weight_decay(), 0.0);

  const Tensors weights = old_params(torch::kFloat32), again = old_params(torch::kFloat32);
  SGD plain(weights, SGDOptions(1e-2).momentum(0.9).nesterov(true).clip_grad_norm(0.5));
  SGD loaded(again);
  expect_continues_from(plain, weights, loaded, again, "sgd_0_1.pt");
}

TEST(TorchCheckpoint, AnArchiveThatDoesNotFitChangesNothing) {
  const Tensors params = make_params();
  AdamW optimizer(params, AdamWOptions(1e-2).state("8bit"));
  run(optimizer, params, 1, 2);
  const Tensors before = states(optimizer);
  const auto error = [&](const torch::optim::Optimizer& other) {
    const std::string bytes = saved(other);
    const std::string message = error_of([&] { load(optimizer, bytes); });
    EXPECT_TRUE(same_bits(states(optimizer), before));
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 1e-2);
    return message;
  };
  const Tensors own = copies(params);
  EXPECT_THAT(error(Adam(own)),
              HasSubstr("octavo::torch::AdamW: load: the archive is of Adam, expected AdamW"));
  EXPECT_THAT(error(torch::optim::AdamW(own)), HasSubstr("it was not saved by octavo::torch"));
  EXPECT_THAT(error(AdamW({ParamGroup({own[0]}), ParamGroup({own[1]})})),
              HasSubstr("the archive has 2 parameter groups, expected 1"));
  EXPECT_THAT(error(AdamW({own[0]})), HasSubstr("group 0 of the archive has 1 parameters, expected 2"));
  const Tensors others = {own[0], torch::zeros({34}).requires_grad_()};
  AdamW larger(others, AdamWOptions(0.5).state("8bit"));
  run(larger, others, 1, 1);
  EXPECT_THAT(error(larger), HasSubstr("parameter 1 of group 0: its fp32 state has 136 bytes"));
}

std::unique_ptr<ParamState> copy_of(const ParamState& state) {
  auto out = std::make_unique<ParamState>(state);
  out->count = state.count.clone();
  ParamState::each(*out, [](const std::string&, torch::Tensor& t) {
    if (t.defined()) t = t.clone();
  });
  return out;
}

TEST(TorchSetState, ContinuesToTheSameBits) {
  for (const std::string& format : formats()) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      const auto options = AdamWOptions(1e-2).state(format).master("24").skip_nonfinite(true).seed(3);
      const Tensors params = make_params(type);
      AdamW uninterrupted(params, options);
      run(uninterrupted, params, 1, 3);
      const Tensors resumed = copies(params), fresh = copies(params);
      AdamW optimizer(resumed, options), over_others(fresh, options);
      run(over_others, fresh, 90, 91);
      for (std::size_t i = 0; i < params.size(); ++i) {
        const ParamState& state = *uninterrupted.state_of(params[i]);
        optimizer.set_state(resumed[i], copy_of(state));
        over_others.set_state(fresh[i], copy_of(state));
        fresh[i].set_data(params[i].detach().clone());
      }
      EXPECT_EQ(optimizer.state_of(resumed[0])->step(), 3);
      EXPECT_TRUE(same_bits(states(optimizer), states(uninterrupted)));
      run(uninterrupted, params, 4, 6);
      run(optimizer, resumed, 4, 6);
      run(over_others, fresh, 4, 6);
      EXPECT_TRUE(same_bits(resumed, params)) << format;
      EXPECT_TRUE(same_bits(fresh, params)) << format;
      EXPECT_TRUE(same_bits(states(optimizer), states(uninterrupted))) << format;
    }
  }
}

TEST(TorchSetState, WhatDoesNotFitChangesNothing) {
  const Tensors params = make_params(), other = copies(params);
  AdamW optimizer(params, AdamWOptions(1e-2).state("8bit")), donor(other, AdamWOptions(1e-2).state("8bit"));
  run(optimizer, params, 1, 2);
  run(donor, other, 1, 3);
  const Tensors before = states(optimizer);
  const auto error = [&](const torch::Tensor& param, std::unique_ptr<ParamState> state) {
    const std::string message = error_of([&] { optimizer.set_state(param, std::move(state)); });
    EXPECT_TRUE(same_bits(states(optimizer), before)) << message;
    return message;
  };
  const ParamState &large = *donor.state_of(other[0]), &small = *donor.state_of(other[1]);
  EXPECT_THAT(error(other[0], copy_of(large)),
              HasSubstr("octavo::torch::AdamW: set_state: the parameter is not of this optimizer"));
  EXPECT_THAT(error(params[0], copy_of(small)),
              HasSubstr("parameter 0 of group 0: its fp32 state has 132 bytes and 0 scales, expected 17080"));
  EXPECT_THAT(error(params[1], copy_of(large)), HasSubstr("parameter 1 of group 0: its 8bit state has 4270"));
  auto finer = copy_of(large);
  finer->block_size = 64;
  EXPECT_THAT(error(params[0], std::move(finer)), HasSubstr("17 scales, expected 4270 and 67"));
  auto unknown = copy_of(large);
  unknown->format = "7bit";
  EXPECT_THAT(error(params[0], std::move(unknown)), HasSubstr("7bit"));
  auto gaps = copy_of(large);
  gaps->codes[0] = torch::zeros({2 * 4270}, torch::kUInt8).slice(0, 0, 2 * 4270, 2);
  EXPECT_THAT(error(params[0], std::move(gaps)), HasSubstr("gaps in memory"));
  EXPECT_EQ(error_of([&] { optimizer.set_state(params[0], copy_of(large)); }), "no error");
  EXPECT_EQ(optimizer.state_of(params[0])->step(), 3);
}

// Master bits of a wrong size or with gaps were zeroed in silence, or written past their end.
TEST(TorchSetState, MastersThatDoNotFit) {
  const Tensors params = make_params(torch::kBFloat16), other = copies(params);
  AdamW optimizer(params, AdamWOptions(1e-2).master("24")), donor(other, AdamWOptions(1e-2).master("24"));
  run(optimizer, params, 1, 2);
  run(donor, other, 1, 3);
  const ParamState& good = *donor.state_of(other[0]);
  const auto error = [&](const torch::Tensor& master) {
    auto state = copy_of(good);
    state->master = master;
    return error_of([&] { optimizer.set_state(params[0], std::move(state)); });
  };
  EXPECT_THAT(error(torch::ones({4269}, torch::kInt8)),
              HasSubstr("parameter 0 of group 0: its master has 4269 bytes, expected 4270"));
  EXPECT_THAT(error(torch::ones({4270}, torch::kInt16)), HasSubstr("has 8540 bytes, expected 4270"));
  EXPECT_THAT(error(torch::ones({2 * 4270}, torch::kInt8).slice(0, 0, 2 * 4270, 2)),
              HasSubstr("its master has gaps in memory"));
  EXPECT_EQ(error(good.master.clone()), "no error");
  EXPECT_TRUE(same_bits(optimizer.state_of(params[0])->master, good.master));

  // The option changed between steps.
  static_cast<AdamWOptions&>(optimizer.param_groups()[0].options()).master("32");
  give_gradients(params, 4);
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("its master has 4270 bytes, expected 8540"));
  // Without a master there is nothing to fit.
  static_cast<AdamWOptions&>(optimizer.param_groups()[0].options()).master("none");
  EXPECT_EQ(error_of([&] { optimizer.step(); }), "no error");
  EXPECT_FALSE(optimizer.state_of(params[0])->master.defined());
}

}  // namespace
}  // namespace test
