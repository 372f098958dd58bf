// Tests the conversion of a checkpoint's states and weights for a run with other settings: values within a
// step of the coarser format, and the same bits where nothing has to change.
// SPDX-License-Identifier: MIT
#include "train/optim/convert_states.h"
#include "tests/train/libtorch_reference.h"
#include "tests/train/parts_support.h"

#include <octavo/codec.h>
#include <octavo/describe.h>
#include <octavo/formats.h>

#include <algorithm>
#include <cmath>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The settings, weights and states that a run has saved.
struct Checkpoint {
  Words words;
  bool of_libtorch = false;  // saved by an earlier version, by LibTorch's own optimizer
  NamedTensors params;
  Saved states;
};

NamedTensors parameters_of_run(const TrainingSettings& t) {
  NamedTensors out;
  for (const auto& [name, tensor] : make_parameters())
    out.emplace_back(name, tensor.detach()
                               .to(has_bf16_weights(t) ? torch::kBFloat16 : torch::kFloat32)
                               .clone()
                               .requires_grad_());
  return out;
}

Checkpoint trained(const Words& words) {
  const TrainingSettings t = training(words);
  Checkpoint run{words, false, parameters_of_run(t), {}};
  const auto optimizer = make(t, run.params);
  take_steps(*optimizer, run.params, 1, 3);
  run.states = saved(*optimizer);
  return run;
}

Checkpoint trained_by_libtorch(const Words& words, int steps = 3) {
  const TrainingSettings t = training(words);
  Checkpoint run{words, true, parameters_of_run(t), {}};
  LibtorchReference optimizer(t, run.params);
  optimizer.take_steps(1, steps);
  run.states = optimizer.saved();
  return run;
}

struct Converted {
  Status status;
  std::vector<std::string> changes;
  Checkpoint run;  // resumes with other settings
};

// Resumes `from` with other settings and trains `more` steps.
Converted converted(const Checkpoint& from, const Words& words, int more = 0) {
  Converted out;
  const TrainingSettings t = training(words);
  out.run = {words, false, parameters_of_run(t), {}};
  const ParameterGroups groups = one_group(t, out.run.params);
  nlohmann::ordered_json numbers = from.states.numbers;
  SavedRun run{copies(from.params), copies(from.states.tensors), numbers};
  auto changes = convert_states(t, groups, run);
  out.status = changes.status();
  if (!changes.ok()) return out;
  out.changes = *changes;
  const auto optimizer = make(t, out.run.params);
  out.status = optimizer->load(run.states, numbers);
  if (!out.status.ok()) return out;
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < out.run.params.size(); ++i) {
    EXPECT_EQ(out.run.params[i].second.scalar_type(), run.weights[i].second.scalar_type());
    out.run.params[i].second.copy_(run.weights[i].second);
  }
  take_steps(*optimizer, out.run.params, 4, 3 + more);
  out.run.states = saved(*optimizer);
  return out;
}

const Words kFp32 = {"optimizer=adamw", "compute_dtype=float32"};
const Words k8bit = {"optimizer=adamw_8bit", "compute_dtype=float32"};
const Words k4bit = {"optimizer=adamw_4bit", "compute_dtype=float32"};

// Returns a moment in fp32, decoded from its saved format.
torch::Tensor values(const Checkpoint& run, std::size_t param, std::size_t slot) {
  const auto& [name, tensor] = run.params[param];
  const TrainingSettings t = training(run.words);
  const octavo::Slot& described =
      octavo::slots(t.optimizer.algorithm, group_config(t, t.optimizer.algorithm).switches)[slot];
  if (run.of_libtorch)
    return find_tensor(run.states.tensors, name + "." + std::string(described.name))->flatten();
  octavo::MomentSpec spec;
  spec.moment = described.moment;
  spec.format =
      octavo::parse_state_format(run.states.numbers.at(name).at("format").get<std::string>()).value();
  spec.numel = tensor.numel();
  spec.ndim = static_cast<int>(tensor.dim());
  std::ranges::copy(tensor.sizes(), spec.shape.begin());
  const std::string part = name + ".moment_" + std::to_string(slot);
  const torch::Tensor codes = *find_tensor(run.states.tensors, part);
  const torch::Tensor* scales = find_tensor(run.states.tensors, part + "_scale");
  torch::Tensor out = torch::empty({tensor.numel()});
  const auto count = static_cast<std::size_t>(scales == nullptr ? 0 : scales->numel());
  EXPECT_TRUE(decode(spec, {static_cast<const std::byte*>(codes.data_ptr()), codes.nbytes()},
                     {scales == nullptr ? nullptr : scales->data_ptr<float>(), count},
                     {out.data_ptr<float>(), static_cast<std::size_t>(out.numel())})
                  .ok());
  return out;
}

