// Tests the features of recordings: against the reference and its formula, alone and in a batch, with dither,
// and rejected inputs.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/features/featurizer.h"

#include "train/checkpoint/tensors.h"
#include "train/data/mix.h"
#include "train/formats/safetensors.h"
#include "train/optim/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

using ::testing::HasSubstr;

// Two clips, the second one shorter; written by make_features_golden.py.
struct Recorded {
  Recorded() : file(Safetensors::open(OCTAVO_TEST_SPEECH_DIR "/features.safetensors")) {
    EXPECT_TRUE(file.ok()) << file.status().message();
    const Result<NamedTensors> views = views_of(*file, "golden");
    for (const auto& [name, tensor] : *views) tensors[name] = tensor;
    audio = tensors.at("audio").to(torch::kFloat32) / 32768;
  }
  Result<Safetensors> file;
  std::map<std::string, torch::Tensor> tensors;
  torch::Tensor audio;
  std::array<std::int64_t, 2> samples = {11000, 6553};
};

std::vector<torch::Device> devices() {
  if (torch::cuda::is_available()) return {torch::kCPU, torch::kCUDA};
  return {torch::kCPU};
}

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a.cpu() - b.cpu()).abs().max().item<double>();
}

DropoutKey pass_with(std::vector<std::int64_t> draws, const torch::Device& device, std::uint64_t step = 3) {
  return {7, step, torch::tensor(draws, torch::kInt64).to(device)};
}

std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Features, AreThoseOfTheReference) {
  const Recorded recorded;
  for (const torch::Device& device : devices()) {
    const Featurizer featurizer({}, device);
    const auto [frames, lengths] = featurizer(recorded.audio.to(device), recorded.samples);
    EXPECT_EQ(frames.sizes(), at::IntArrayRef({2, 68, 128}));
    EXPECT_EQ(frames.scalar_type(), torch::kFloat32);
    EXPECT_EQ(lengths.device().type(), device.type());
    EXPECT_TRUE(lengths.cpu().equal(torch::tensor({68, 40}, torch::kInt64)));
    EXPECT_LT(distance(frames, recorded.tensors.at("exact")), 2e-5) << device;
    EXPECT_LT(distance(frames, recorded.tensors.at("features")), 2e-5) << device;
    EXPECT_EQ(frames[1].narrow(0, 40, 28).abs().max().item<double>(), 0);
  }
}

TEST(Features, OfAClipAreTheSameInABatch) {
  const Recorded recorded;
  for (const torch::Device& device : devices()) {
    const Featurizer featurizer({}, device);
    const torch::Tensor audio = recorded.audio.to(device);
    for (const bool dither : {false, true}) {
      const auto batch = dither ? featurizer(audio, recorded.samples, pass_with({4, 9}, device))
                                : featurizer(audio, recorded.samples);
      // Samples after a clip's end have no effect.
      const torch::Tensor alone =
          torch::cat({audio[1].narrow(0, 0, 6553), torch::ones({5}, audio.options())});
      const std::array<std::int64_t, 1> samples = {6553};
      const auto one = dither ? featurizer(alone.unsqueeze(0), samples, pass_with({9}, device))
                              : featurizer(alone.unsqueeze(0), samples);
      EXPECT_LT(distance(batch.frames[1].narrow(0, 0, 40), one.frames[0]), 5e-6) << device;
    }
  }
}

TEST(Features, AreInFp32WhateverAutocastSays) {
  const Recorded recorded;
  const Featurizer featurizer({}, torch::kCPU);
  const AutocastScope autocast(torch::kCPU, ComputeType::bfloat16);
  EXPECT_LT(distance(featurizer(recorded.audio, recorded.samples).frames, recorded.tensors.at("exact")),
            2e-5);
}

TEST(Features, DitherDependsOnSeedStepAndDrawAlone) {
  const torch::Tensor silence = torch::zeros({3, 4000});
  const std::array<std::int64_t, 3> samples = {4000, 4000, 4000};
  FeatureSettings loud;
  loud.dither = 0.1;
  torch::Tensor first;
  for (const torch::Device& device : devices()) {
    const Featurizer featurizer({}, device);
    const torch::Tensor audio = silence.to(device);
    const torch::Tensor x = featurizer(audio, samples, pass_with({5, 6, 5}, device)).frames.cpu();
    EXPECT_TRUE(x[0].equal(x[2]));
    EXPECT_GT(distance(x[0], x[1]), 1);
    EXPECT_GT(distance(x[0], featurizer(audio, samples, pass_with({5, 6, 5}, device, 4)).frames[0]), 1);
    // Dither is the only content of silence; without it the features are zero.
    EXPECT_EQ(featurizer(audio, samples).frames.abs().max().item<double>(), 0);
    // At its usual strength, dither is far below the logarithm's guard value, and only the last bit of fp32
    // remains of it in low bands. Devices are therefore compared with strong dither.
    const torch::Tensor y =
        Featurizer(loud, device)(audio, samples, pass_with({5, 6, 5}, device)).frames.cpu();
    if (first.defined())
      EXPECT_LT(distance(y, first), 1e-4) << device;
    else
      first = y;
  }
  FeatureSettings none;
  none.dither = 0;
  EXPECT_EQ(Featurizer(none, torch::kCPU)(silence, samples, {}).frames.abs().max().item<double>(), 0);
}

