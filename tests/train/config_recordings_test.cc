// Tests the keys of recordings, the recipe that sets omitted keys, and batches limited by a budget.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/config.h"
#include "train/config/paths.h"
#include "train/config/task_config.h"
#include "train/tasks/speech/config/settings.h"

#include <cstdio>
#include <fstream>
#include <utility>

namespace octavo_train {
namespace {

const RecordingSettings& recordings(const Config& config) {
  return config.settings.task_settings.get<RecordingSettings>();
}
std::string error(const std::string& text, const Words& words = {}) {
  return parse("task: speech\n" + text, "run.yaml", words).status().message();
}

TEST(RecordingConfig, ManifestsWithAndWithoutWeights) {
  const Config one = parsed("task: speech\ntrain_manifest: a.jsonl\nvalidation_manifest: [b.jsonl, c.jsonl]");
  ASSERT_EQ(recordings(one).train_manifest->size(), 1U);
  EXPECT_EQ(recordings(one).train_manifest->front().path, "a.jsonl");
  EXPECT_EQ(recordings(one).train_manifest->front().weight, 1);
  EXPECT_EQ(recordings(one).val_manifest->at(1).path, "c.jsonl");
  const Config weighed = parsed(
      "task: speech\ndata:\n  train_manifest:\n  - {path: a.jsonl, weight: 2}\n  - b.jsonl\n  - path: \"c "
      "d\"\n");
  ASSERT_EQ(recordings(weighed).train_manifest->size(), 3U);
  EXPECT_EQ(recordings(weighed).train_manifest->at(0).weight, 2);
  EXPECT_EQ(recordings(weighed).train_manifest->at(1).weight, 1);
  EXPECT_EQ(recordings(weighed).train_manifest->at(2).path, "c d");
  for (const Config* each : {&one, &weighed})
    EXPECT_EQ(to_yaml(parsed(to_yaml(each->settings)).settings), to_yaml(each->settings));
  const Settings absolute = with_absolute_paths(weighed.settings);
  for (const ManifestSource& each : *absolute.task_settings.get<RecordingSettings>().train_manifest)
    EXPECT_THAT(each.path, StartsWith("/"));

  EXPECT_THAT(error("train_manifest: []"), HasSubstr("got an empty list, expected the path of a manifest"));
  EXPECT_THAT(error("train_manifest: [{weight: 2}]"),
              AllOf(StartsWith("run.yaml:2:18: data.train_manifest[0]: got"), HasSubstr("{path: a.jsonl")));
  EXPECT_THAT(error("train_manifest: [a, {path: b, weight: 0}]"),
              HasSubstr("data.train_manifest[1].weight: got 0, expected a number above 0"));
  EXPECT_THAT(
      error("train_manifest: [{path: b, wieght: 1}]"),
      HasSubstr("run.yaml:2:28: data.train_manifest[0].wieght: unknown key; a manifest has path and "));
}

TEST(RecordingConfig, DefaultsAreNeMos) {
  const RecordingSettings data = recordings(parsed("task: speech"));
  EXPECT_EQ(data.min_duration, 0.1);
  EXPECT_EQ(data.max_duration, 20);
  EXPECT_EQ(data.on_bad_clip, BadClips::error);
  EXPECT_EQ(data.bucket_buffer_size, 10000);
  EXPECT_TRUE(data.speed_perturb.empty());
  EXPECT_EQ(data.noise_snr, (SnrRange{10, 20}));
  EXPECT_FALSE(data.has_budget());
}

TEST(RecordingConfig, PerturbationAndFeatures) {
  const Config config = parsed(R"(task: speech
data: {speed_perturb: [0.9, 1.0, 1.1], noise_manifest: noise.jsonl, noise_snr: 5, on_bad_clip: skip}
model:
  preprocessor: {sample_rate: 8000, window_size: 0.02, n_fft: 256, features: 40, normalize: per_feature, dither: 0}
  tokenizer: {dir: tok, type: bpe}
)");
  EXPECT_THAT(recordings(config).speed_perturb, ElementsAre(0.9, 1.0, 1.1));
  EXPECT_EQ(recordings(config).noise_snr, (SnrRange{5, 5}));
  EXPECT_EQ(recordings(config).on_bad_clip, BadClips::skip);
  EXPECT_EQ(config.settings.task_settings.get<FeatureKeys>().sample_rate, 8000);
  EXPECT_EQ(config.settings.task_settings.get<FeatureKeys>().dither, 0);
  EXPECT_EQ(config.settings.task_settings.get<TokenizerKeys>().dir, "tok");
  EXPECT_EQ(to_yaml(parsed(to_yaml(config.settings)).settings), to_yaml(config.settings));

  EXPECT_THAT(error("speed_perturb: [0.1]"), HasSubstr("such as [0.9, 1.0, 1.1]"));
  EXPECT_THAT(error("noise_snr: [20, 10]"), HasSubstr("such as [10, 20]"));
  EXPECT_THAT(error("model: {preprocessor: {normalize: all_features}}"), HasSubstr("expected per_feature"));
  EXPECT_THAT(error("min_duration: 21"), HasSubstr("data.max_duration is 20"));
  EXPECT_THAT(error("data: {sample_rate: 8000}\nmodel: {preprocessor: {sample_rate: 16000}}"),
              HasSubstr("data.sample_rate: got 8000, but model.preprocessor.sample_rate is 16000"));
  EXPECT_THAT(error("model: {tokenizer: {dir: a, model: b}}"),
              HasSubstr("model.tokenizer.dir: got a, but model.tokenizer.model is b"));
  EXPECT_THAT(error("cache_features: cache\nspeed_perturb: [0.9, 1.1]"),
              HasSubstr("data.cache_features: got cache, but data.speed_perturb is [0.9, 1.1]"));
}

TEST(RecordingConfig, ABudgetAloneOrWithACount) {
  const auto rows = [](const Config& config) { return config.settings.training.per_device_train_batch_size; };
  const Config alone = parsed("task: speech\nbatch_seconds: 400");
  EXPECT_EQ(rows(alone), kNoLimit);
  EXPECT_EQ(alone.origin("training.per_device_train_batch_size").text(), "default (recipe)");
  EXPECT_THAT(to_yaml(alone.settings), HasSubstr("per_device_train_batch_size: auto\n"));
  // The config saved with a run has the same meaning as the user's config.
  EXPECT_EQ(rows(parsed(to_yaml(alone.settings))), kNoLimit);
  EXPECT_EQ(rows(parsed("task: speech\nbatch_cells: 200000\nbatch_size: 12")), 12);
  EXPECT_EQ(rows(parsed("task: speech")), 8);
  EXPECT_THAT(error("per_device_train_batch_size: auto"), HasSubstr("auto needs another limit"));
  EXPECT_THAT(parse("task: text\nbatch_size: auto", "run.yaml").status().message(),
              AllOf(StartsWith("run.yaml:2:1: training.per_device_train_batch_size: got auto"),
                    HasSubstr("the task text; give a number")));
  const Config both = parsed("task: speech\nbatch_seconds: 9\ngenerator.clips: 4");
  EXPECT_THAT(check_complete(both).message(),
              HasSubstr("data.batch_seconds: got 9, but data.generator.clips is 4"));
  EXPECT_THAT(check_complete(parsed("task: speech\ntrain_manifest: a\ngenerator.clips: 4")).message(),
              HasSubstr("but data.train_manifest is a"));
}

// Models in files are fine-tuned with NeMo's recipe; other models start with the defaults of all runs.
TEST(RecordingConfig, TheRecipe) {
  const Config config = parsed("model: {name: nvidia/parakeet-tdt-0.6b-v3}\ntrain_manifest: a.jsonl");
  const TrainingSettings& training = config.settings.training;
  EXPECT_EQ(training.learning_rate, 1e-4);
  EXPECT_EQ(training.min_lr, 5e-6);
  EXPECT_EQ(training.warmup_steps, 5000);
  EXPECT_EQ(training.options.at("beta2"), 0.98);
  EXPECT_EQ(training.options.at("weight_decay"), 1e-3);
  EXPECT_EQ(training.no_decay.kind, NoDecay::Kind::none);
  EXPECT_EQ(training.max_grad_norm, 0);
  EXPECT_EQ(training.num_train_epochs, 50);
  EXPECT_EQ(training.max_steps, std::nullopt);
  EXPECT_EQ(training.per_device_train_batch_size, 16);
  EXPECT_EQ(config.settings.data.dataloader_num_workers, 8);
  EXPECT_EQ(config.origin("training.learning_rate").text(), "default (recipe)");
  EXPECT_EQ(to_yaml(parsed(to_yaml(config.settings)).settings), to_yaml(config.settings));

  const std::string name = "model: {name: nvidia/parakeet-tdt-0.6b-v3}\n";
  const TrainingSettings own =
      parsed(name + "learning_rate: 1e-6\nmax_steps: 100\nweight_decay: 0.1\nbatch_size: 2")
          .settings.training;
  EXPECT_EQ(own.learning_rate, 1e-6);
  EXPECT_EQ(own.min_lr, 0) << "the recipe's would be above the user's rate";
  EXPECT_EQ(own.max_steps, 100);
  EXPECT_EQ(own.num_train_epochs, std::nullopt);
  EXPECT_EQ(own.warmup_steps, 10) << "a tenth of a short run";
  EXPECT_EQ(own.options.at("weight_decay"), 0.1);
  EXPECT_EQ(own.per_device_train_batch_size, 2);
  EXPECT_EQ(parsed(name + "num_train_epochs: 2").settings.training.max_steps, std::nullopt);
  EXPECT_EQ(parsed(name + "optimizer: lion_8bit").settings.training.learning_rate, 1e-3)
      << "not a recipe for it";

  const TrainingSettings small = parsed("model: {name: fastconformer}\ntrain_manifest: a").settings.training;
  EXPECT_EQ(small.learning_rate, 1e-3);
  EXPECT_EQ(small.warmup_steps, 0);
  EXPECT_EQ(small.max_steps, 3000);
  EXPECT_EQ(parsed(name + "pretrained: false").settings.training.learning_rate, 1e-3);
}

// A key's former name gives the same settings. Everything that is written has the present name.
TEST(RecordingConfig, FormerNamesOfKeys) {
  const Config now = parsed("task: speech\ndata: {batch_lattice_cells: 5000, on_bad_clip: skip}");
  const std::string yaml = to_yaml(now.settings);
  EXPECT_THAT(yaml, AllOf(HasSubstr("  batch_lattice_cells: 5000\n"), HasSubstr("  on_bad_clip: skip\n")));
  for (const Config& then :
       {parsed("task: speech\ndata: {batch_cells: 5000, bad_clips: skip}"),
        parsed("task: speech\nBATCH_CELLS: 5000\ndata.bad_clips: skip"),
        parsed("task: speech", {"batch_cells=5000", "data={bad_clips: skip}"}),
        parsed("task: speech\nbatch_cells: 1", {"batch_lattice_cells=5000", "bad_clips=skip"})}) {
    EXPECT_EQ(recordings(then).batch_lattice_cells, 5000);
    EXPECT_EQ(recordings(then).on_bad_clip, BadClips::skip);
    EXPECT_EQ(to_yaml(then.settings), yaml);
    EXPECT_THAT(to_table(then),
                AllOf(HasSubstr("\ndata.batch_lattice_cells "), HasSubstr("\ndata.on_bad_clip "),
                      Not(HasSubstr("batch_cells")), Not(HasSubstr("bad_clips"))));
  }
  EXPECT_THAT(error("data: {batch_cells: 1, batch_lattice_cells: 1}"),
              HasSubstr("batch_lattice_cells: given twice; data.batch_lattice_cells has a value at"));
  EXPECT_THAT(error("batch_cells: none"), HasSubstr("data.batch_lattice_cells: got none, expected"));

  // A checkpoint of an earlier version has every key under its former name.
  std::string saved = yaml;
  const std::pair<std::string, std::string> renamed[] = {{"  batch_lattice_cells:", "  batch_cells:"},
                                                         {"  on_bad_clip:", "  bad_clips:"}};
  for (const auto& [name, former] : renamed) saved.replace(saved.find(name), name.size(), former);
  ASSERT_NE(saved, yaml);
  const Settings loaded = parsed(saved).settings;
  EXPECT_EQ(to_yaml(loaded), yaml);
  EXPECT_THAT(experiment_differences(loaded, now.settings), IsEmpty());
}

// A command finds the folder of the run that it started under an earlier version.
TEST(RecordingConfig, AutomaticFoldersKeepFormerNames) {
  const std::string path = ::testing::TempDir() + "former.yaml";
  std::ofstream(path) << "task: speech\n";
  for (const char* word : {"batch_cells=5000", "batch_lattice_cells=5000"}) {
    const auto config = load(path, Words{word});
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->settings.output_dir, "runs/former-batch_cells=5000");
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace octavo_train
