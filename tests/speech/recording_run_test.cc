// Tests complete runs on recordings: files of several formats and rates, batches limited in seconds,
// perturbation. They resume to the same bits, and skip bad clips or report the bad clip.
// SPDX-License-Identifier: MIT
#include "tests/speech/spoken_tones.h"
#include "tests/train/run_support.h"
#include "train/run/dry_run.h"
#include "train/run/errors.h"
#include "train/run/start.h"
#include "train/tasks/speech/data/batch.h"
#include "train/tasks/speech/data/skipped_clips.h"
#include "train/tasks/speech/features/featurizer.h"
#include "train/tasks/speech/task.h"

#include <algorithm>
#include <filesystem>
#include <map>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kTones = R"(model:
  name: fastconformer
  encoder: {feat_in: 16, subsampling_conv_channels: 4, n_layers: 1, d_model: 16, n_heads: 2, ff_expansion_factor: 2}
  decoder: {pred_hidden: 16, pred_rnn_layers: 1}
  joint: {joint_hidden: 16}
  spec_augment: {freq_width: 3}
data: {dataloader_num_workers: 1, batch_seconds: 2, bucket_buffer_size: 16}
training:
  optimizer: adamw_8bit
  learning_rate: 3.0e-3
  compute_dtype: float32
  max_steps: 6
  eval_steps: 3
  save_steps: 2
  logging_steps: 1
  device: cpu
)";

// A corpus of 24 training clips, 6 evaluation clips, noise, and a tokenizer.
const TempFolder& corpus() {
  static const TempFolder folder;
  static const bool made = [] {
    write_bytes(folder.at("train.jsonl"), write_spoken(folder, 0, 12) +
                                              write_spoken(folder, 12, 6, 44100, ".flac") +
                                              write_spoken(folder, 18, 6, 22050, ".ogg"));
    write_bytes(folder.at("val.jsonl"), write_spoken(folder, 24, 6));
    EXPECT_TRUE(write_audio(folder.at("noise.wav"), tone(5000, 2, 16000), 16000).ok());
    write_bytes(folder.at("noise.jsonl"), manifest_line("noise.wav", 2, ""));
    write_bytes(folder.at("tones.model"), spoken_tokenizer());
    return true;
  }();
  EXPECT_TRUE(made);
  return folder;
}

class RecordingRun : public TinyRun {
 public:
  RecordingRun(const TempFolder& folder, const std::string& name, const std::string& train = "train.jsonl")
      : TinyRun(folder.path(), name) {
    yaml = kTones + ("output_dir: \"" + out + "\"\ntokenizer.model: \"" + corpus().at("tones.model") +
                     "\"\ntrain_manifest: \"" + corpus().at(train) + "\"\nval_manifest: \"" +
                     corpus().at("val.jsonl") + "\"\n");
  }
  // Returns the reasons by location in the manifests, without folders.
  [[nodiscard]] std::map<std::string, std::string> skipped() const {
    std::map<std::string, std::string> all;
    const std::string text = read_bytes(out + "/" + kSkippedName);
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      const Json line = Json::parse(text.substr(at, text.find('\n', at) - at));
      const std::string place = line["place"];
      EXPECT_TRUE(all.emplace(place.substr(place.rfind('/') + 1), line["reason"]).second) << place;
    }
    return all;
  }
};

const Words kPerturbed = {"speed_perturb=[0.9, 1.0, 1.1]", "noise_manifest=" + corpus().at("noise.jsonl")};

const RecordingRun& whole() {
  static const TempFolder folder;
  static const RecordingRun run = [] {
    RecordingRun made(folder, "whole");
    made.finish(kPerturbed);
    return made;
  }();
  return run;
}

TEST(RecordingRun, TrainsAndEvaluatesOnRecordings) {
  const RecordingRun& run = whole();
  EXPECT_EQ(run.records("start").at(0)["data"], "24 recordings (0.00333 hours)");
  const Json eval = run.records("eval").at(1);
  EXPECT_GT(eval["loss"].get<double>(), 0);
  EXPECT_GT(eval["wer"].get<double>(), 0);
  EXPECT_EQ(eval["clips"], 6);
  EXPECT_THAT(eval.dump(), AllOf(HasSubstr("clip24.wav"), HasSubstr(spoken_text(24))));
  EXPECT_THAT(run.said, AllOf(HasSubstr("to train on: 24"), HasSubstr("to evaluate on: 6"),
                              HasSubstr("tones.model, 12 tokens"), HasSubstr(" clips/s")));
  EXPECT_TRUE(run.skipped().empty());
}

