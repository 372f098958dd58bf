// Tests predictions of steps on tensors without memory: allocations counted by hand, autocast compared with
// torch's on the CPU, and complete predictions of both tasks, compared with each other and with known sums.
// SPDX-License-Identifier: MIT
#include "train/base/numbers.h"
#include "train/config/config.h"
#include "train/optim/precision.h"
#include "train/predict/advise.h"
#include "train/predict/host.h"
#include "train/predict/operators.h"
#include "train/predict/trace_device.h"
#include "train/predict/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

using octavo::plan::Event;
using octavo::plan::Owner;
using octavo::plan::Work;
using ::testing::HasSubstr;

// The bytes held at the end, and the peak.
struct Bytes {
  std::int64_t now = 0, most = 0;
};
Bytes count(const std::vector<Event>& events) {
  std::map<std::int64_t, std::int64_t> held;
  Bytes out;
  for (const Event& event : events) {
    if (event.bytes < 0)
      out.now -= held[event.id];
    else
      out.now += held[event.id] = event.bytes;
    out.most = std::max(out.most, out.now);
  }
  return out;
}

torch::Tensor fake(at::IntArrayRef sizes, torch::ScalarType type = torch::kFloat32) {
  return torch::empty(sizes, torch::TensorOptions(type).device(torch::kMeta));
}

TEST(TraceDevice, CountsWhatIsHeldAndViewsOnce) {
  const TraceDevice device;
  {
    const torch::Tensor x = fake({4, 256}), view = x.view({1024}), same = x.t();
    EXPECT_EQ(count(device.events()).now, 4096);
    torch::Tensor y = x + 1;
    EXPECT_EQ(count(device.events()).now, 8192);
    y.add_(1).relu_();
    EXPECT_EQ(count(device.events()).now, 8192);
    y = torch::relu(y);  // the old tensor is freed once the new one exists
    EXPECT_EQ(count(device.events()).now, 8192);
    EXPECT_EQ(count(device.events()).most, 12288);
  }
  EXPECT_EQ(count(device.events()).now, 0);
}

// y = relu(x w) and its mean: forward keeps x, w and y, and backward makes dy, dx and dw.
TEST(TraceDevice, KeepsWhatTheBackwardPassNeeds) {
  TraceDevice device;
  const torch::Tensor x = fake({64, 32}).requires_grad_(), w = fake({32, 16}).requires_grad_();
  const std::int64_t inputs = 4 * (64 * 32 + 32 * 16), y = 4 * 64 * 16;
  device.forget_kernels();
  torch::Tensor loss = torch::relu(x.mm(w)).mean();
  EXPECT_EQ(count(device.events()).now, inputs + y + 4);  // relu keeps its result, and x.mm(w) is freed
  loss.backward();
  loss.reset();
  EXPECT_EQ(count(device.events()).now, 2 * inputs);
  std::int64_t products = 0;
  for (const FakeKernel& each : device.kernels()) products += each.kernel.work == Work::product ? 1 : 0;
  EXPECT_EQ(products, 3);
}

