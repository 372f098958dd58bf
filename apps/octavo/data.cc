// Implements `octavo data`, which makes and checks training data; data_speech.cc implements the subcommands
// for recordings. make-text writes the tales of tales/tales.h and needs no network. An existing file is
// replaced only with --force, and always atomically.
// SPDX-License-Identifier: MIT
#include "apps/octavo/subcommands.h"
#include "apps/octavo/tales/tales.h"
#include "cli/cli.h"
#include "cli/parse.h"
#include "cli/table.h"
#include "train/io/files.h"
#include "train/io/output_file.h"
#include "train/tasks/text/text.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>

namespace octavo::cli {
namespace {

struct MakeTextFlags {
  std::string path;
  std::string bytes = "2M";
  std::string seed = "1";
  bool force = false;
};

std::uint64_t parse_seed(const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end)
    throw Failure(kExitUsage, "--seed: got '" + text + "', expected a whole number from 0 to 2^64 - 1");
  return value;
}

// Calls use(piece) with one tale at a time, `bytes` bytes in total, until it returns false.
template <class Use>
void generate_text(std::int64_t bytes, std::uint64_t seed, Use use) {
  std::uint64_t number = 0;
  for (auto left = static_cast<std::uint64_t>(bytes); left > 0;) {
    const std::string tale = tales::make_tale(seed, ++number);
    const auto piece = std::as_bytes(std::span(tale).first(std::min<std::uint64_t>(tale.size(), left)));
    if (!use(piece)) return;
    left -= piece.size();
  }
}

bool holds_text(const std::string& path, std::int64_t bytes, std::uint64_t seed) {
  const octavo_train::MappedFile file = take(octavo_train::MappedFile::open(path));
  std::span<const std::byte> rest = file.bytes();
  if (rest.size() != static_cast<std::uint64_t>(bytes)) return false;
  bool same = true;
  generate_text(bytes, seed, [&](std::span<const std::byte> piece) {
    same = std::memcmp(rest.data(), piece.data(), piece.size()) == 0;
    rest = rest.subspan(piece.size());
    return same;
  });
  return same;
}

void write_text(const std::string& path, std::int64_t bytes, std::uint64_t seed) {
  const std::string partial = take(octavo_train::partial_path(path));
  octavo_train::OutputFile file =
      take(octavo_train::OutputFile::create(partial, {0, static_cast<std::uint64_t>(bytes)}));
  generate_text(bytes, seed, [&](std::span<const std::byte> piece) {
    check(file.write(piece));
    return true;
  });
  check(file.finish_as(path));
}

void make_text(const MakeTextFlags& flags) {
  const std::int64_t bytes = parse_numel(flags.bytes, "--bytes");
  const std::uint64_t seed = parse_seed(flags.seed);
  std::error_code ignored;  // errors from opening the file describe what is wrong with the path
  const bool there = std::filesystem::exists(flags.path, ignored);
  const bool same = there && !flags.force && holds_text(flags.path, bytes, seed);
  if (there && !flags.force && !same)
    throw Failure(kExitFailure, flags.path + ": there is another file of this name; --force replaces it");
  if (!same) write_text(flags.path, bytes, seed);

  const octavo_train::TextCorpus corpus = take(octavo_train::TextCorpus::open(std::span(&flags.path, 1)));
  const double entropy = octavo_train::unigram_entropy(octavo_train::TextRange{corpus, 0, corpus.size()});
  std::cout << flags.path << (same ? ": was there already, " : ": ") << corpus.size()
            << " bytes, unigram entropy " << fixed(entropy, 3)
            << " nats per byte (the loss of a model that knows only how often each byte occurs)\n";
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Make and check what models are trained on");
  data->require_subcommand(1);
  CLI::App* command = data->add_subcommand(
      "make-text",
      "Write a corpus of simple tales, the same on every machine for the same --bytes and --seed");
  auto flags = std::make_shared<MakeTextFlags>();
  command->add_option("FILE", flags->path, "File to write")->required();
  command->add_option("--bytes", flags->bytes, "Size of the file: 500k, 2M, 1G, or 64Mi for powers of 1024")
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Seed of the random choice of tales")->capture_default_str();
  command->add_flag("--force", flags->force, "Replace a file that holds something else");
  command->callback([flags] { make_text(*flags); });
  add_data_check(*data);
  add_make_speech(*data);
  add_split(*data);
  add_make_tokenizer(*data);
  data->footer(R"(For example:
  octavo data make-text corpus.txt             a text to try the trainer on
  octavo data check train.jsonl                mistakes in a manifest of recordings
  octavo data make-speech speech               recordings to try the trainer on)");
}

}  // namespace octavo::cli