// Returns the largest distance between a value in [-1, 1] ([0, 1] for a second moment) and the nearest code
// of a format with blocks.
double largest_distance(octavo::StateFormat format, octavo::Moment moment) {
  const int bits = describe(format)->moment[static_cast<std::size_t>(moment)].bits;
  octavo::MomentSpec spec;
  spec.moment = moment;
  spec.format = describe(format)->format_for_1d;  // the same codes in blocks
  spec.numel = std::int64_t{1} << bits;
  std::vector<std::byte> codes;
  for (int code = 0; code < 256; code += bits == 4 ? 0x22 : 1)
    codes.push_back(static_cast<std::byte>(bits == 4 ? code + 1 : code));  // 0x01, 0x23: every code once
  codes.resize(static_cast<std::size_t>(layout(spec)->codes_bytes));
  std::vector<float> scales(static_cast<std::size_t>(layout(spec)->scales), 1.0F), decoded(1U << bits);
  EXPECT_TRUE(decode(spec, codes, scales, decoded).ok());
  std::erase_if(decoded, [](float value) { return !std::isfinite(value); });
  std::vector<double> map(decoded.begin(), decoded.end());
  std::ranges::sort(map);
  const double top = std::max(std::fabs(map.front()), std::fabs(map.back()));
  const double low = moment == octavo::Moment::first ? -1.0 : 0.0;
  double out = std::max({0.0, map.front() / top - low, 1.0 - map.back() / top});
  for (std::size_t i = 1; i < map.size(); ++i) out = std::max(out, (map[i] - map[i - 1]) / top / 2);
  return out;
}

// Returns the largest change of a value when it is converted to a format.
torch::Tensor bound(octavo::StateFormat to, octavo::Moment moment, const torch::Tensor& before) {
  if (to == octavo::StateFormat::fp32) return torch::zeros_like(before);
  if (to == octavo::StateFormat::bf16) return before.abs() * 0x1p-8;
  // A block's scale is at most the largest absolute value of the tensor. Its reciprocal, the two
  // multiplications with it and the midpoint between two codes are rounded, each to half an ulp of a number
  // up to 1.
  return torch::full_like(before, largest_distance(to, moment) + 4 * 0x1p-24) * before.abs().max();
}

TEST(ConvertStates, WhatFitsKeepsItsBits) {
  for (const Words& words : {kFp32, k8bit, k4bit, Words{"optimizer=lion_8bit", "master_weights=24"},
                             Words{"optimizer=adamw_4bit_rank1", "master_weights=32"},
                             Words{"optimizer=sgd", "momentum=0", "compute_dtype=float32"}}) {
    const Checkpoint run = trained(words);
    const Converted same = converted(run, words);
    ASSERT_TRUE(same.status.ok()) << same.status.message();
    EXPECT_THAT(same.changes, IsEmpty());
    EXPECT_TRUE(same.run.states == run.states);
    EXPECT_TRUE(same_bits(same.run.params, run.params));
  }
}

// Values stay within half the largest step between two codes of the target.
TEST(ConvertStates, EveryFormatToEveryOther) {
  for (const octavo::StateFormat from : octavo::all_state_formats()) {
    const Checkpoint run = trained({"optimizer=adamw_" + std::string(name(from)), "compute_dtype=float32"});
    for (const octavo::StateFormat to : octavo::all_state_formats()) {
      SCOPED_TRACE(std::string(name(from)) + " to " + std::string(name(to)));
      const Converted other =
          converted(run, {"optimizer=adamw_" + std::string(name(to)), "compute_dtype=float32"});
      ASSERT_TRUE(other.status.ok()) << other.status.message();
      EXPECT_EQ(other.run.states.numbers.at("wide").at("format"), name(to));
      EXPECT_EQ(other.run.states.numbers.at("wide").at("step"), 3);
      EXPECT_TRUE(same_bits(other.run.params, run.params));
      for (const std::size_t param : {0U, 1U, 2U}) {
        for (const std::size_t slot : {0U, 1U}) {
          const torch::Tensor before = values(run, param, slot), after = values(other.run, param, slot);
          const octavo::StateFormat stored = octavo::format_for(to, before.numel()).value();
          const octavo::Moment moment = slots(octavo::Algorithm::adamw, 0)[slot].moment;
          EXPECT_TRUE(((after - before).abs() <= bound(stored, moment, before)).all().item<bool>())
              << param << slot;
          if (slot == 1) {
            EXPECT_FALSE(((after == 0) & (before > 0)).any().item<bool>()) << "a variance became 0";
          }
        }
      }
    }
  }
}