// The bytes are those that torch 2.11 allocated on an H200.
TEST(TraceDevice, PartialSumsTakeMemoryForAMoment) {
  const auto h200 = octavo::plan::find_gpu("h200").value();
  EXPECT_EQ(row_sum_bytes(h200, 32'000, 256), 65'536'000);
  EXPECT_EQ(row_sum_bytes(h200, 128'000, 256), 138'412'032);
  EXPECT_EQ(row_sum_bytes(h200, 64, 4096), 0) << "one block has all rows";
  TraceDevice device;
  device.set_gpu(h200);
  const torch::Tensor x = fake({8, 4000, 256}, torch::kBFloat16);
  const Bytes before = count(device.events());
  const torch::Tensor sum = x.sum({0, 1});
  EXPECT_EQ(count(device.events()).most - before.now, 65'536'000 + 512);
  EXPECT_EQ(count(device.events()).now - before.now, 512);
  const torch::Tensor other = x.sum({2});
  EXPECT_EQ(count(device.events()).most - before.now, 65'536'000 + 512);
}

TEST(TraceDevice, OwnersAreThoseOfTheMoment) {
  TraceDevice device;
  device.set_owner(Owner::weights);
  const torch::Tensor w = fake({1024});
  device.set_owner(Owner::activations);
  const torch::Tensor x = fake({256});
  device.set_owner_of(x, Owner::gradients);
  device.add_allocation(100, Owner::states);
  const auto use = octavo::plan::simulate(device.events()).value();
  const auto of = [&](Owner owner) { return use.owners[static_cast<std::size_t>(owner)]; };
  EXPECT_EQ(of(Owner::weights), 4096);
  EXPECT_EQ(of(Owner::gradients), 1024);
  EXPECT_EQ(of(Owner::states), 100);
  EXPECT_EQ(of(Owner::activations), 0);
}

TEST(TraceDevice, TakesWhatIsMadeOnTheCpuWhileItIsAsked) {
  TraceDevice device;
  device.redirect_cpu_allocations(true);
  const torch::nn::Linear layer(8, 4);
  device.redirect_cpu_allocations(false);
  EXPECT_TRUE(layer->weight.is_meta());
  EXPECT_TRUE(torch::ones({2}).is_cpu());
  device.forget_all_but({layer->weight, layer->bias});
  EXPECT_EQ(device.events().size(), 2U);
  EXPECT_EQ(count(device.events()).now, 4 * (8 * 4 + 4));
}

TEST(TraceDevice, IsOneAtATimeAndLeavesNothing) {
  {
    const TraceDevice device;
    EXPECT_THROW(TraceDevice(), c10::Error);
  }
  const TraceDevice again;
  EXPECT_TRUE(again.events().empty());
}

// For the operators that models use, torch's autocast lists are the same on the CPU.
TEST(TraceDevice, AutocastGivesTheTypesOfTorchs) {
  const auto types = [](const torch::Device& device) {
    const AutocastScope autocast(device, ComputeType::bfloat16);
    const auto at = torch::TensorOptions(torch::kFloat32).device(device);
    const torch::Tensor x = torch::ones({4, 8}, at), w = torch::ones({8, 4}, at);
    const torch::Tensor y = x.mm(w);
    return std::vector<torch::ScalarType>{y.scalar_type(), torch::linear(x, w.t()).scalar_type(),
                                          (y + x.mm(w)).scalar_type(), x.add(1).scalar_type(),
                                          torch::mse_loss(y, y).scalar_type()};
  };
  const auto real = types(torch::kCPU);
  const TraceDevice device;
  EXPECT_EQ(types(TraceDevice::device()), real);
  TraceDevice::forget_casts();
}

// Octavo's rules give the shapes and types that torch computes on the CPU.
TEST(TraceDevice, RulesGiveTheShapesOfTheCpu) {
  namespace F = torch::nn::functional;
  using Inputs = std::vector<torch::Tensor>;
  using Function = std::function<torch::Tensor(const Inputs&)>;
  const auto of = [](const torch::Device& device) {
    return [device](at::IntArrayRef sizes, torch::ScalarType type = torch::kFloat32) {
      return torch::ones(sizes, torch::TensorOptions(type).device(device));
    };
  };
  const auto inputs = [&](const torch::Device& device) {
    const auto make = of(device);
    return Inputs{make({2, 4, 48}), make({6, 2, 5}),     make({48}),         make({2, 3}, torch::kInt64),
                  make({9, 7}),     make({2, 4, 9, 11}), make({4, 1, 3, 3}), make({4})};
  };
  const std::vector<std::pair<const char*, Function>> all = {
      {"rfft", [](const Inputs& x) { return torch::fft::rfft(x[0], 31); }},
      {"rfftn",
       [](const Inputs& x) {
         return torch::fft::rfftn(x[0], c10::nullopt, {{1, 2}});
       }},
      {"stft",
       [](const Inputs& x) {
         return torch::stft(x[0][0], 16, 4, 16, x[2].slice(0, 0, 16), true, "reflect", false, c10::nullopt,
                            true);
       }},
      {"relu", [](const Inputs& x) { return torch::relu(x[0]); }},
      {"glu", [](const Inputs& x) { return torch::glu(x[0], 1); }},
      {"conv1d", [](const Inputs& x) { return torch::conv1d(x[0], x[1].slice(1, 0, 2), {}, 2, 3, 2, 2); }},
      {"conv2d",
       [](const Inputs& x) {
         return torch::conv2d(x[5], x[6], x[7], {2, 1}, {1, 0}, 1, 4);
       }},
      {"layer_norm", [](const Inputs& x) { return torch::layer_norm(x[0], {48}, x[2], x[2]); }},
      {"batch_norm",
       [](const Inputs& x) { return torch::batch_norm(x[0], x[7], x[7], {}, {}, true, 0.1, 1e-5, false); }},
      {"embedding", [](const Inputs& x) { return torch::embedding(x[4], x[3]); }},
      {"index_select", [](const Inputs& x) { return x[0].index_select(1, x[3][0]); }},
      {"where",
       [](const Inputs& x) { return torch::where(x[7] > 0, x[5][0].sum(), x[7].to(torch::kFloat64)); }},
  };
  for (const auto& [name, function] : all) {
    const auto result = [&](Inputs x) {
      for (torch::Tensor& each : x)
        if (each.is_floating_point()) each.requires_grad_();
      const torch::Tensor y = function(x);
      if (!y.is_complex()) y.sum().backward();  // no model needs gradients through a transform of its input
      std::string text = c10::str(y.sizes(), " ", y.scalar_type(), ":");
      for (const torch::Tensor& each : x)
        if (each.grad().defined()) text += c10::str(" ", each.grad().sizes(), " ", each.grad().scalar_type());
      return text;
    };
    const std::string expected = result(inputs(torch::kCPU));
    const TraceDevice device;
    EXPECT_EQ(result(inputs(TraceDevice::device())), expected) << name;
  }
}

TEST(TraceDevice, NamesAnOperatorThatItCannotRun) {
  const TraceDevice device;
  try {
    (void)torch::nonzero(fake({4}));
    FAIL() << "nonzero has no size before it is computed";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("nonzero"));
  }
}

class Predictions : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("octavo-plan-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 4000; ++i) text << "once upon a time ";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] LoadWith bdh() const {
    const std::string config =
        "model: {name: bdh, n_layer: 2, n_embd: 64, n_head: 4, mlp_internal_dim_multiplier: 16}\n"
        "data: {train: " +
        (folder_ / "text.txt").string() +
        ", block_size: 64}\n"
        "training: {optimizer: adamw_8bit, compute_dtype: bfloat16, max_steps: 10,"
        " per_device_train_batch_size: 8}\n";
    return [config](const std::vector<std::string>& words) { return parse(config, "test", words); };
  }
  [[nodiscard]] static LoadWith speech() {
    const std::string config =
        "model: {name: fastconformer, vocab_size: 64, encoder: {feat_in: 16, subsampling_conv_channels: 16, "
        "n_layers: 2,"
        " d_model: 64, n_heads: 4}, decoder: {pred_hidden: 64, pred_rnn_layers: 1}, joint: {joint_hidden: "
        "64}}\n"
        "data: {generator: {clips: 64, validation_clips: 4, seconds: 4, tokens: 10}}\n"
        "training: {optimizer: adamw_8bit, compute_dtype: bfloat16, max_steps: 10, "
        "per_device_train_batch_size: 4}\n";
    return [config](const std::vector<std::string>& words) { return parse(config, "test", words); };
  }
  static PredictionRequest on(const char* gpu, std::int64_t count = 1) {
    PredictionRequest request;
    request.gpu = octavo::plan::find_gpu(gpu).value();
    request.num_gpus = count;
    return request;
  }
  static Prediction plan(const LoadWith& load, const std::vector<std::string>& words = {},
                         const PredictionRequest& request = on("h100")) {
    return predict(load(words).value().settings, request).value();
  }
  std::filesystem::path folder_;
};

TEST_F(Predictions, TheHostThatWasMeasuredCounts) {
  // On the CPU the layers are computed too: this takes longer than a launch, and less than a second.
  const auto here = measure_launch(::torch::Device(::torch::kCPU));
  ASSERT_TRUE(here.ok()) << here.status().message();
  EXPECT_GT(*here, 1e-6);
  EXPECT_LT(*here, 1e-2);
  EXPECT_FALSE(measure_launch(::torch::Device(::torch::kCUDA, 99)).ok());

  PredictionRequest request = on("h100");
  const Prediction assumed = plan(bdh(), {}, request);
  EXPECT_EQ(assumed.launch_seconds, 0);
  request.launch_seconds = 90e-6;
  const Prediction slow = plan(bdh(), {}, request);
  EXPECT_NEAR(slow.compute.host_seconds - assumed.compute.host_seconds,
              (90e-6 - kFastLaunch) * static_cast<double>(slow.launches), 1e-9);
  EXPECT_EQ(slow.slow_host_seconds(), assumed.slow_host_seconds());
  EXPECT_GT(slow.step_seconds, assumed.step_seconds);
  EXPECT_EQ(slow.compute.gpu_seconds, assumed.compute.gpu_seconds);
  EXPECT_EQ(slow.bound(), "the host, which launches kernels");
  const auto has = [](const Prediction& of, const std::string& text) {
    return std::ranges::any_of(prediction_lines(of),
                               [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(has(slow, "90 us each, by what was measured here"));
  EXPECT_FALSE(has(slow, "a slow one"));
  EXPECT_TRUE(has(assumed, "a slow one"));
  EXPECT_FALSE(has(assumed, "measured here"));
}

// Decoder and encoders are 64 x 1024, embedding and head 256 x 64. Weights are bf16, states 8-bit with one
// scale per 256 elements.
TEST_F(Predictions, StaticMemoryIsExact) {
  const Prediction found = plan(bdh());
  const std::int64_t parameters = 3 * 64 * 1024 + 2 * 256 * 64;
  EXPECT_EQ(found.parameters, parameters);
  EXPECT_EQ(found.of(Owner::weights), 2 * parameters);
  EXPECT_EQ(found.states.states, 2 * parameters + 2 * 4 * parameters / 256);
  EXPECT_EQ(found.states.master, parameters);
  const Prediction wide = plan(bdh(), {"training.optimizer=adamw"});
  EXPECT_EQ(wide.states.states, 8 * parameters);
  // Activations are equal, so only the states differ at the peak.
  EXPECT_EQ(wide.of(Owner::activations), found.of(Owner::activations));
}

TEST_F(Predictions, ActivationsGrowWithRowsAndShrinkWithCheckpointing) {
  const auto activations = [&](const std::vector<std::string>& words) {
    return plan(bdh(), words).of(Owner::activations);
  };
  const std::int64_t four = activations({"batch_size=4"}), eight = activations({"batch_size=8"}),
                     sixteen = activations({"batch_size=16"});
  EXPECT_NEAR(static_cast<double>(sixteen - eight), 2.0 * static_cast<double>(eight - four),
              0.02 * static_cast<double>(sixteen));
  EXPECT_LT(activations({"model.gradient_checkpointing=true", "batch_size=16"}), sixteen);
}

TEST_F(Predictions, EverySettingOfATrainingRuns) {
  for (const LoadWith& load : {bdh(), speech()}) {
    const Prediction plain = plan(load);
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"compute_dtype=float32", "optimizer=adamw"},
          {"use_fp8=true", "fp8.select=always"},
          {"use_fp8=true"},
          {"model.gradient_checkpointing=true"},
          {"gradient_accumulation_steps=3"},
          {"offload=stream"},
          {"offload=host", "offload_gradients=true"},
          {"compute_dtype=float16"}}) {
      const Prediction other = plan(load, words);
      EXPECT_GT(other.step_seconds, 0) << words.front();
      EXPECT_GT(other.memory.allocated, other.of(Owner::weights)) << words.front();
      EXPECT_EQ(other.parameters, plain.parameters);
    }
  }
  EXPECT_GT(plan(bdh(), {"offload=stream"}).states.host_states, 0);
  for (const char* const head : {"model.head=rnnt", "model.head=ctc"})
    EXPECT_GT(plan(speech(), {head}).step_seconds, 0);
}

// In bf16 the CPU updates a copy of each weight with a copy of its gradient. Sums over micro-batches are
// fp32.
TEST_F(Predictions, CountCopiesInHostMemory) {
  const auto copies = [&](const std::vector<std::string>& words) {
    const Prediction found = plan(bdh(), words);
    return static_cast<double>(found.states.host_copies) / static_cast<double>(found.parameters);
  };
  EXPECT_EQ(copies({}), 0);
  EXPECT_EQ(copies({"offload=stream"}), 0);
  EXPECT_EQ(copies({"offload=host"}), 4);
  EXPECT_EQ(copies({"offload=stream", "offload_gradients=true"}), 2);
  EXPECT_EQ(copies({"offload=host", "offload_gradients=true"}), 4);
  EXPECT_EQ(copies({"offload=host", "offload_gradients=true", "gradient_accumulation_steps=3"}), 6);
  const auto gradients = [&](const std::vector<std::string>& words) {
    return plan(bdh(), words).of(Owner::gradients);
  };
  EXPECT_LT(gradients({"offload=host", "offload_gradients=true", "gradient_accumulation_steps=3"}),
            gradients({"offload=host"}))
      << "the sums over passes are in host memory too";
  const Prediction ranks = plan(bdh(), {"offload=stream", "offload_gradients=true"}, on("h100", 2));
  EXPECT_EQ(ranks.states.host_copies, 0) << "ranks keep gradients";
  PredictionRequest cpu;
  cpu.cpu = true;
  EXPECT_EQ(plan(bdh(), {"offload=auto"}, cpu).states.host_states, 0) << "they are in host memory as it is";
  EXPECT_THAT(prediction_lines(plan(bdh(), {"offload=host"})),
              testing::Contains(HasSubstr("of copies of weights and gradients")));
}

// A step needs less memory than an evaluation of many rows, and more than one of few rows.
TEST_F(Predictions, CountEvaluations) {
  const Prediction few = plan(bdh(), {"per_device_eval_batch_size=1"});
  EXPECT_EQ(few.peak, few.memory.allocated);
  const Prediction many = plan(bdh(), {"batch_size=1", "per_device_eval_batch_size=64"}),
                   step = plan(bdh(), {"batch_size=1", "per_device_eval_batch_size=1"});
  EXPECT_EQ(many.memory.allocated, step.memory.allocated);
  EXPECT_GT(many.peak, many.memory.allocated);
  EXPECT_GE(many.total() - step.total(), many.peak - step.peak - (2 << 20));
  EXPECT_EQ(many.step_seconds, step.step_seconds);
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : memory_rows(many)) sum += bytes;
  EXPECT_EQ(sum, many.total());
  const std::vector<std::string> lines = prediction_lines(many);
  EXPECT_THAT(lines, testing::Contains(HasSubstr("the peak is an evaluation's")));
  // There are at most as many rows as samples to evaluate.
  EXPECT_LT(plan(bdh(), {"per_device_eval_batch_size=64", "max_eval_samples=2"}).evaluation_rows, 3);
  EXPECT_EQ(plan(speech(), {"per_device_eval_batch_size=64"}).evaluation_rows, 4);
  // The advice is a smaller evaluation batch, which does not slow down a step.
  PredictionRequest small = on("h100");
  small.gpu.memory = many.total() - 1;
  const LoadWith load = [this](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"batch_size=1", "per_device_eval_batch_size=64"};
    all.insert(all.end(), words.begin(), words.end());
    return bdh()(all);
  };
  const auto advice = advise(load, small, plan(load, {}, small)).value();
  ASSERT_FALSE(advice.empty());
  EXPECT_THAT(advice, testing::Contains(testing::Field(
                          &Advice::words, testing::Contains(HasSubstr("per_device_eval_batch_size")))));
}