TEST(Features, NoiseIsNormal) {
  constexpr int kCount = 200000;
  double sum = 0, squares = 0, fourth = 0, neighbours = 0, before = 0;
  int beyond = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = normal_noise(noise_key(1, 2, 3, 4), static_cast<std::uint64_t>(i));
    sum += x, squares += x * x, fourth += x * x * x * x, neighbours += x * before, before = x;
    beyond += std::abs(x) > 2;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.015);
  EXPECT_NEAR(fourth / kCount, 3, 0.15);
  EXPECT_NEAR(neighbours / kCount, 0, 0.01);
  EXPECT_NEAR(static_cast<double>(beyond) / kCount, 0.0455, 0.003);
  // These numbers must never change, because runs resume with them.
  EXPECT_EQ(normal_noise(noise_key(1, 2, 3, 4), 0), -0.0557393618F);
  EXPECT_EQ(normal_noise(noise_key(1, 2, 3, 4), 1), 1.19617951F);
}

TEST(Features, FiltersAreSlaneys) {
  FeatureSettings settings;
  settings.features = 80;
  const FeatureTables tables = make_feature_tables(settings);
  const auto at = [&](std::size_t band, std::size_t bin) { return tables.filters[band * 257 + bin]; };
  EXPECT_NEAR(at(0, 1), 0.0225345604, 1e-8);
  EXPECT_NEAR(at(0, 2), 0.00863771047, 1e-8);
  EXPECT_NEAR(at(40, 55), 0.0144441761, 1e-8);
  EXPECT_NEAR(at(79, 250), 0.00210355804, 1e-8);
  double sum = 0;
  for (const float each : tables.filters) sum += static_cast<double>(each);
  EXPECT_NEAR(sum, 2.558260774, 1e-6);
  EXPECT_EQ(tables.window.size(), 400U);
  EXPECT_EQ(tables.window[0], 0);
  EXPECT_NEAR(tables.window[200], 1, 1e-4);
  EXPECT_EQ(tables.window[100], tables.window[299]);
}

TEST(Features, TakeTheTablesOfAnArchive) {
  const Recorded recorded;
  FeatureTables tables = make_feature_tables({});
  std::vector<float> doubled = tables.window;
  for (float& each : doubled) each *= 2;
  const Featurizer plain({}, torch::kCPU), twice({}, torch::kCPU, {doubled, {}});
  EXPECT_LT(distance(twice(recorded.audio, recorded.samples).frames,
                     plain(recorded.audio * 2, recorded.samples).frames),
            1e-6);
  EXPECT_GT(distance(twice(recorded.audio, recorded.samples).frames,
                     plain(recorded.audio, recorded.samples).frames),
            1e-3);
  tables.filters.pop_back();
  EXPECT_THAT(refused([&] { Featurizer({}, torch::kCPU, tables); }),
              HasSubstr("the filters have 32895 numbers, expected 128 bands of 257"));
}

TEST(Features, OfASingleFrameAreZero) {
  const std::array<std::int64_t, 1> samples = {300};
  const auto [frames, lengths] = Featurizer({}, torch::kCPU)(torch::randn({1, 300}), samples);
  EXPECT_EQ(frames.sizes(), at::IntArrayRef({1, 1, 128}));
  EXPECT_EQ(frames.abs().max().item<double>(), 0);
}

TEST(Features, RefuseWhatTheyAreNotOf) {
  const Featurizer featurizer({}, torch::kCPU);
  const std::array<std::int64_t, 1> few = {159}, many = {801};
  EXPECT_THAT(refused([&] {
                featurizer(torch::zeros({1, 800}), few);
              }),
              HasSubstr("clip 0 has 159 samples, expected 160 (a frame) to 800"));
  EXPECT_THAT(refused([&] {
                featurizer(torch::zeros({1, 800}), many);
              }),
              HasSubstr("clip 0 has 801 samples"));
  EXPECT_THAT(refused([&] { featurizer(torch::zeros({2, 800}), few); }), HasSubstr("expected [1, samples]"));
  const std::array<std::int64_t, 1> all = {800};
  EXPECT_THAT(refused([&] {
                featurizer(torch::zeros({1, 800}), all, {});
              }),
              HasSubstr("the dither needs the number of each clip, int64 [1]"));
  FeatureSettings settings;
  settings.window_size = 0.04;
  EXPECT_THAT(
      refused([&] { Featurizer(settings, torch::kCPU); }),
      HasSubstr("window_size: got 0.04 (640 samples), expected from one sample to n_fft, which is 512"));
  settings = {};
  settings.highfreq = 9000;
  EXPECT_THAT(check_features(settings).message(),
              HasSubstr("highfreq: got 9000, expected more than lowfreq (0)"));
  settings = {};
  settings.window_stride = 1e-5;
  EXPECT_THAT(check_features(settings).message(), HasSubstr("window_stride"));
}

}  // namespace
}  // namespace octavo_train
