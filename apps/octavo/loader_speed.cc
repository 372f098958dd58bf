// SPDX-License-Identifier: MIT
#include "apps/octavo/loader_speed.h"

#include "apps/octavo/common/cli.h"
#include "train/data/mix.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <numbers>
#include <thread>

namespace octavo::cli {
namespace {

constexpr std::int64_t kFewest = 2;  // clips per thread, even if the time is up

// Generates a signal that compresses about as well as speech: three tones that come and go, over quiet noise.
std::vector<float> voice(std::uint64_t number, int rate, double seconds) {
  const std::uint64_t key = octavo_train::mix(number + octavo_train::kStep);
  std::vector<float> samples(static_cast<std::size_t>(std::llround(seconds * rate)));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double t = static_cast<double>(i) / rate;
    double x = 0.02 * (octavo_train::share_of(key, i + 8) - 0.5);
    for (std::uint64_t tone = 1; tone <= 3; ++tone) {
      const double hertz = 150 * static_cast<double>(tone * tone) * (1 + octavo_train::share_of(key, tone));
      const double beat = 2 + 4 * octavo_train::share_of(key, tone + 3);
      const double loud = std::max(std::sin(2 * std::numbers::pi * beat * t), 0.0);
      x += 0.2 / static_cast<double>(tone) * loud * std::sin(2 * std::numbers::pi * hertz * t);
    }
    samples[i] = static_cast<float>(x);
  }
  return samples;
}

}  // namespace

ClipSet make_clips(const std::string& folder, const std::string& extension, int rate, int count,
                   double seconds) {
  ClipSet set;
  for (int i = 0; i < count; ++i) {
    const std::string path = folder + "/" + std::to_string(i) + extension;
    check(octavo_train::write_audio(path, voice(static_cast<std::uint64_t>(i), rate, seconds), rate));
    set.clips.push_back({.path = path});
  }
  set.name =
      take(octavo_train::probe_audio(set.clips.front().path)).format + " " + std::to_string(rate) + " Hz";
  return set;
}

LoaderSpeed measure_loader(const ClipSet& set, int workers, double seconds) {
  using Clock = std::chrono::steady_clock;
  LoaderSpeed total;
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  const Clock::time_point start = Clock::now();
  const Clock::time_point end =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const auto work = [&] {
    LoaderSpeed own;
    while (own.clips + own.bad < kFewest || Clock::now() < end) {
      const auto clip = octavo_train::read_audio(set.clips[next++ % set.clips.size()]);
      if (clip.ok()) {
        ++own.clips;
        own.samples += static_cast<std::int64_t>(clip->samples.size());
      } else {
        if (own.bad++ == 0) own.error = clip.status().message();
      }
    }
    const std::lock_guard lock(mutex);
    total.clips += own.clips;
    total.samples += own.samples;
    if (total.bad == 0) total.error = own.error;
    total.bad += own.bad;
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(workers));
    for (int i = 0; i < workers; ++i) threads.emplace_back(work);
  }
  total.elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  return total;
}

}  // namespace octavo::cli