TEST_F(Predictions, RanksDivideStatesAndTalk) {
  const Prediction one = plan(bdh()), ddp = plan(bdh(), {}, on("h100", 4)),
                   zero = plan(bdh(), {"training.parallel=zero1"}, on("h100", 4));
  EXPECT_EQ(ddp.states.states, one.states.states);
  EXPECT_LT(zero.states.states, one.states.states / 3);
  EXPECT_GT(zero.states.states, one.states.states / 5);
  EXPECT_GT(ddp.units_per_second, 2 * one.units_per_second);
  EXPECT_GE(ddp.step_seconds, one.step_seconds);
  // With ddp, buckets are complete. With zero2, there is one part of each and two more buckets, used in
  // turns.
  const Prediction two = plan(bdh(), {"training.parallel=zero2"}, on("h100", 4));
  EXPECT_EQ(two.of(Owner::communication) > 0, true);
  EXPECT_EQ(ddp.of(Owner::communication), 0);
  EXPECT_LT(two.of(Owner::gradients), ddp.of(Owner::gradients));
  EXPECT_GE(ddp.of(Owner::weights), one.of(Owner::weights));
}

TEST_F(Predictions, SayWhereTheHostMayBeTheLimit) {
  const Prediction small = plan(bdh());
  EXPECT_NEAR(small.slow_host_seconds() / small.compute.host_seconds, 35.0 / 18.0, 0.01);
  EXPECT_THAT(prediction_lines(small), testing::Contains(HasSubstr("the host may be the limit: to launch ")));
  const Prediction large = plan(bdh(), {"batch_size=2048", "per_device_eval_batch_size=1"});
  EXPECT_THAT(prediction_lines(large), testing::Not(testing::Contains(HasSubstr("the host may be"))));
}

