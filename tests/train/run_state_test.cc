// Tests checkpoints of a run: everything is restored bit by bit, and a checkpoint that does not match is
// rejected as a whole, with the name of the mismatch.
// SPDX-License-Identifier: MIT
#include "train/checkpoint/checkpoint.h"

#include "tests/train/parts_support.h"
#include "tests/train/text_files.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/tensors.h"
#include "train/io/text_file.h"
#include "train/run/training_state.h"

#include <fstream>
#include <limits>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A minimal run.
struct TinyRun {
  explicit TinyRun(const Words& words, NamedTensors given = {})
      : training(octavo_train::training(words)),
        parameters(!given.empty()
                       ? std::move(given)
                       : make_parameters(training.compute_dtype == ComputeType::bfloat16 ? torch::kBFloat16
                                                                                         : torch::kFloat32)),
        optimizer(make(training, parameters)),
        scaler(torch::kCPU, training.compute_dtype) {}

  [[nodiscard]] std::vector<Checkpointable*> parts() { return {&model_part, &scaler_part, &optimizer_part}; }

  TrainingSettings training;
  NamedTensors parameters;
  std::unique_ptr<StepOptimizer> optimizer;
  LossScaler scaler;
  ModelComponent model_part{parameters};
  LossScaleComponent scaler_part{scaler};
  OptimizerComponent optimizer_part{*optimizer};
};

RunState some_state() {
  RunState state;
  state.step = 12, state.position = 345, state.samples = 67, state.sampler_start = 89, state.units = 101112;
  state.skipped = 3, state.skipped_in_a_row = 2, state.loss_sum = 0.1 + 0.2, state.loss_count = 5;
  state.first_step = 7;
  return state;
}

void expect_equal(const RunState& a, const RunState& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_EQ(a.sampler_start, b.sampler_start);
  EXPECT_EQ(a.units, b.units);
  EXPECT_EQ(a.skipped, b.skipped);
  EXPECT_EQ(a.skipped_in_a_row, b.skipped_in_a_row);
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  EXPECT_EQ(a.loss_count, b.loss_count);
  EXPECT_EQ(a.first_step, b.first_step);
}

const Words kBf16 = {"optimizer=adamw_8bit", "master_weights=24"};
const Words kFp16 = {"optimizer=adamw", "fp16=true"};

// Saves `run` as checkpoint-12.
std::string save(const TextFiles& files, TinyRun& run, const RunState& state = some_state()) {
  const std::vector<Checkpointable*> parts = run.parts();
  const std::vector<const Checkpointable*> saved_parts(parts.begin(), parts.end());
  const auto saved = save_checkpoint(files.path("run"), state, {{"name", "some data"}},
                                     collect_components(saved_parts), "a: config\n");
  EXPECT_TRUE(saved.ok()) << saved.status().message();
  EXPECT_EQ(saved->path, "checkpoint-12");
  const std::string path = files.path("run/checkpoint-12");
  EXPECT_TRUE(verify_checkpoint(path).ok());
  return path;
}

TEST(RunState, ComesBackInBits) {
  for (const Words& words : {kBf16, kFp16, Words{"optimizer=lion_4bit", "master_weights=stochastic"},
                             Words{"optimizer=sgd_fp8"}}) {
    const TextFiles files;
    TinyRun run(words);
    take_steps(*run.optimizer, run.parameters, 1, 3);
    if (run.scaler.active()) run.scaler.update(torch::ones({}));
    const std::string path = save(files, run);

    NamedTensors zeros;
    for (const auto& [name, param] : run.parameters)
      zeros.emplace_back(name, torch::zeros_like(param).requires_grad_());
    TinyRun loaded(words, zeros);
    const auto state = load_checkpoint(path, loaded.parts());
    ASSERT_TRUE(state.ok()) << state.status().message();
    expect_equal(*state, some_state());
    EXPECT_TRUE(same_bits(loaded.parameters, run.parameters));
    EXPECT_TRUE(saved(*loaded.optimizer) == saved(*run.optimizer));
    if (run.scaler.active()) {
      EXPECT_EQ(loaded.scaler.scale().item<float>(), 32768.0F);
    }
    for (TinyRun* each : {&run, &loaded}) take_steps(*each->optimizer, each->parameters, 4, 5);
    EXPECT_TRUE(same_bits(loaded.parameters, run.parameters));
  }
}