TEST(RecordingRun, IsPlanned) {
  const Json pair = whole().records("end").at(0)["plan"];
  // The prediction is for the longest clips. The measured step has other clips, so no comparison is printed.
  EXPECT_EQ(whole().said.find("plan: ") == std::string::npos, !pair["largest_batch"].get<bool>());
  const double ratio = pair["peak"].get<double>() / pair["measured_peak"].get<double>();
  EXPECT_GT(ratio, 0.95) << pair;
  EXPECT_LT(ratio, 1.3) << pair;
}

TEST(RecordingRun, GoesOnToTheSameBitsWithAnyNumberOfWorkers) {
  const TempFolder folder;
  for (const std::int64_t step : {2, 4}) {
    RecordingRun run(folder, std::to_string(step));
    Words words = kPerturbed;
    words.push_back("resume_from_checkpoint=" + whole().checkpoint(step));
    words.push_back("dataloader_num_workers=" + std::to_string(step - 2));
    run.finish(words);
    EXPECT_EQ(run.bits(6), whole().bits(6)) << step;
  }
  RecordingRun plain(folder, "plain");
  plain.finish({"eval_steps=null"});
  EXPECT_NE(plain.bits(6), whole().bits(6)) << "speed and noise change the samples";
}

TEST(RecordingRun, LearnsTheLanguage) {
  const TempFolder folder;
  RecordingRun run(folder, "run");
  run.finish({"max_steps=60", "eval_steps=null", "save_steps=null", "learning_rate=1e-2", "batch_seconds=6",
              "encoder.dropout=0", "joint.dropout=0", "decoder.dropout=0"});
  EXPECT_LT(run.records("eval").back()["loss"].get<double>(),
            0.7 * run.records("train").front()["loss"].get<double>());
}

