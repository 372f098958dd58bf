// Implements `octavo bench loader`: measures how many clips per second the loader's threads decode, for
// comparison with the GPU's throughput.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/hardware_json.h"
#include "apps/octavo/common/table.h"
#include "train/audio/audio.h"
#include "train/data/mix.h"
#include "train/io/files.h"
#include "train/tasks/speech/manifest/manifest.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <numbers>
#include <thread>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr int kRate = 16000, kMadeClips = 16;
constexpr std::int64_t kMostListed = 100000;

struct LoaderFlags {
  std::string manifest;
  std::vector<int> workers = {1, 8};
  double length = 10, seconds = 2;
  bool json = false;
};

// A set of clips that is measured together.
struct ClipSet {
  std::string name;  // "FLAC 16000 Hz", or the manifest's path
  std::vector<octavo_train::AudioRequest> clips;
};

struct LoaderSpeed {
  // Clips read without an error, and their samples at the requested rate.
  std::int64_t clips = 0, samples = 0;
  std::int64_t bad = 0;
  std::string error;   // of the first bad clip
  double elapsed = 0;  // seconds
};

constexpr std::int64_t kFewest = 2;  // clips per thread, even if the time is up

// Generates a signal that compresses about as well as speech: three tones that come and go, over quiet noise.
std::vector<float> voice(std::uint64_t number, int rate, double seconds) {
  const std::uint64_t key = octavo_train::mix(number + octavo_train::kGoldenGamma);
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

// Writes `count` clips into `folder`, in the format of `extension` and at `rate` Hz. Each is a different
// voice of tones over noise.
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

// Reads the clips in order, repeatedly, for `seconds` seconds, with `workers` threads that each read one clip
// at a time. REQUIRES: at least one clip, workers >= 1.
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

ClipSet manifest_clips(const std::string& path) {
  const octavo_train::ManifestSource source{path};
  octavo_train::ManifestOptions options;
  options.max_duration = 1e6;
  const octavo_train::Manifest manifest = take(octavo_train::Manifest::open(std::span(&source, 1), options));
  ClipSet set{path, {}};
  for (std::int64_t i = 0; i < std::min(manifest.size(), kMostListed); ++i) {
    const octavo_train::ManifestEntry entry = manifest.entry(i);
    set.clips.push_back(
        {.path = entry.audio, .offset = entry.offset, .seconds = entry.duration, .rate = kRate});
  }
  return set;
}

// Returns a path in $TMPDIR or else in memory, if /dev/shm is writable, because only decoding is measured.
std::string scratch_path() {
  const char* given = std::getenv("TMPDIR");
  const std::string folder = given != nullptr ? given : ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  return folder + "/octavo-loader-" + std::to_string(::getpid());
}

struct Row {
  std::string name;
  int workers = 0;
  LoaderSpeed speed;
  [[nodiscard]] double clips_per_second() const { return static_cast<double>(speed.clips) / speed.elapsed; }
  [[nodiscard]] double times_real() const {
    return static_cast<double>(speed.samples) / kRate / speed.elapsed;
  }
};

void measure(const LoaderFlags& flags, const ClipSet& set, std::vector<Row>& rows) {
  for (const int workers : flags.workers) {
    rows.push_back({set.name, workers, measure_loader(set, workers, flags.seconds)});
    const LoaderSpeed& speed = rows.back().speed;
    if (speed.clips == 0) throw Failure(kExitFailure, "no clip could be read: " + speed.error);
  }
}

void print_table(const std::vector<Row>& rows) {
  const auto right = Table::Align::right;
  Table table({{"clips"},
               {"workers", right},
               {"clips/s", right},
               {"ms/clip and worker", right},
               {"x real time", right},
               {"bad", right}});
  for (const Row& row : rows) {
    table.add({row.name, std::to_string(row.workers), fixed(row.clips_per_second(), 1),
               fixed(1000 * row.workers / row.clips_per_second(), 2), fixed(row.times_real(), 0),
               grouped(row.speed.bad)});
  }
  std::cout << table.text();
  for (const Row& row : rows) {
    if (row.speed.bad == 0) continue;
    std::cout << "bad: " << row.speed.error << '\n';
    break;
  }
}

void print_json(const std::vector<Row>& rows) {
  json out = {{"cpu", cpu_json()}, {"rate", kRate}, {"rows", json::array()}};
  for (const Row& row : rows) {
    out["rows"].push_back({{"clips", row.name},
                           {"workers", row.workers},
                           {"clips_per_second", row.clips_per_second()},
                           {"times_real", row.times_real()},
                           {"bad", row.speed.bad},
                           {"error", row.speed.error}});
  }
  std::cout << out.dump() << '\n';
}

void bench_loader(const LoaderFlags& flags) {
  std::vector<Row> rows;
  if (!flags.manifest.empty()) {
    measure(flags, manifest_clips(flags.manifest), rows);
  } else {
    const octavo_train::ScratchFolder folder = take(octavo_train::ScratchFolder::make(scratch_path()));
    measure(flags, make_clips(folder.path(), ".flac", 16000, kMadeClips, flags.length), rows);
    measure(flags, make_clips(folder.path(), ".mp3", 44100, kMadeClips, flags.length), rows);
  }
  flags.json ? print_json(rows) : print_table(rows);
}

}  // namespace

void add_bench_loader(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("loader", "Time the decoding of recordings, by number of threads");
  auto flags = std::make_shared<LoaderFlags>();
  command
      ->add_option("MANIFEST", flags->manifest,
                   "JSON lines as data.train_manifest has them; without it, clips of our own: FLAC of 16 kHz "
                   "and MP3 of 44.1 kHz")
      ->type_name("FILE");
  command->add_option("--workers", flags->workers, "Threads, comma-separated")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--length", flags->length, "Length of a clip of our own")
      ->type_name("S")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  command->add_option("--seconds", flags->seconds, "How long each line is measured")
      ->type_name("S")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON on stdout, nothing else");
  command->footer(
      "Clips become mono samples at 16 kHz, as training reads them. Files that were read before come from "
      "memory.\nWhat a GPU takes: octavo bench speech.");
  command->callback([flags] { bench_loader(*flags); });
}

}  // namespace octavo::cli