TEST_F(Predictions, RanksDivideAGlobalBatch) {
  const std::vector<std::string> words = {"global_batch_size=64"};
  EXPECT_EQ(plan(bdh(), words).passes, 8);
  EXPECT_EQ(plan(bdh(), words, on("h100", 4)).passes, 2);
  const auto uneven = predict(bdh()(words).value().settings, on("h100", 3));
  EXPECT_THAT(uneven.status().message(), HasSubstr("global_batch_size"));
}

TEST_F(Predictions, AreTheSameTwiceAndDoNotTouchTheGenerator) {
  const torch::Tensor before = at::globalContext().defaultGenerator(torch::kCPU).get_state().clone();
  const std::string first = prediction_json(plan(bdh())).dump();
  EXPECT_EQ(first, prediction_json(plan(bdh())).dump());
  EXPECT_TRUE(at::globalContext().defaultGenerator(torch::kCPU).get_state().equal(before));
}

TEST_F(Predictions, SolvesForTheLargestBatch) {
  PredictionRequest small = on("8GB");
  small.gpu.memory = small.gpu.context + (std::int64_t{200} << 20);
  const Solution found = solve(Solve::batch, bdh(), small).value();
  ASSERT_EQ(found.words.size(), 1U);
  const auto rows = std::stoll(found.words.front().substr(found.words.front().find('=') + 1));
  const auto fits = [&](std::int64_t tried) {
    return plan(bdh(), {"batch_size=" + std::to_string(tried)}, small).fits();
  };
  EXPECT_TRUE(fits(rows));
  EXPECT_FALSE(fits(rows + 1));
  EXPECT_THAT(solve(Solve::length, bdh(), small).value().text, HasSubstr("data.block_size="));
  EXPECT_THAT(solve(Solve::model, bdh(), small).value().text, HasSubstr("model.n_embd="));
}