// NeMo's features have one frame of padding after the longest clip. In training BatchNorm includes it if the
// clip has a multiple of eight frames, because the padding then produces one more encoder frame.
TEST(RecordingRun, TrainsWithTheFrameOfPaddingThatNemosFeaturesHave) {
  const TempFolder folder;
  const auto config =
      parse(RecordingRun(folder, "run").yaml, "run.yaml",
            Words{"preprocessor.dither=0", "spec_augment.freq_masks=0", "spec_augment.time_masks=0",
                  "encoder.dropout=0", "encoder.dropout_pre_encoder=0", "encoder.dropout_att=0",
                  "decoder.dropout=0", "joint.dropout=0", "loss.omega=0"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  SpeechTask task;
  const std::string none;
  ASSERT_TRUE(task.open({config->settings, none, nullptr}).ok());
  torch::manual_seed(1);
  const auto model = std::dynamic_pointer_cast<SpeechModelImpl>(task.build(config->settings).module);
  FeatureSettings settings;
  settings.features = 16;
  const std::int64_t samples = 64 * settings.hop();
  LoadedClip clip{spoken_samples("low mid high", 16000), {1, 2}, {}};
  clip.samples.resize(static_cast<std::size_t>(samples));
  Batch batch = make_batch(settings, std::vector<LoadedClip>{clip});
  batch.draws = {0};
  const torch::Tensor frames =
      Featurizer(settings, torch::kCPU)(batch.at("audio"), std::span(&samples, 1)).frames;
  ASSERT_EQ(frames.size(1), 64);
  const auto loss_of = [&](const torch::Tensor& features) {
    const DropoutKey pass{7, 3, torch::zeros({1}, torch::kInt64)};
    return model->loss(clips_of(batch, features), pass).item<float>();
  };
  const auto loss = [&] { return task.loss(batch, {7, 3}).item<float>(); };
  model->train();
  EXPECT_EQ(loss(), loss_of(torch::constant_pad_nd(frames, {0, 0, 0, 1})));
  EXPECT_NE(loss(), loss_of(frames));
  model->eval();
  EXPECT_EQ(loss(), loss_of(frames)) << "evaluation has no padding";
}

TEST(RecordingRun, EpochsAreCountedInBatchesOfTheBudget) {
  const TempFolder folder;
  RecordingRun run(folder, "run");
  run.finish({"max_steps=null", "num_train_epochs=1", "eval_steps=null", "batch_seconds=3"});
  // 24 clips of half a second on average are 12 seconds.
  const std::int64_t steps = run.steps("train").back();
  EXPECT_GE(steps, 4);
  EXPECT_LE(steps, 8);
}

TEST(RecordingRun, BatchesByCountAndByCells) {
  const TempFolder folder;
  RecordingRun count(folder, "count"), cells(folder, "cells"), both(folder, "both");
  count.finish({"max_steps=2", "batch_seconds=null", "batch_size=3", "eval_steps=null"});
  EXPECT_EQ(count.state(2)["sampler"]["draws"], 6);
  cells.finish({"max_steps=2", "batch_seconds=null", "batch_lattice_cells=300", "eval_steps=null"});
  EXPECT_GT(cells.state(2)["sampler"]["draws"], 2);
  both.finish({"max_steps=2", "batch_size=1", "eval_steps=null"});
  EXPECT_EQ(both.state(2)["sampler"]["draws"], 2) << "what is reached first";
}

TEST(RecordingRun, FeaturesThatAreKeptNeedNoRecordings) {
  const TempFolder folder, clips;
  write_bytes(clips.at("train.jsonl"), write_spoken(clips, 0, 6));
  RecordingRun run(folder, "run"), again(folder, "again");
  const Words words = {"train_manifest=" + clips.at("train.jsonl"), "cache_features=" + folder.at("cache"),
                       "max_steps=4", "eval_steps=null"};
  run.finish(words);
  EXPECT_THAT(run.said, HasSubstr(", and of 12 written")) << "6 of each manifest";
  for (int i = 0; i < 6; ++i) std::filesystem::remove(clips.at("clip" + std::to_string(i) + ".wav"));
  again.finish(words);
  EXPECT_EQ(again.bits(4), run.bits(4));
  EXPECT_THAT(again.said, HasSubstr(", and of 0 written"));
}

// Returns the settings that the out-of-memory message proposes, one per line.
std::vector<std::string> helps_of(const RecordingRun& run, const Words& words) {
  Words all = {"encoder.feat_in=80",
               "encoder.subsampling_conv_channels=256"};  // more than a megabyte to save
  all.insert(all.end(), words.begin(), words.end());
  Recorder recorder;
  Heartbeat console(recorder);
  const auto config = parse(run.yaml, "run.yaml", all);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const auto started = start_run(*config, console, Purpose::dry_run);
  EXPECT_TRUE(started.ok()) << started.status().message();
  const c10::Error full({__func__, __FILE__, __LINE__}, "DefaultCPUAllocator: can't allocate memory");
  const std::string text =
      explain((*started)->config, (*started)->services, *(*started)->state, full, /*evaluating=*/false)
          .message();
  std::vector<std::string> out;
  const std::string begin = "what would help:\n    ";
  EXPECT_THAT(text, HasSubstr(begin));
  std::string rest = text.substr(text.find(begin) + begin.size());
  for (std::size_t end = rest.find("\n    "); !rest.empty(); end = rest.find("\n    ")) {
    out.push_back(rest.substr(0, end));
    rest = end == std::string::npos ? "" : rest.substr(end + 5);
  }
  return out;
}

TEST(RecordingRun, AFullDeviceIsToldHalfTheBatchFirstAndToDropDataLast) {
  const TempFolder folder;
  const RecordingRun run(folder, "run");
  const auto half = [](const std::string& words) {
    return AllOf(testing::StartsWith(words + " ("), HasSubstr(" MB instead of "),
                 HasSubstr("MB: the same step in micro-batches of 1/2)"));
  };
  const char* const drop = "data.max_duration=10 (drops data: clips longer than 10 s are skipped)";
  const auto by_size = helps_of(run, {"batch_seconds=null", "batch_size=16"});
  EXPECT_THAT(by_size.front(), half("per_device_train_batch_size=8 gradient_accumulation_steps=2"));
  EXPECT_EQ(by_size.back(), drop);
  EXPECT_THAT(by_size, testing::Contains(testing::StartsWith("compute_dtype=bfloat16 (")));
  const auto by_seconds = helps_of(run, {"batch_seconds=12"});
  EXPECT_THAT(by_seconds.front(), half("data.batch_seconds=6 gradient_accumulation_steps=2"));
  EXPECT_EQ(by_seconds.back(), drop);
  const auto by_cells = helps_of(run, {"batch_seconds=null", "batch_lattice_cells=600"});
  EXPECT_THAT(by_cells.front(), half("data.batch_lattice_cells=300 gradient_accumulation_steps=2"));
  const auto accumulated =
      helps_of(run, {"batch_seconds=null", "batch_size=16", "gradient_accumulation_steps=6",
                     "compute_dtype=bfloat16", "model.gradient_checkpointing=true"});
  EXPECT_THAT(accumulated.front(), half("per_device_train_batch_size=8 gradient_accumulation_steps=12"));
  for (const std::string& line : accumulated)
    EXPECT_THAT(line, AllOf(testing::Not(HasSubstr("checkpointing")), testing::Not(HasSubstr("sums"))));
}

// Writes a manifest with every kind of bad clip, among good ones.
const std::string& bad_manifest() {
  static const std::string name = [] {
    const TempFolder& folder = corpus();
    const std::string good = read_bytes(folder.at("train.jsonl"));
    const std::vector<float> sound = spoken_samples("low", 16000);
    const auto wav = [&](const std::string& file, const std::vector<float>& samples) {
      EXPECT_TRUE(write_audio(folder.at(file), samples, 16000).ok());
    };
    wav("silent.wav", std::vector<float>(4000));
    wav("whole.wav", sound);
    const std::string bytes = read_bytes(folder.at("whole.wav"));
    write_bytes(folder.at("cut.wav"), bytes.substr(0, bytes.size() / 2));
    write_bytes(folder.at("empty.wav"), "");
    write_bytes(folder.at("rate.wav"), wav_file({.rate = 64000}, bytes.substr(44)));
    write_bytes(folder.at("bad.jsonl"),
                manifest_line("none.wav", 0.25, "low") + manifest_line("silent.wav", 0.25, "low") +
                    manifest_line("cut.wav", 0.25, "low") + manifest_line("empty.wav", 0.25, "low") +
                    manifest_line("rate.wav", 0.25, "low") + manifest_line("whole.wav", 0.75, "low") +
                    manifest_line("whole.wav", 0.25, " ") + manifest_line("whole.wav", 0.25, "l\xC3\xB6w") +
                    manifest_line("whole.wav", 25, "low") + "{\"audio_filepath\": \"whole.wav\"}\n" + good);
    return "bad.jsonl";
  }();
  return name;
}

TEST(RecordingRun, GoesWithoutBadClipsAndListsThem) {
  const TempFolder folder;
  RecordingRun run(folder, "run", bad_manifest());
  // In two epochs each bad clip is read twice, but listed once.
  const Words words = {"on_bad_clip=skip", "max_steps=null", "num_train_epochs=2", "save_steps=3",
                       "eval_steps=null"};
  run.finish(words);
  const std::map<std::string, std::string> skipped = run.skipped();
  const auto reason = [&](int line) {
    const auto found = skipped.find("bad.jsonl:" + std::to_string(line));
    return found == skipped.end() ? "not listed" : found->second;
  };
  ASSERT_EQ(skipped.size(), 10U) << Json(skipped).dump(1);
  EXPECT_THAT(reason(1), HasSubstr("none.wav"));
  EXPECT_THAT(reason(2), HasSubstr("is silent"));
  EXPECT_THAT(reason(3), HasSubstr("cut.wav"));
  EXPECT_THAT(reason(4), HasSubstr("empty.wav"));
  EXPECT_THAT(reason(5), HasSubstr("its duration or its sample rate is wrong"));
  EXPECT_THAT(reason(6), HasSubstr("its duration or its sample rate is wrong"));
  EXPECT_THAT(reason(7), HasSubstr("text is empty"));
  EXPECT_THAT(reason(8), HasSubstr("no token for"));
  EXPECT_THAT(reason(9), HasSubstr("20 s"));
  EXPECT_THAT(skipped.at("bad.jsonl:10:1"), HasSubstr("duration is missing"));
  EXPECT_THAT(run.said, HasSubstr("10 clips were skipped; " + run.out + "/skipped.jsonl lists them"));
  EXPECT_THAT(run.records("end").back().dump(), HasSubstr("10 clips were skipped"));

  // Skipped clips count as positions of the run, so it resumes to the same bits.
  const std::int64_t last = run.steps("train").back();
  RecordingRun resumed(folder, "resumed", bad_manifest());
  Words again = words;
  again.push_back("resume_from_checkpoint=" + run.checkpoint(3));
  resumed.finish(again);
  EXPECT_EQ(resumed.bits(last), run.bits(last));
}

TEST(RecordingRun, ABadClipEndsTheRunUnlessItMayGoWithoutIt) {
  const TempFolder folder;
  const std::string good = read_bytes(corpus().at("train.jsonl"));
  write_bytes(corpus().at("one_bad.jsonl"), good + manifest_line("none.wav", 0.25, "low"));
  RecordingRun run(folder, "run", "one_bad.jsonl");
  run.fail({"batch_seconds=60"}, "one_bad.jsonl:25: ");
  EXPECT_THAT(run.said, AllOf(HasSubstr("none.wav"), HasSubstr("data.on_bad_clip: skip")));
  RecordingRun lines(folder, "lines", bad_manifest());
  lines.fail({}, "bad.jsonl:10:");
  EXPECT_FALSE(std::filesystem::exists(lines.out));

  std::string none;
  for (int i = 0; i < 120; ++i) none += manifest_line("none" + std::to_string(i) + ".wav", 0.25, "low");
  write_bytes(corpus().at("none.jsonl"), none);
  RecordingRun nothing(folder, "nothing", "none.jsonl");
  nothing.fail({"on_bad_clip=skip", "max_steps=200"}, "10 steps in a row had no sample that could be read");
}

TEST(RecordingRun, OtherManifestsAreAnotherRunAndMoreSamplesAreNot) {
  const TempFolder folder;
  RecordingRun run(folder, "run");
  const Words few = {"max_samples=8", "max_steps=2", "eval_steps=null"};
  run.finish(few);
  run.finish({"max_samples=-1", "max_steps=4", "eval_steps=null"});
  EXPECT_EQ(run.state(4)["sampler"]["samples"], 24);
  const std::string more = read_bytes(corpus().at("train.jsonl")) + write_spoken(corpus(), 30, 1);
  write_bytes(corpus().at("more.jsonl"), more);
  const std::string other = "train_manifest=" + corpus().at("more.jsonl");
  run.fail({"max_steps=6", other}, "data.train_manifest: it had 24 clips, and has 25");
  run.finish({"max_steps=6", other, "eval_steps=null", "resume_from_checkpoint=changed"});
  EXPECT_THAT(run.said, HasSubstr("changed since the checkpoint: data.train_manifest: it had 24 clips"));
}

TEST(RecordingRun, ARehearsalHasTheLongestClipsAndLeavesNothing) {
  const TempFolder folder;
  const RecordingRun run(folder, "run", bad_manifest());
  Recorder recorder;
  const auto done = dry_run(*parse(run.yaml, "run.yaml", Words{"on_bad_clip=skip"}), 3, recorder);
  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_THAT(testing::PrintToString(done->lines), HasSubstr("2 clips of up to 0.75 s and "));
  EXPECT_FALSE(std::filesystem::exists(run.out));
}

TEST(RecordingRun, WhatIsNotThereIsNamed) {
  const TempFolder folder;
  RecordingRun run(folder, "run");
  run.fail({"train_manifest=none.jsonl"}, "data.train_manifest: none.jsonl");
  run.fail({"val_manifest=none.jsonl"}, "data.val_manifest: none.jsonl");
  run.fail({"tokenizer.model=none.model"}, "model.tokenizer.model: none.model");
  run.fail({"tokenizer.model=null"}, "`octavo data make-tokenizer` makes one");
  run.fail({"vocab_size=15"}, "has 12 tokens; omit it");
  run.fail({"preprocessor.features=80"}, "the encoder takes 16 bands");
  EXPECT_FALSE(std::filesystem::exists(run.out));
}

}  // namespace
}  // namespace octavo_train
