// Tests complete runs of the task `speech`: they learn, resume to the same bits after any end, and report
// errors.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"
#include "train/base/word_diff.h"
#include "train/config/task_config.h"
#include "train/formats/safetensors.h"
#include "train/run/dry_run.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/config/keys.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// The model has every dropout and BatchNorm, and clips of different lengths.
constexpr const char* kSpeech = R"(model:
  name: fastconformer
  vocab_size: 6
  encoder: {feat_in: 16, subsampling_conv_channels: 4, n_layers: 2, d_model: 16, n_heads: 2, ff_expansion_factor: 2}
  decoder: {pred_hidden: 16, pred_rnn_layers: 2}
  joint: {joint_hidden: 16}
  spec_augment: {freq_width: 3}
data: {generator: {clips: 32, validation_clips: 4, seconds: 0.64, tokens: 3}, dataloader_num_workers: 1}
training:
  optimizer: adamw_8bit
  learning_rate: 3.0e-3
  compute_dtype: float32
  per_device_train_batch_size: 4
  max_steps: 6
  eval_steps: 3
  save_steps: 2
  logging_steps: 1
  device: cpu
)";

class SpeechRun : public TinyRun {
 public:
  SpeechRun(const TempFolder& folder, const std::string& name) : TinyRun(folder.path(), name) {
    yaml = kSpeech + ("output_dir: \"" + out + "\"\n");
  }
  [[nodiscard]] std::string tensor(std::int64_t step, const std::string& name) const {
    const auto file = Safetensors::open(checkpoint(step) + "/model.safetensors").value();
    const StoredTensor* const found = file.find(name);
    if (found == nullptr) {
      ADD_FAILURE() << "there is no " << name;
      return {};
    }
    std::string bytes(found->bytes.size(), '\0');
    std::memcpy(bytes.data(), found->bytes.data(), bytes.size());
    return bytes;
  }
  [[nodiscard]] std::int64_t batches_tracked(std::int64_t step) const {
    std::int64_t value = -1;
    const std::string bytes = tensor(step, "encoder.layers.1.conv.norm.num_batches_tracked");
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
};

const SpeechRun& whole() {
  static const TempFolder folder;
  static const SpeechRun run = [] {
    SpeechRun made(folder, "whole");
    made.finish();
    return made;
  }();
  return run;
}

TEST(SpeechRun, LogsLossAndWordErrorsAndShowsTranscripts) {
  const SpeechRun& run = whole();
  const Json start = run.records("start").at(0);
  EXPECT_EQ(start["task"], "speech");
  EXPECT_EQ(start["unit"], "clips");
  EXPECT_EQ(start["data"], "32 generated clips of up to 0.64 s");
  EXPECT_THAT(run.steps("eval"), ElementsAre(3, 6));
  const Json eval = run.records("eval").at(1);
  EXPECT_EQ(eval["better"], Json::parse(R"({"loss": "lower", "wer": "lower"})"));
  EXPECT_GT(eval["loss"].get<double>(), 0);
  EXPECT_GE(eval["wer"].get<double>(), 0);
  EXPECT_EQ(eval["clips"], 4);
  ASSERT_EQ(eval["examples"].size(), 4U) << "all there are";
  const Json first = eval["examples"][0], before = run.records("eval").at(0)["examples"][0];
  EXPECT_EQ(first["name"], "clip 1");
  EXPECT_EQ(first["reference"], before["reference"]) << "the same clips at each evaluation";
  const auto words = [](const Json& text) { return split_words(text.get_ref<const std::string&>()).size(); };
  EXPECT_GE(words(first["reference"]), 1U);
  EXPECT_THAT(run.said, HasSubstr(diff_for_terminal(first["reference"].get<std::string>(),
                                                    first["hypothesis"].get<std::string>())
                                      .reference));
  EXPECT_TRUE(run.records("sample").empty()) << "examples are enough";
  EXPECT_THAT(run.said, AllOf(HasSubstr("32 clips of up to 0.64 s to train on and 4 to evaluate on"),
                              HasSubstr(" clips/s"), HasSubstr(", WER "), HasSubstr("    said:  "),
                              HasSubstr("    transcribed: ")));
}

TEST(SpeechRun, IsPlanned) {
  const Json pair = whole().records("end").at(0)["plan"];
  EXPECT_NEAR(pair["peak"].get<double>() / pair["measured_peak"].get<double>(), 1, 0.1) << pair;
}

TEST(SpeechRun, ResumingIsTheSameRunWithItsStatistics) {
  const TempFolder folder;
  for (const std::int64_t step : {2, 4}) {
    SpeechRun run(folder, std::to_string(step));
    run.finish({"resume_from_checkpoint=" + whole().checkpoint(step)});
    EXPECT_EQ(run.bits(6), whole().bits(6));
  }
  EXPECT_EQ(whole().batches_tracked(2), 2);
  EXPECT_EQ(whole().batches_tracked(6), 6);
  EXPECT_NE(whole().tensor(2, "encoder.layers.0.conv.norm.running_var"),
            whole().tensor(6, "encoder.layers.0.conv.norm.running_var"));
}

TEST(SpeechRun, WorkersDoNotChangeABit) {
  const TempFolder folder;
  SpeechRun run(folder, "run");
  run.finish({"dataloader_num_workers=0"});
  EXPECT_EQ(run.bits(6), whole().bits(6));
}

// With recomputation, the first convolutions sum their gradients clip by clip, which is a different order.
TEST(SpeechRun, ActivationsThatAreComputedAgain) {
  const TempFolder folder;
  const Words both = {"gradient_checkpointing=true"};
  SpeechRun thrifty(folder, "thrifty");
  thrifty.finish(both);
  EXPECT_EQ(thrifty.batches_tracked(6), 6) << "statistics are updated once a step";
  const std::vector<Json> then = whole().records("train"), now = thrifty.records("train");
  ASSERT_EQ(now.size(), 6U);
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto loss = then[i]["loss"].get<double>();
    EXPECT_NEAR(now[i]["loss"].get<double>(), loss, 1e-3 * loss) << i;
  }
  SpeechRun resumed(folder, "resumed");
  resumed.finish({both[0], "resume_from_checkpoint=" + thrifty.checkpoint(4)});
  EXPECT_EQ(resumed.bits(6), thrifty.bits(6));
  SpeechRun decoder(folder, "decoder");
  decoder.finish({"model.decoder.gradient_checkpointing=true"});
  EXPECT_EQ(decoder.bits(6), whole().bits(6)) << "the predictor's are the same in bits";
  SpeechRun other(folder, "other");
  other.finish({both[0], "resume_from_checkpoint=" + whole().checkpoint(4), "eval_steps=null"});
}

