// Implements `octavo bench loader`: measures how many clips per second the loader's threads decode, for
// comparison with the GPU's throughput.
// SPDX-License-Identifier: MIT
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/hardware_json.h"
#include "apps/octavo/common/table.h"
#include "apps/octavo/loader_speed.h"
#include "train/io/folders.h"
#include "train/tasks/speech/manifest/manifest.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>

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