// A step has 24 rows: 3 GPUs can divide them, 2 cannot.
TEST_F(Predictions, GpusAreThoseThatCanDivideAGlobalBatch) {
  const LoadWith load = [this](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"optimizer=adamw", "global_batch_size=24",
                                    "model.mlp_internal_dim_multiplier=512"};
    all.insert(all.end(), words.begin(), words.end());
    return bdh()(all);
  };
  const std::int64_t one = plan(load).total(),
                     three = plan(load, {"training.parallel=zero2"}, on("h100", 3)).total();
  ASSERT_LT(three, one);
  PredictionRequest small = on("h100");
  small.gpu.memory = three;
  EXPECT_EQ(solve(Solve::gpus, load, small).value().num_gpus, 3);
  small.gpu.memory = small.gpu.context;
  EXPECT_THAT(solve(Solve::gpus, load, small).value().text, HasSubstr("training.global_batch_size"));
  // The number of micro-batches follows from the rows.
  small = on("h100", 3);
  small.gpu.memory = three;
  const auto advice = advise(load, small, plan(load, {}, small)).value();
  EXPECT_THAT(advice, testing::Contains(testing::Field(
                          &Advice::words, testing::ElementsAre("training.per_device_train_batch_size=4"))));
  // The points of the page have the micro-batches of one rank.
  const auto data = what_if("run.yaml", load, on("h100", 3), plan(load, {}, on("h100", 3))).value();
  for (const auto& point : data["points"])
    EXPECT_EQ(point["units"].get<std::int64_t>(),
              point["rows"].get<std::int64_t>() * point["length"].get<std::int64_t>());
}