TEST(ConvertStates, ARunGoesOnNearlyAsItWould) {
  const Checkpoint run = trained(k8bit);
  const Converted finer = converted(run, kFp32, 5), coarser = converted(run, k4bit, 5);
  const Converted same = converted(run, k8bit, 5);
  for (std::size_t i = 0; i < run.params.size(); ++i) {
    const torch::Tensor moved = same.run.params[i].second - run.params[i].second;
    const double step = moved.norm().item<double>();
    EXPECT_LE((finer.run.params[i].second - same.run.params[i].second).norm().item<double>(), 0.05 * step);
    EXPECT_LE((coarser.run.params[i].second - same.run.params[i].second).norm().item<double>(), 0.3 * step);
  }
  EXPECT_THAT(coarser.changes, ElementsAre("optimizer states: 8bit -> 4bit (2 parameters)"))
      << "the small one is fp32 in both";
}

// The states of a checkpoint that LibTorch's optimizer saved have the values of Octavo's fp32 states.
TEST(ConvertStates, StatesOfLibtorchAreRead) {
  for (const Words& words : {kFp32, Words{"optimizer=adam", "amsgrad=true", "compute_dtype=float32"},
                             Words{"optimizer=sgd", "momentum=0.9", "compute_dtype=float32"}}) {
    const Checkpoint run = trained_by_libtorch(words);
    const Converted other = converted(run, words);
    ASSERT_TRUE(other.status.ok()) << other.status.message();
    EXPECT_THAT(other.changes, ElementsAre("optimizer states: fp32 (plain LibTorch) -> fp32 (3 parameters)"));
    const TrainingSettings t = training(words);
    const std::size_t slots =
        octavo::slots(t.optimizer.algorithm, group_config(t, t.optimizer.algorithm).switches).size();
    for (const std::size_t param : {0U, 1U, 2U}) {
      for (std::size_t slot = 0; slot < slots; ++slot)
        EXPECT_TRUE(same_bits(values(other.run, param, slot), values(run, param, slot))) << param << slot;
    }
    // The momentum continues; a first step would start it anew.
    const Converted there = converted(run, words, 3);
    const Checkpoint here = trained_by_libtorch(words, 6);
    for (std::size_t i = 0; i < run.params.size(); ++i) {
      const torch::Tensor &a = there.run.params[i].second, &b = here.params[i].second;
      EXPECT_LE((a - b).abs().max().item<double>(), 1e-6) << words[0];
      EXPECT_GT((b - run.params[i].second).abs().max().item<double>(), 1e-4);
    }
  }
  EXPECT_THAT(converted(trained_by_libtorch(kFp32), k8bit).changes,
              ElementsAre("optimizer states: fp32 (plain LibTorch) -> 8bit (2 parameters)",
                          "optimizer states: fp32 (plain LibTorch) -> fp32 (1 parameter)"));
}

// Returns the weight in fp32, with its master bits if it has them.
torch::Tensor whole_weight(const Checkpoint& run, std::size_t i) {
  const auto& [name, param] = run.params[i];
  if (param.scalar_type() == torch::kFloat32) return param.detach().flatten();
  const torch::Tensor halves = param.detach().contiguous();
  const torch::Tensor* bits = find_tensor(run.states.tensors, name + ".master");
  const octavo::WeightStore store = bits == nullptr                       ? octavo::WeightStore::nearest
                                    : bits->scalar_type() == torch::kInt8 ? octavo::WeightStore::residual8
                                                                          : octavo::WeightStore::residual16;
  torch::Tensor out = torch::empty({param.numel()});
  const auto count = static_cast<std::size_t>(param.numel());
  EXPECT_TRUE(
      octavo::join_weights(store, {static_cast<const std::uint16_t*>(halves.data_ptr()), count},
                           {bits == nullptr ? nullptr : static_cast<const std::byte*>(bits->data_ptr()),
                            bits == nullptr ? 0 : bits->nbytes()},
                           {out.data_ptr<float>(), count})
          .ok());
  return out;
}

TEST(ConvertStates, MastersAndPrecisions) {
  struct Precision {
    Words words;
    double step;  // relative rounding step of a weight
  };
  const std::vector<Precision> all = {{{"optimizer=adamw_8bit", "compute_dtype=float32"}, 0},
                                      {{"optimizer=adamw_8bit", "master_weights=32"}, 0},
                                      {{"optimizer=adamw_8bit", "master_weights=24"}, 0x1p-16},
                                      {{"optimizer=adamw_8bit", "master_weights=stochastic"}, 0x1p-8},
                                      {{"optimizer=adamw_8bit", "master_weights=none"}, 0x1p-8}};
  for (const Precision& from : all) {
    const Checkpoint run = trained(from.words);
    for (const Precision& to : all) {
      SCOPED_TRACE(testing::PrintToString(from.words) + " to " + testing::PrintToString(to.words));
      const Converted other = converted(run, to.words);
      ASSERT_TRUE(other.status.ok()) << other.status.message();
      for (std::size_t i = 0; i < run.params.size(); ++i) {
        const torch::Tensor before = whole_weight(run, i), after = whole_weight(other.run, i);
        EXPECT_TRUE(((after - before).abs() <= to.step * before.abs()).all().item<bool>());
        if (from.words == to.words) {
          EXPECT_TRUE(same_bits(before, after));
        }
      }
      EXPECT_TRUE(converted(run, to.words, 2).status.ok());
    }
  }
  EXPECT_THAT(converted(trained(all[2].words), all[0].words).changes,
              ElementsAre("weights: bfloat16 with a 24-bit master -> float32 (3 parameters)"));
}

