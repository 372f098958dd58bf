// Implements `octavo bench loader`: measures how many clips per second the loader's threads decode, for
// comparison with the GPU's throughput.
// SPDX-License-Identifier: MIT
#include "benchmarks/speech/commands.h"
#include "cli/cli.h"
#include "cli/hardware_json.h"
#include "cli/options.h"
#include "cli/table.h"
#include "train/audio/audio.h"
#include "train/base/parallel_for.h"
#include "train/io/files.h"
#include "train/tasks/speech/manifest/manifest.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

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

struct Row {
  std::string name;
  int workers = 0;
  // Clips read without an error, and their samples at the requested rate.
  std::int64_t clips = 0, samples = 0;
  std::int64_t bad = 0;
  std::string error;   // error of the first bad clip
  double elapsed = 0;  // seconds
  [[nodiscard]] double clips_per_second() const { return static_cast<double>(clips) / elapsed; }
  [[nodiscard]] double times_real() const { return static_cast<double>(samples) / kRate / elapsed; }
};

constexpr std::int64_t kFewest = 2;  // clips per thread, even if the time is up

// Writes `count` clips into `folder`, in the format of `extension` and at `rate` Hz. Each is a different
// voice of tones over noise.
ClipSet make_clips(const std::string& folder, const std::string& extension, int rate, int count,
                   double seconds) {
  ClipSet set;
  for (int i = 0; i < count; ++i) {
    const std::string path = folder + "/" + std::to_string(i) + extension;
    check(octavo_train::write_audio(path, make_sound(static_cast<std::uint64_t>(i), rate, seconds), rate));
    set.clips.push_back({.path = path});
  }
  set.name =
      take(octavo_train::probe_audio(set.clips.front().path)).format + " " + std::to_string(rate) + " Hz";
  return set;
}

// Reads the clips in order, repeatedly, for `seconds` seconds, with `workers` threads that each read one clip
// at a time. REQUIRES: at least one clip, workers >= 1.
Row measure_loader(const ClipSet& set, int workers, double seconds) {
  Row row;
  row.name = set.name;
  row.workers = workers;
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  const double start = now();
  octavo_train::parallel_for(
      static_cast<std::uint64_t>(workers), static_cast<std::uint64_t>(workers), [&](std::uint64_t) {
        for (std::int64_t done = 0; done < kFewest || now() - start < seconds; ++done) {
          const auto clip = octavo_train::read_audio(set.clips[next++ % set.clips.size()]);
          const std::lock_guard lock(mutex);
          if (clip.ok()) {
            ++row.clips;
            row.samples += static_cast<std::int64_t>(clip->samples.size());
          } else if (row.bad++ == 0) {
            row.error = clip.status().message();
          }
        }
      });
  row.elapsed = now() - start;
  if (row.clips == 0) throw Failure(kExitFailure, "no clip could be read: " + row.error);
  return row;
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
               grouped(row.bad)});
  }
  std::cout << table.text();
  for (const Row& row : rows) {
    if (row.bad == 0) continue;
    std::cout << "bad: " << row.error << '\n';
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
                           {"bad", row.bad},
                           {"error", row.error}});
  }
  std::cout << out.dump() << '\n';
}

void bench_loader(const LoaderFlags& flags) {
  std::optional<octavo_train::ScratchFolder> folder;
  std::vector<ClipSet> sets;
  if (flags.manifest.empty()) {
    folder = take(octavo_train::ScratchFolder::make(scratch_path()));
    sets.push_back(make_clips(folder->path(), ".flac", 16000, kMadeClips, flags.length));
    sets.push_back(make_clips(folder->path(), ".mp3", 44100, kMadeClips, flags.length));
  } else {
    sets.push_back(manifest_clips(flags.manifest));
  }
  std::vector<Row> rows;
  for (const ClipSet& set : sets)
    for (const int workers : flags.workers) rows.push_back(measure_loader(set, workers, flags.seconds));
  flags.json ? print_json(rows) : print_table(rows);
}

}  // namespace

void add_bench_loader(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("loader", "Time the decoding of recordings, by number of threads");
  auto flags = std::make_shared<LoaderFlags>();
  command
      ->add_option(
          "MANIFEST", flags->manifest,
          "Manifest as in data.train_manifest; without it, generated clips: FLAC at 16 kHz and MP3 at "
          "44.1 kHz")
      ->type_name("FILE");
  const AddOption option{*command};
  option("--workers", flags->workers, "LIST", "Threads, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  option("--length", flags->length, "S", "Length of a generated clip")->check(CLI::Range(0.1, 600.0));
  option("--seconds", flags->seconds, "S", "Measuring time of each row")->check(CLI::Range(0.01, 3600.0));
  command->add_flag("--json", flags->json, "Print JSON on stdout, nothing else");
  command->footer(
      "Clips are decoded to mono samples at 16 kHz, as in training. Files that were read before are in the "
      "page cache.\n`octavo bench speech` measures how many clips per second a GPU consumes.");
  command->callback([flags] { bench_loader(*flags); });
}

}  // namespace octavo::cli