TEST_F(Predictions, AdvisesWhatSavesAndSaysWhatItCosts) {
  PredictionRequest small = on("h100");
  const LoadWith load = [this](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"optimizer=adamw", "batch_size=16"};
    all.insert(all.end(), words.begin(), words.end());
    return bdh()(all);
  };
  const Prediction now = plan(load);
  small.gpu.memory = now.total() - (std::int64_t{4} << 20);
  const auto advice = advise(load, small, plan(load, {}, small)).value();
  ASSERT_FALSE(advice.empty());
  EXPECT_TRUE(advice.front().fits);
  for (const Advice& each : advice) {
    const Prediction then = plan(load, each.words, small);
    EXPECT_EQ(each.saves, now.total() - then.total()) << each.why;
    EXPECT_EQ(each.fits, then.fits()) << each.why;
  }
}

// Tests the lines of the message about a full device, with predicted numbers.
class FullDevices : public Predictions {
 protected:
  static std::vector<std::string> helps(const LoadWith& load, const std::vector<std::string>& words,
                                        const PredictionRequest& request = on("h100")) {
    const Settings settings = load(words).value().settings;
    const Prediction now = predict(settings, request).value();
    const std::unique_ptr<Task> task = make_task(settings.task);
    EXPECT_TRUE(task->open({settings, "", nullptr}).ok());
    FullDevice full{settings, *task, &now};
    full.fp8 = true;
    return memory_help(full);
  }
  // Returns the bytes that steps need, without evaluations.
  static std::int64_t need(const Prediction& plan) { return plan.memory.reserved + plan.gpu.context; }
};