TEST(RunState, HasTheFilesOfTheTask) {
  const TextFiles files;
  TinyRun run(kBf16);
  const std::vector<Checkpointable*> parts = run.parts();
  const std::vector<const Checkpointable*> all(parts.begin(), parts.end());
  const std::string bytes("a\0b\n", 4);
  ASSERT_TRUE(save_checkpoint(files.path("run"), some_state(), {}, collect_components(all), "", {},
                              {{"words.model", bytes}})
                  .ok());
  const std::string path = files.path("run/checkpoint-12");
  EXPECT_TRUE(verify_checkpoint(path, std::vector<std::string_view>{"words.model"}).ok());
  const auto read = read_text_file(path + "/words.model", 100);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, bytes);
}

TEST(RunState, OfARunWithoutSteps) {
  const TextFiles files;
  TinyRun run(kBf16), loaded(kBf16);
  RunState state = some_state();
  state.loss_sum = std::numeric_limits<double>::quiet_NaN();  // JSON has no NaN
  const auto read = load_checkpoint(save(files, run, state), loaded.parts());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->loss_sum, 0.0);
  EXPECT_TRUE(saved(*loaded.optimizer).tensors.empty());
}

// Returns the error of loading the checkpoint into `run`, which must stay unchanged.
std::string load_error(const std::string& path, TinyRun& run) {
  take_steps(*run.optimizer, run.parameters, 50, 51);
  const NamedTensors before = copies(run.parameters);
  const Saved states = saved(*run.optimizer);
  nlohmann::ordered_json scale, scale_after;
  run.scaler.save(scale);
  const auto state = load_checkpoint(path, run.parts());
  EXPECT_FALSE(state.ok());
  EXPECT_TRUE(same_bits(run.parameters, before)) << state.status().message();
  EXPECT_TRUE(saved(*run.optimizer) == states) << state.status().message();
  run.scaler.save(scale_after);
  EXPECT_EQ(scale, scale_after) << state.status().message();
  return state.status().message();
}

TEST(RunState, TensorsThatDifferAreNamed) {
  const TextFiles files;
  TinyRun run(kBf16);
  take_steps(*run.optimizer, run.parameters, 1, 2);
  const std::string path = save(files, run);
  NamedTensors other = make_parameters(torch::kBFloat16);
  other[0].second = torch::zeros({71, 61}, torch::kBFloat16).requires_grad_();
  other[2].first = "tiny";
  TinyRun differs(kBf16, other);
  EXPECT_THAT(load_error(path, differs),
              AllOf(HasSubstr("checkpoint-12: its weights are of another model or precision"),
                    HasSubstr("wide is BF16 [70, 61], expected BF16 [71, 61]"),
                    HasSubstr("tiny is not there, expected BF16 [33]"),
                    HasSubstr("small is BF16 [33], which this model has not"), Not(HasSubstr("deep"))));
  TinyRun wide({"optimizer=adamw_8bit", "compute_dtype=float32"});
  EXPECT_THAT(load_error(path, wide), HasSubstr("small is BF16 [33], expected F32 [33]"));
  EXPECT_THAT(load_weights(path, wide.parameters).message(), HasSubstr("expected F32 [33]"));
}

TEST(RunState, ManyDifferencesAreCounted) {
  const TextFiles files;
  TinyRun run(kBf16);
  const std::string path = save(files, run);
  NamedTensors many;
  for (const char* name : {"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"})
    many.emplace_back(name, torch::zeros({2}, torch::kBFloat16).requires_grad_());
  TinyRun differs(kBf16, many);
  EXPECT_THAT(load_error(path, differs),
              AllOf(HasSubstr("p7 is not there"), HasSubstr("; and 4 more"), Not(HasSubstr("p8"))));
}

TEST(RunState, OptimizersThatDifferAreNamed) {
  const TextFiles files;
  TinyRun run(kBf16);
  take_steps(*run.optimizer, run.parameters, 1, 2);
  const std::string path = save(files, run);
  TinyRun other({"optimizer=adamw_4bit", "master_weights=24"});
  EXPECT_THAT(load_error(path, other),
              AllOf(HasSubstr("checkpoint-12: its optimizer states are of another kind"),
                    HasSubstr("wide: 8bit states"), HasSubstr("expected 4bit")));
}