// Each layer waits for its own weights. Only large weights are offloaded.
TEST(SpeechRun, StatesInHostMemoryChangeNoBit) {
  const TempFolder folder;
  SpeechRun plain(folder, "plain"), host(folder, "host"), stream(folder, "stream");
  const auto finish = [](SpeechRun& run, Words words) {
    words.insert(words.end(), {"model.encoder.d_model=64", "max_steps=4"});
    run.finish(words);
  };
  finish(plain, {});
  finish(host, {"offload=host", "offload_gradients=true", "gpu_state_budget=0"});
  finish(stream, {"offload=stream", "gradient_checkpointing=true"});
  for (const SpeechRun* run : {&host, &stream}) {
    EXPECT_GT(run->records("start").at(0)["host_state_bytes"], 0);
    EXPECT_EQ(run->bits(4), plain.bits(4));
  }
}

TEST(SpeechRun, KilledItEndsWithTheSameBits) {
  const TempFolder folder;
  SpeechRun run(folder, "run");
  int kills = 0;
  for (const std::size_t lines : {3U, 6U, 8U, 10U}) {
    Child child([&] { return exit_code(run, {}); });
    if (child.wait_until([&] { return run.lines() >= lines; })) child.send(SIGKILL);
    kills += child.wait() == 128 + SIGKILL ? 1 : 0;
  }
  EXPECT_GE(kills, 2);
  run.finish();
  EXPECT_EQ(run.bits(6), whole().bits(6));
  EXPECT_EQ(run.batches_tracked(6), 6);
}

TEST(SpeechRun, EveryHeadAndPrecision) {
  const TempFolder folder;
  for (const char* word : {"head=rnnt", "head=ctc", "compute_dtype=bfloat16", "loss.reduction=mean_volume",
                           "loss.durations=[1, 2, 3]"}) {
    SCOPED_TRACE(word);
    SpeechRun run(folder, word), again(folder, std::string("again ") + word);
    const Words words = {word, "max_steps=3", "save_steps=2", "eval_steps=null"};
    run.finish(words);
    again.finish({word, "max_steps=3", "resume_from_checkpoint=" + run.checkpoint(2)});
    EXPECT_EQ(run.bits(3), again.bits(3));
  }
}

TEST(SpeechRun, FrozenBatchNormAndFrozenParts) {
  const TempFolder folder;
  SpeechRun run(folder, "run");
  run.finish({"freeze_batch_norm=true", "groups=[{params: \"encoder.layers.0.*\", freeze: true}]",
              "eval_steps=null"});
  EXPECT_EQ(run.batches_tracked(6), 0);
  const std::string frozen = "encoder.layers.0.self_attn.q_proj.weight";
  EXPECT_EQ(run.tensor(2, frozen), run.tensor(6, frozen));
  EXPECT_NE(run.tensor(2, "encoder.layers.1.self_attn.q_proj.weight"),
            run.tensor(6, "encoder.layers.1.self_attn.q_proj.weight"));
  EXPECT_FALSE(run.state(6)["optimizer"].contains(frozen));
}