TEST_F(FullDevices, FirstHalfTheBatchWithItsPlannedMemoryThenTheAdviceInItsOrder) {
  const std::vector<std::string> words = {"batch_size=256", "block_size=256"};
  const PredictionRequest request = on("h100");
  const Prediction now = plan(bdh(), words),
                   half = plan(bdh(), {"batch_size=128", "block_size=256", "gradient_accumulation_steps=2"});
  EXPECT_EQ(now.gradient_sums, 0);
  EXPECT_EQ(half.gradient_sums, 4 * half.trained) << "4 bytes a parameter";
  const auto lines = helps(bdh(), words);
  ASSERT_GE(lines.size(), 2U);
  EXPECT_THAT(
      lines.front(),
      ::testing::AllOf(
          ::testing::StartsWith("per_device_train_batch_size=128 gradient_accumulation_steps=2 (" +
                                bytes_text(need(half)) + " instead of " + bytes_text(need(now)) + ", "),
          ::testing::EndsWith("% time: the same step in micro-batches of 1/2; fp32 sums of gradients add " +
                              bytes_text(half.gradient_sums) + ")")));
  // The other lines are in the order of advise().
  const LoadWith load = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return bdh()(all);
  };
  std::size_t at = 1;
  for (const Advice& each : advise(load, request, now).value()) {
    if (each.relief == Relief::micro_batch || each.relief == Relief::evaluation) continue;
    std::string first = each.words.front();
    if (first.starts_with("training.")) first = first.substr(9);
    ASSERT_LT(at, lines.size());
    EXPECT_THAT(lines[at++], ::testing::StartsWith(first));
  }
  EXPECT_EQ(at, lines.size());
  EXPECT_THAT(lines, ::testing::Contains(::testing::StartsWith("model.gradient_checkpointing=true (")));
}

TEST_F(FullDevices, AccumulationThatIsThereNeedsNoMoreSums) {
  const std::vector<std::string> words = {"batch_size=256", "block_size=256",
                                          "gradient_accumulation_steps=6"};
  const auto lines = helps(bdh(), words);
  EXPECT_THAT(lines.front(),
              ::testing::AllOf(
                  ::testing::StartsWith("per_device_train_batch_size=128 gradient_accumulation_steps=12 ("),
                  ::testing::EndsWith("the same step in micro-batches of 1/2)")));
  std::vector<std::string> checkpointed = words;
  checkpointed.emplace_back("model.gradient_checkpointing=true");
  EXPECT_THAT(helps(bdh(), checkpointed), ::testing::Each(::testing::Not(HasSubstr("checkpointing"))));
}