void rewrite(const std::string& path, const std::string& from, const std::string& to) {
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  std::ofstream(path) << text.substr(0, at) << to << text.substr(at + from.size());
}

TEST(RunState, StateFilesOfOthers) {
  const TextFiles files;
  TinyRun run(kFp16);
  take_steps(*run.optimizer, run.parameters, 1, 2);
  const auto error = [&](const std::string& from, const std::string& to) {
    const std::string path = save(files, run);
    rewrite(path + "/state.json", from, to);
    TinyRun other(kFp16);
    return load_error(path, other);
  };
  EXPECT_THAT(error("\"format\": 1", "\"format\": 9"), HasSubstr("state.json: format 9, expected 1"));
  EXPECT_THAT(error("{", "["), HasSubstr("it was not saved by octavo train"));
  EXPECT_THAT(error("\"units\"", "\"unets\""), HasSubstr("tokens"));  // the name in version 0.1
  EXPECT_THAT(error("\"loss_scale\"", "\"loss_scala\""), HasSubstr("it has no loss_scale"));
  EXPECT_THAT(error("\"block_size\": 0", "\"block_size\": \"x\""), HasSubstr("state.json"));
  EXPECT_THAT(error("\"good_steps\"", "\"goad_steps\""), HasSubstr("good_steps"));
}

TEST(RunState, OfVersion01) {
  const TextFiles files;
  TinyRun run(kFp16), loaded(kFp16);
  const std::string path = save(files, run);
  rewrite(path + "/state.json", "\"units\"", "\"tokens\"");
  const auto state = load_checkpoint(path, loaded.parts());
  ASSERT_TRUE(state.ok()) << state.status().message();
  EXPECT_EQ(state->units, 101112);
}

TEST(RunState, WhatIdentifiesTheDataIsKept) {
  const TextFiles files;
  TinyRun run(kBf16);
  EXPECT_EQ(saved_data(save(files, run)).value(), (nlohmann::ordered_json{{"name", "some data"}}));
}

// BatchNorm's statistics are tensors of the model like its weights. A new component only needs a name.
class Counter : public Checkpointable {
 public:
  [[nodiscard]] std::string_view name() const override { return "counter"; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override {
    tensors.emplace_back("all", all);
    numbers["count"] = count;
  }
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override {
    const std::int64_t found = numbers.at("count").get<std::int64_t>();
    if (found < 0) return Status::invalid("count: got " + std::to_string(found) + ", expected none below 0");
    return Commit([this, found, tensor = tensors.at(0).second.clone()] { count = found, all = tensor; });
  }
  [[nodiscard]] bool is_optional() const override { return true; }

  std::int64_t count = 7;
  torch::Tensor all = torch::arange(5);
};

TEST(RunState, ANewPartNeedsOnlyItsName) {
  const TextFiles files;
  TinyRun run(kBf16), loaded(kBf16);
  Counter saved_counter, counter;
  const std::vector<const Checkpointable*> parts = {&run.model_part, &saved_counter};
  ASSERT_TRUE(save_checkpoint(files.path("run"), some_state(), {}, collect_components(parts), "").ok());
  counter.count = 0, counter.all = torch::zeros({5}, torch::kInt64);
  const std::vector<Checkpointable*> back = {&loaded.model_part, &counter};
  ASSERT_TRUE(load_checkpoint(files.path("run/checkpoint-12"), back).ok());
  EXPECT_EQ(counter.count, 7);
  EXPECT_TRUE(same_bits(counter.all, torch::arange(5)));
  // A checkpoint that was saved before the component existed is loaded without it.
  counter.count = 3;
  std::vector<Checkpointable*> more = loaded.parts();
  more.insert(more.begin(), &counter);
  ASSERT_TRUE(load_checkpoint(save(files, run), more).ok());
  EXPECT_EQ(counter.count, 3);
}

TEST(RunState, WeightsAlone) {
  const TextFiles files;
  TinyRun run(kBf16), other(kBf16, copies(make_parameters(torch::kBFloat16)));
  take_steps(*run.optimizer, run.parameters, 1, 2);
  const std::string path = save(files, run);
  EXPECT_FALSE(same_bits(other.parameters, run.parameters));
  EXPECT_TRUE(load_weights(path, other.parameters).ok());
  EXPECT_TRUE(same_bits(other.parameters, run.parameters));
  EXPECT_THAT(load_weights(files.path("nowhere"), other.parameters).message(), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace octavo_train
