// Implements `octavo data make-speech`, which makes recordings to try the trainer with, and `octavo data
// split`, which splits a manifest in two.
// SPDX-License-Identifier: MIT
#include "apps/octavo/recordings/make_speech.h"
#include "apps/octavo/recordings/split.h"
#include "apps/octavo/subcommands.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "train/base/numbers.h"
#include "train/io/text_file.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>

namespace octavo::cli {
namespace {

constexpr std::int64_t kMostClips = 1'000'000;
constexpr std::uint64_t kMostText = std::uint64_t{1} << 28;  // bytes

struct SpeechFlags {
  std::string folder, text;
  recordings::SpeechOptions options;
  int threads = 0;
  bool force = false;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream stream(take(octavo_train::read_text_file(path, kMostText)));
  std::vector<std::string> out;
  for (std::string line; std::getline(stream, line);) {
    const std::size_t first = line.find_first_not_of(" \t\r"), last = line.find_last_not_of(" \t\r");
    if (first != std::string::npos) out.push_back(line.substr(first, last - first + 1));
  }
  if (out.empty()) throw Failure(kExitUsage, "--text: " + path + " has no line with a text");
  return out;
}

void make_speech(SpeechFlags& flags) {
  recordings::SpeechOptions& options = flags.options;
  if (options.voices.empty()) throw Failure(kExitUsage, "--voices: got none, expected at least one");
  if (options.slowest > options.fastest)
    throw Failure(kExitUsage, fmt::format("--slowest: got {}, expected at most --fastest, {}",
                                          options.slowest, options.fastest));
  if (!flags.text.empty()) options.sentences = lines_of(flags.text);
  recordings::MadeSpeech made;
  {
    Progress progress;
    const std::int64_t all = options.clips + options.val_clips, often = std::max<std::int64_t>(1, all / 10);
    const auto advance = [&](std::int64_t done) {
      if (done % often == 0) progress.say(grouped(done) + " of " + grouped(all) + " clips");
    };
    made = take(recordings::make_speech(flags.folder, options, flags.force, flags.threads, advance));
  }
  std::cout << fmt::format(
      "{}: {}{} clips ({}) in train.jsonl and {} ({}) in val.jsonl, {} different words, {}\n", flags.folder,
      made.was_there ? "was there already, " : "", grouped(options.clips),
      octavo_train::duration_text(made.seconds), grouped(options.val_clips),
      octavo_train::duration_text(made.val_seconds), grouped(made.words),
      octavo_train::counted(std::ssize(options.voices), "voice"));
}

struct SplitFlags {
  std::string manifest, train, val, together = "audio";
  recordings::SplitOptions options;
  bool force = false;
};

// Returns all.train.jsonl for all.jsonl and the part "train".
std::string beside(const std::string& manifest, const char* part) {
  const std::filesystem::path path(manifest);
  const std::string extension = path.extension().empty() ? ".jsonl" : path.extension().string();
  return (path.parent_path() / (path.stem().string() + "." + part + extension)).string();
}

void split(SplitFlags& flags) {
  flags.options.together = flags.together == "audio" ? "audio_filepath" : flags.together;
  const std::string train = flags.train.empty() ? beside(flags.manifest, "train") : flags.train;
  const std::string val = flags.val.empty() ? beside(flags.manifest, "val") : flags.val;
  std::error_code ignored;
  for (const std::string& each : {train, val}) {
    if (std::filesystem::equivalent(each, flags.manifest, ignored))
      throw Failure(kExitUsage,
                    each + ": a part cannot replace the manifest that is split; name another file");
    if (!flags.force && std::filesystem::exists(each, ignored))
      throw Failure(kExitFailure, each + ": there is a file of this name; --force replaces it");
  }
  const auto folder = [](const std::string& path) {
    return std::filesystem::path(path).parent_path().string();
  };
  const recordings::Split parts =
      take(recordings::split_manifest(flags.manifest, flags.options, folder(train), folder(val)));
  check(octavo_train::write_text_file(train, parts.train.lines));
  check(octavo_train::write_text_file(val, parts.val.lines));
  const auto say = [](const std::string& path, const recordings::SplitPart& part) {
    std::cout << path << ": " << grouped(part.clips) << " clips, "
              << octavo_train::duration_text(part.seconds) << '\n';
  };
  say(train, parts.train);
  say(val, parts.val);
}

}  // namespace

void add_split(CLI::App& data) {
  CLI::App* command =
      data.add_subcommand("split", "Split a manifest into one to train on and one to evaluate on");
  auto flags = std::make_shared<SplitFlags>();
  command->add_option("MANIFEST", flags->manifest, "Manifest of recordings, one JSON object a line")
      ->required();
  command
      ->add_option("--train", flags->train,
                   "The part to train on; all.train.jsonl beside all.jsonl unless given")
      ->type_name("FILE");
  command->add_option("--val", flags->val, "The part to evaluate on; all.val.jsonl unless given")
      ->type_name("FILE");
  auto* share = command->add_option("--share", flags->options.share, "Share of the clips to evaluate on")
                    ->capture_default_str()
                    ->check(CLI::Range(1e-6, 0.999999));
  command->add_option("--clips", flags->options.clips, "Number of clips to evaluate on, instead of a share")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50))
      ->excludes(share);
  command
      ->add_option("--together", flags->together,
                   "Clips that stay on one side: those of the same recording (audio), text, speaker or lang")
      ->capture_default_str()
      ->check(CLI::IsMember({"audio", "text", "speaker", "lang"}));
  command->add_option("--seed", flags->options.seed, "Seed of the random choice")->capture_default_str();
  command->add_flag("--force", flags->force, "Replace files that are there");
  command->callback([flags] { split(*flags); });
}