// With 6,300,000 parameters and two rows of 16 bytes, sums of gradients need more than half of the
// activations.
TEST_F(FullDevices, HalfTheBatchThatNeedsMoreIsNotProposedFirst) {
  const std::vector<std::string> words = {"batch_size=2", "block_size=16",
                                          "model.mlp_internal_dim_multiplier=512"};
  const Prediction now = plan(bdh(), words), half = plan(bdh(), {"batch_size=1", "block_size=16",
                                                                 "model.mlp_internal_dim_multiplier=512",
                                                                 "gradient_accumulation_steps=2"});
  ASSERT_GT(need(half), need(now));
  const auto lines = helps(bdh(), words);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), ::testing::Not(HasSubstr("per_device_train_batch_size")));
  EXPECT_EQ(lines.back(),
            "not per_device_train_batch_size=1 gradient_accumulation_steps=2: smaller micro-batches save " +
                bytes_text(half.gradient_sums + need(now) - need(half)) +
                ", and fp32 sums of gradients add " + bytes_text(half.gradient_sums));
}

TEST_F(Predictions, SayWhatIsWrongWithARunFirst) {
  const auto bad = predict(bdh()({"data.train=/no/such/file"}).value().settings, on("h100"));
  EXPECT_THAT(bad.status().message(), HasSubstr("/no/such/file"));
}

TEST_F(Predictions, TheDataOfAPageHasPointsAndFormats) {
  const auto data = what_if("run.yaml", bdh(), on("h100"), plan(bdh())).value();
  EXPECT_EQ(data["states"].size(), 3U);
  EXPECT_EQ(data["points"].size(), 16U);
  std::int64_t sum = 0;
  for (const auto& row : data["memory_rows"]) sum += row[1].get<std::int64_t>();
  EXPECT_EQ(sum, data["total"].get<std::int64_t>());
  EXPECT_FALSE(data["now"]["checkpointing"].get<bool>());
}

TEST(PlanAgainst, SaysHowFarApart) {
  Prediction plan;
  plan.memory.allocated = 1100;
  plan.peak = 1500;
  plan.step_seconds = 0.2;
  EXPECT_THAT(compare_with_measured(plan, {1000, 0.25, /*evaluated=*/false}), HasSubstr("(+10.0%)"));
  EXPECT_THAT(compare_with_measured(plan, {1000, 0.25}), HasSubstr("(+50.0%)"));
  EXPECT_THAT(compare_with_measured(plan, {1000, 0.25}),
              HasSubstr("200 ms a step, measured 250 ms (-20.0%)"));
  EXPECT_THAT(compare_with_measured(plan, {1000, 0.25, true, /*settled=*/false}),
              HasSubstr("measured 250 ms in the first steps"));
  Measured slow{1000, 0.25};
  EXPECT_FALSE(comparison_json(plan, slow).contains("data_waited"));
  slow.data_waited = 0.01;
  EXPECT_THAT(compare_with_measured(plan, slow), testing::Not(HasSubstr("data")));
  slow.data_waited = 0.05;
  EXPECT_THAT(compare_with_measured(plan, slow), HasSubstr("(-20.0%); it waited 50 ms of that for data"));
  EXPECT_EQ(comparison_json(plan, slow)["data_waited"], 0.05);
  // The GPU was busy during the wait: the step is hardly longer than predicted.
  slow.step_seconds = 0.21;
  EXPECT_THAT(compare_with_measured(plan, slow), testing::Not(HasSubstr("data")));
}

TEST(PlanAgainst, ComparesBatchesOfOneSizeOnly) {
  Prediction plan;
  plan.memory.allocated = plan.peak = 1500;
  plan.step_seconds = 0.2;
  EXPECT_TRUE(is_as_large(plan, 0)) << "all batches have the same length";
  plan.padded_length = 1000;
  EXPECT_TRUE(is_as_large(plan, 980));
  EXPECT_FALSE(is_as_large(plan, 900));
  Measured found{1000, 0.1};
  found.usual_batch = false;
  EXPECT_EQ(compare_with_measured(plan, found), "plan: 1.50 kB, measured 1.00 kB (+50.0%)");
  found.largest_batch = false;
  EXPECT_EQ(compare_with_measured(plan, found), "");
  EXPECT_EQ(comparison_json(plan, found)["largest_batch"], false);
  found.usual_batch = true;
  EXPECT_EQ(compare_with_measured(plan, found), "plan: 200 ms a step, measured 100 ms (+100.0%)");
}

}  // namespace
}  // namespace octavo_train