TEST(SpeechRun, ARehearsalHasTheLongestClips) {
  const TempFolder folder;
  const SpeechRun run(folder, "run");
  Recorder recorder;
  const auto done = dry_run(*parse(run.yaml, "run.yaml"), 3, recorder);
  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_THAT(testing::PrintToString(done->lines),
              HasSubstr("4 clips of up to 0.64 s and 3 tokens (128 cells of the loss)"));
}

TEST(SpeechRun, OtherClipsAreAnotherRunAndMoreAreNot) {
  const TempFolder folder;
  SpeechRun run(folder, "run");
  run.finish({"max_steps=2", "eval_steps=null"});
  run.fail({"max_steps=4", "generator.seed=2"}, "data.generator.seed: 1 -> 2");
  run.finish({"max_steps=4", "eval_steps=null", "generator.clips=40"});
  EXPECT_THAT(run.said, HasSubstr("data.generator.clips: there were 32, and are 40"));
}

// The features overflow fp32: the guard leaves the weights unchanged.
TEST(SpeechRun, FeaturesThatAreNotFiniteAreSkipped) {
  const TempFolder folder;
  SpeechRun run(folder, "run");
  run.fail({"generator.noise=1e39", "eval_steps=null", "max_steps=20"}, "training diverged: 10 steps");
  EXPECT_THAT(run.said, HasSubstr("step 1 was skipped: its gradients are not finite"));
}

TEST(SpeechRun, ModelsInFilesThatAreNotThere) {
  const TempFolder folder;
  SpeechRun run(folder, "run");
  run.fail({"model.name=nvidia/parakeet-tdt-0.6b-v3"}, "nvidia/parakeet-tdt-0.6b-v3");
  run.fail({"model.name=" + folder.at("none.nemo")}, "none.nemo");
  EXPECT_FALSE(std::filesystem::exists(run.out));
}

// A folder for transformers: a new run starts with its weights and sizes; a resumed run uses its own weights.
TEST(SpeechRun, ModelsInFilesBeginARun) {
  const TempFolder folder;
  const auto config = parse(kSpeech, "run.yaml");
  const auto weights = Safetensors::open(whole().checkpoint(6) + "/model.safetensors").value();
  std::vector<TensorSource> sources;
  for (const StoredTensor& each : weights.tensors())
    sources.push_back({each.name, std::string(each.dtype), each.shape, [&each] { return each.bytes; }});
  const SpeechModelSettings model =
      with_speech_keys(*known_speech_model(kFastConformer), config->settings.task_settings.get<SpeechKeys>());
  ASSERT_TRUE(write_transformers_model(folder.at("mine"), model, nullptr, sources).ok());
  const Words name = {"model.name=" + folder.at("mine"), "task=speech", "eval_steps=null", "model.encoder={}",
                      "learning_rate=1e-30"};
  SpeechRun run(folder, "run");
  run.finish(name);
  EXPECT_THAT(run.said, HasSubstr("weights from " + folder.at("mine") + ": "));
  EXPECT_EQ(run.tensor(6, "joint.head.weight"), whole().tensor(6, "joint.head.weight"));
  EXPECT_EQ(run.batches_tracked(6), 12) << "statistics too";
  Words longer = name;
  longer.emplace_back("max_steps=7");
  run.said.clear();
  run.finish(longer);
  EXPECT_EQ(run.said.find("weights from"), std::string::npos);
  EXPECT_EQ(run.batches_tracked(7), 13);
  SpeechRun other(folder, "other");
  Words larger = name;
  larger.emplace_back("encoder.n_layers=3");
  other.fail(larger, "missing in it");
  EXPECT_THAT(other.said, HasSubstr("encoder.layers.2.conv.norm.weight"));
  other.fail({name[0], "task=speech", "generator.vocabulary=7", "vocab_size=null"},
             "data.generator.vocabulary: got 7");
}

// Runs the example of examples/train for fewer steps.
TEST(SpeechRun, TheExampleLoadsAndLearns) {
  std::ifstream file(std::string(OCTAVO_TEST_EXAMPLES_DIR) + "/speech_generated.yaml");
  ASSERT_TRUE(file.good());
  std::string yaml((std::istreambuf_iterator<char>(file)), {});
  const TempFolder folder;
  TinyRun run(folder.path(), "run");
  run.yaml = yaml;
  run.finish({"output_dir=" + run.out, "max_steps=100", "eval_steps=50", "save_steps=null", "save_best=null",
              "device=cpu", "max_eval_samples=16", "lr_scheduler=constant"});
  const std::vector<Json> evals = run.records("eval");
  ASSERT_EQ(evals.size(), 2U);
  EXPECT_LT(evals[1]["loss"].get<double>(), 0.5 * run.records("train")[0]["loss"].get<double>());
  EXPECT_LT(evals[1]["wer"].get<double>(), 0.8);
}

}  // namespace
}  // namespace octavo_train