void add_make_speech(CLI::App& data) {
  CLI::App* command = data.add_subcommand(
      "make-speech",
      "Make recordings with manifests: short sentences, read aloud by espeak-ng in several voices");
  auto flags = std::make_shared<SpeechFlags>();
  const AddOption option{*command};
  command->add_option("FOLDER", flags->folder, "Folder to make: train.jsonl, val.jsonl and the recordings")
      ->required();
  option("--clips", flags->options.clips, "N", "Clips to train on")
      ->check(CLI::Range(std::int64_t{1}, kMostClips));
  option("--val-clips", flags->options.val_clips, "N", "Clips to evaluate on, with sentences of their own")
      ->check(CLI::Range(std::int64_t{1}, kMostClips));
  option("--voices", flags->options.voices, "LIST", "Voices of espeak-ng, comma-separated")->delimiter(',');
  option("--slowest", flags->options.slowest, "N", "Slowest pace, in words a minute")
      ->check(CLI::Range(80, 450));
  option("--fastest", flags->options.fastest, "N", "Fastest pace, in words a minute")
      ->check(CLI::Range(80, 450));
  option("--silence", flags->options.silence, "SECONDS",
         "Each clip begins and ends with up to this much silence; 0 writes none")
      ->check(CLI::Range(0.0, 60.0));
  option("--joined", flags->options.joined, "SHARE",
         "This share of the clips has two or three sentences with pauses; 0 writes single sentences")
      ->check(CLI::Range(0.0, 1.0));
  option("--rate", flags->options.rate, "HZ", "Sample rate of the files")->check(CLI::Range(8000, 48000));
  option("--format", flags->options.format, "NAME", "Format of the files")
      ->check(CLI::IsMember({"flac", "wav", "ogg", "mp3"}));
  option("--seed", flags->options.seed, "N", "Seed of the random choice of sentences and voices");
  option("--text", flags->text, "FILE", "Read the lines of this file instead of sentences of our own");
  option("--jobs", flags->threads, "N", "Threads; as many as there are processors unless given")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--force", flags->force, "Write into a folder that has other things in it");
  command->callback([flags] { make_speech(*flags); });
}

}  // namespace octavo::cli
