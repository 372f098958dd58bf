// Tests the feature cache: any run with the same settings finds the features; they are recomputed if a cached
// file or a recording has changed; a full disk only stops the caching.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/features/feature_cache.h"

#include "tests/train/files_support.h"
#include "train/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class FeatureCacheTest : public ::testing::Test {
 protected:
  FeatureCacheTest() {
    settings_.features = 4;
    write_bytes(clip_.audio, "a recording");
    for (int i = 0; i < 40; ++i) features_.push_back(static_cast<float>(i) / 3);
  }
  [[nodiscard]] FeatureCache open(const FeatureTables& tables = {}) const {
    auto out = FeatureCache::open(folder_.at("kept/here"), settings_, tables);
    EXPECT_TRUE(out.ok()) << out.status().message();
    return std::move(*out);
  }

  TempFolder folder_;
  FeatureSettings settings_;
  CachedClip clip_{folder_.at("a.wav"), 0.5, 2};
  std::vector<float> features_;
};

TEST_F(FeatureCacheTest, FindsWhatARunHasKept) {
  {
    const FeatureCache cache = open();
    EXPECT_FALSE(cache.find(clip_));
    cache.keep(clip_, features_);
    EXPECT_EQ(cache.find(clip_), features_);
  }
  const FeatureCache cache = open();
  EXPECT_EQ(cache.find(clip_), features_);
  // Python can read the file.
  EXPECT_THAT(Safetensors::open(cache.path(clip_))->find("features")->shape, ::testing::ElementsAre(10, 4));
  // Different parts of the recording and a different recording are not found.
  EXPECT_FALSE(cache.find({clip_.audio, 0.5, 2.5}));
  EXPECT_FALSE(cache.find({clip_.audio, 0.25, 2}));
  EXPECT_FALSE(cache.find({folder_.at("b.wav"), 0.5, 2}));
  EXPECT_EQ(cache.text(), "data.cache_features: features of 1 clips were read from " +
                              folder_.at("kept/here") + ", and of 0 written");
  // Recordings may be removed once all their features are cached.
  ASSERT_EQ(std::remove(clip_.audio.c_str()), 0);
  EXPECT_EQ(cache.find(clip_), features_);
}

TEST_F(FeatureCacheTest, ModelsWithOtherFeaturesShareIt) {
  open().keep(clip_, features_);
  const FeatureSettings first = settings_;
  settings_.dither = 0.5;  // dither is not part of the cached features
  EXPECT_TRUE(open().find(clip_));
  FeatureTables tables = make_feature_tables(settings_);
  EXPECT_TRUE(open(tables).find(clip_));
  tables.filters[7] += 1;
  EXPECT_FALSE(open(tables).find(clip_));
  for (const auto& change : std::vector<std::function<void(FeatureSettings&)>>{
           [](auto& x) { x.preemph = 0; }, [](auto& x) { x.window_size = 0.02; },
           [](auto& x) { x.window_stride = 0.02; }, [](auto& x) { x.n_fft = 1024; },
           [](auto& x) { x.features = 8; }, [](auto& x) { x.sample_rate = 8000; },
           [](auto& x) { x.lowfreq = 30; }, [](auto& x) { x.highfreq = 7000; },
           [](auto& x) { x.log_zero_guard_value = 1e-6; }}) {
    settings_ = first;
    change(settings_);
    EXPECT_FALSE(open().find(clip_));
  }
}

TEST_F(FeatureCacheTest, MakesAgainWhatHasChanged) {
  const FeatureCache cache = open();
  cache.keep(clip_, features_);
  const std::string path = cache.path(clip_), whole = read_bytes(path);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, whole.size() / 2, whole.size() - 1}) {
    write_bytes(path, whole.substr(0, size));
    EXPECT_FALSE(cache.find(clip_)) << size;
  }
  std::string flipped = whole;
  flipped[whole.size() - 5] ^= 1;
  write_bytes(path, flipped);
  EXPECT_FALSE(cache.find(clip_));
  EXPECT_EQ(cache.report().stale, 5);
  EXPECT_THAT(cache.text(), HasSubstr("5 files were damaged or of other recordings, and made again"));
  cache.keep(clip_, features_);
  EXPECT_EQ(read_bytes(path), whole);
  EXPECT_TRUE(cache.find(clip_));
  write_bytes(clip_.audio, "another recording");
  EXPECT_FALSE(cache.find(clip_));
}