// Tests a parameter with another memory order: moments and master bits have the same order.
TEST(ConvertStates, AnotherMemoryOrder) {
  const TrainingSettings t = training(kFp32);
  const auto make_params = [] {
    torch::manual_seed(3);
    return NamedTensors{
        {"w", torch::randn({3, 5, 7, 2}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_()}};
  };
  const NamedTensors params = make_params();
  LibtorchReference plain(t, params);
  plain.take_steps(1, 2);
  Saved states = plain.saved();
  const ParameterGroups groups = one_group(t, params);
  SavedRun run{copies(params), states.tensors, states.numbers};
  ASSERT_TRUE(convert_states(t, groups, run).ok());
  const NamedTensors other = make_params();
  const auto native = make(t, other);
  take_steps(*native, other, 1, 2);
  const Saved expected = saved(*native);
  for (const char* part : {"w.moment_0", "w.moment_1"}) {
    const torch::Tensor got = *find_tensor(run.states, part), want = *find_tensor(expected.tensors, part);
    // The clipping factor has the relative error of the norm, for which torch adds 210 squares in fp32.
    EXPECT_LE((got - want).abs().max().item<double>(), 210 * 0x1p-24 * want.abs().max().item<double>())
        << part;
    EXPECT_GT(want.abs().max().item<double>(), 0);
  }
}

TEST(ConvertStates, FrozenParametersLoseTheirStates) {
  const Checkpoint run = trained(k8bit);
  Words words = k8bit;
  words.emplace_back("groups=[{params: deep, freeze: true}]");
  const TrainingSettings t = training(words);
  const ParameterGroups groups = resolve_groups(t, run.params).value();
  nlohmann::ordered_json numbers = run.states.numbers;
  SavedRun saved_run{copies(run.params), copies(run.states.tensors), numbers};
  EXPECT_THAT(convert_states(t, groups, saved_run).value(),
              ElementsAre("states of parameters that are frozen now: left out (1 parameter)"));
  EXPECT_FALSE(numbers.contains("deep"));
  StepOptimizer optimizer(t, groups);
  EXPECT_TRUE(optimizer.load(saved_run.states, numbers).ok());
  EXPECT_TRUE(same_bits(saved_run.weights, run.params));
}

TEST(ConvertStates, Errors) {
  const auto error = [](const Checkpoint& from, const Words& words) {
    return converted(from, words).status.message();
  };
  EXPECT_THAT(error(trained(k8bit), {"optimizer=lamb_8bit", "compute_dtype=float32"}),
              HasSubstr("wide: its optimizer states are those of adamw, expected lamb"));
  EXPECT_THAT(converted(trained(k8bit), {"optimizer=adam_8bit", "compute_dtype=float32"}).changes, IsEmpty())
      << "adam and adamw keep the same moments";
  // Options add moments that the checkpoint does not have.
  EXPECT_THAT(
      error(trained(kFp32), {"optimizer=adamw_8bit", "amsgrad=true", "compute_dtype=float32"}),
      AllOf(HasSubstr("there is no wide.moment_2, which AdamW keeps"), HasSubstr("other options of it")));
  Checkpoint torn = trained(k8bit);
  torn.states.tensors[0].second = torn.states.tensors[0].second.slice(0, 1).clone();
  EXPECT_THAT(error(torn, k4bit),
              HasSubstr("wide.moment_0: [convert] from codes: got 4269 bytes, expected 4270"));
  torn = trained(k8bit);
  torn.states.numbers["deep"]["format"] = "9bit";
  EXPECT_THAT(error(torn, k4bit), AllOf(HasSubstr("deep: "), HasSubstr("9bit")));
  // load(), not the conversion, reports what is missing.
  Checkpoint renamed = trained(k8bit);
  renamed.states.numbers["other"] = renamed.states.numbers["deep"];
  renamed.states.tensors.emplace_back("other.moment_0", torch::zeros({3}));
  EXPECT_THAT(error(renamed, k4bit), HasSubstr("1 tensors that belong to no parameter of this model"));
}

}  // namespace
}  // namespace octavo_train