TEST_F(FeatureCacheTest, AFullDiskEndsNothingButTheKeeping) {
  const CachedClip other{folder_.at("b.wav"), 0, 1};
  const std::string said = in_child([&] {
    const FeatureCache cache = open();
    cache.keep(clip_, features_);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    cache.keep(other, features_);
    cache.keep(other, features_);
    return cache.find(other) || cache.find(clip_) != features_ ? std::string("lost") : cache.text();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("features of 1 clips were read"), HasSubstr("and of 1 written"),
                          HasSubstr("; then no more, because "), HasSubstr("cannot write"),
                          EndsWith("make room, or write to another disk")));
  // The cached features remain, and no other files do.
  const FeatureCache cache = open();
  EXPECT_EQ(cache.find(clip_), features_);
  const std::string place = cache.path(other), beside = place.substr(0, place.rfind('/') + 1);
  for (const std::string& name : names_in(beside)) EXPECT_EQ(beside + name, cache.path(clip_));
}

TEST_F(FeatureCacheTest, ThreadsShareIt) {
  const FeatureCache cache = open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 20; ++k) {
        const CachedClip mine{folder_.at("c"), static_cast<double>(i), static_cast<double>(k)};
        cache.keep(mine, features_);
        EXPECT_EQ(cache.find(mine), features_);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(cache.report().found, 80);
  EXPECT_EQ(cache.report().kept, 80);
}

// Two runs with one folder write the same clips in the same order, like the runs of a sweep with one seed.
TEST_F(FeatureCacheTest, TwoRunsThatShareAFolderKeepEverything) {
  const FeatureCache first = open(), second = open();
  constexpr int kClips = 200;
  const auto clip = [&](int i) { return CachedClip{clip_.audio, static_cast<double>(i), 1}; };
  const auto keep_all = [&](const FeatureCache& cache) {
    for (int i = 0; i < kClips; ++i) cache.keep(clip(i), features_);
  };
  std::thread other([&] { keep_all(second); });
  keep_all(first);
  other.join();
  for (const FeatureCache* cache : {&first, &second}) {
    EXPECT_EQ(cache->report().problem, "");
    EXPECT_EQ(cache->report().kept, kClips);
    for (int i = 0; i < kClips; ++i) EXPECT_EQ(cache->find(clip(i)), features_) << i;
  }
}

// A file that another run is writing has its own name, so it is not removed when this run's write fails.
TEST_F(FeatureCacheTest, AFailedWriteRemovesNoFileOfAnotherRun) {
  const FeatureCache cache = open();
  cache.keep(clip_, features_);
  const std::string place = cache.path(clip_), folder = place.substr(0, place.rfind('/') + 1);
  const std::string partial = folder + '.' + place.substr(folder.size()) + ".partial";
  write_bytes(partial, "of another run");
  std::ignore = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    cache.keep(clip_, features_);
    return cache.report().problem;
  });
  EXPECT_EQ(read_bytes(partial), "of another run");
  EXPECT_EQ(cache.find(clip_), features_);
}

TEST_F(FeatureCacheTest, OldTemporaryFilesAreRemovedWhenItIsOpened) {
  const std::string place = [&] {
    const FeatureCache cache = open();
    cache.keep(clip_, features_);
    return cache.path(clip_);
  }();
  const std::string folder = place.substr(0, place.rfind('/') + 1);
  const std::string partial = folder + '.' + place.substr(folder.size()) + ".partial-";
  const auto age = [](const std::string& path, std::time_t seconds) {
    const std::time_t then = std::time(nullptr) - seconds;
    const timespec times[2] = {{then, 0}, {then, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  write_bytes(partial + "1-0", "of a run that was killed");
  write_bytes(partial + "2-0", "of a run that writes now");
  age(partial + "1-0", 2 * 86400);
  age(partial + "2-0", 3600);
  age(place, 2 * 86400);
  EXPECT_TRUE(open().find(clip_));
  EXPECT_FALSE(std::filesystem::exists(partial + "1-0"));
  EXPECT_TRUE(std::filesystem::exists(partial + "2-0"));
}

TEST_F(FeatureCacheTest, AFolderThatIsRemovedMeanwhileIsMadeAgain) {
  const FeatureCache cache = open();
  cache.keep(clip_, features_);
  std::filesystem::remove_all(folder_.at("kept"));
  EXPECT_FALSE(cache.find(clip_));
  cache.keep(clip_, features_);
  EXPECT_EQ(cache.report().problem, "");
  EXPECT_EQ(cache.find(clip_), features_);
}

TEST_F(FeatureCacheTest, AFolderThatCannotBeMadeIsAnError) {
  const auto cache = FeatureCache::open(clip_.audio + "/x", settings_, {});
  EXPECT_THAT(cache.status().message(), HasSubstr("a.wav: cannot make the folder: File exists"));
}

}  // namespace
}  // namespace octavo_train
