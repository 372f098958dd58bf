// Implements `octavo data make-tokenizer`: trains a SentencePiece model on the texts of manifests and writes
// it with the same files as NeMo's script. The same texts in the same order give the same bytes.
// SPDX-License-Identifier: MIT
#include "apps/octavo/subcommands.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "train/base/numbers.h"
#include "train/base/terminal_text.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/folders.h"
#include "train/io/little_endian.h"
#include "train/io/mapped_file.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/manifest/manifest.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>

namespace octavo::cli {
namespace {

struct TokenizerFlags {
  std::string folder;
  std::vector<std::string> inputs;
  octavo_train::TokenizerOptions plan;
  std::string text_field = "text";
  bool skip_bad = false;
  bool force = false;
};

using UseText = std::function<void(std::string_view)>;

void each_line(const std::string& path, const UseText& use) {
  const octavo_train::MappedFile file = take(octavo_train::MappedFile::open(path));
  std::string_view rest = octavo_train::as_text(file.bytes());
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    use(line);
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
}

void each_text(const std::string& path, const TokenizerFlags& flags, const UseText& use) {
  const std::vector<octavo_train::ManifestSource> sources = {{path, 1}};
  octavo_train::ManifestOptions options;
  options.min_duration = 0;
  options.max_duration = 1e9;  // clips that a run skips for their length still contribute their words
  options.bad = flags.skip_bad ? octavo_train::BadClips::skip : octavo_train::BadClips::error;
  options.text_field = flags.text_field;
  options.how_to_skip = "--skip-bad";
  const octavo_train::Manifest manifest = take(octavo_train::Manifest::open(sources, options));
  if (manifest.report().bad > 0)
    std::cerr << "warning: " << path << ": " << manifest.report().bad
              << (manifest.report().bad == 1 ? " bad line" : " bad lines") << " skipped, the first "
              << octavo_train::terminal_text(manifest.left_out(0).place + ": " + manifest.left_out(0).reason)
              << '\n';
  for (std::int64_t i = 0; i < manifest.size(); ++i) use(manifest.entry(i).text);
}

std::vector<std::string> all_texts(const TokenizerFlags& flags) {
  std::vector<std::string> out;
  const UseText add = [&](std::string_view text) {
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return;
    std::string& line = out.emplace_back(text);
    std::ranges::replace(line, '\n', ' ');
  };
  for (const std::string& path : flags.inputs) {
    if (path.ends_with(".txt"))
      each_line(path, add);
    else
      each_text(path, flags, add);
  }
  return out;
}

void make_tokenizer(const TokenizerFlags& flags) {
  if (!octavo_train::tokenizer_built_in())
    take(octavo_train::Tokenizer::from_bytes("", ""));  // throws the error that names what to install
  const std::string model = flags.folder + "/tokenizer.model";
  if (!flags.force && octavo_train::path_exists(model))
    throw Failure(kExitUsage, model + ": is there already; choose another folder, or --force replaces it");
  const std::vector<std::string> texts = all_texts(flags);
  auto next = texts.begin();
  const auto bytes = take(octavo_train::train_tokenizer(flags.plan, [&](std::string& text) {
    if (next == texts.end()) return false;
    text = *next++;
    return true;
  }));
  const octavo_train::Tokenizer tokenizer = take(octavo_train::Tokenizer::from_bytes(bytes, model));
  std::error_code error;
  std::filesystem::create_directories(flags.folder, error);
  if (error) throw Failure(kExitFailure, flags.folder + ": cannot make the folder: " + error.message());
  std::int64_t tokens = 0;
  for (const std::string& text : texts) tokens += std::ssize(tokenizer.encode(text));
  // The model is written last: a folder that contains it is complete.
  auto files = take(octavo_train::nemo_tokenizer_files(tokenizer));
  for (const char* name : {"vocab.txt", "tokenizer.vocab", "tokenizer.model"})
    check(octavo_train::write_text_file(flags.folder + '/' + name, files.at(name)));
  if (tokenizer.size() < flags.plan.vocabulary)
    std::cerr << "warning: the texts give " << tokenizer.size() << " tokens, not " << flags.plan.vocabulary
              << '\n';
  const auto count = static_cast<double>(texts.size());
  std::cout << model << ": " << tokenizer.size() << " tokens (" << flags.plan.kind << ") of "
            << octavo_train::grouped(count) << " texts, " << fixed(static_cast<double>(tokens) / count, 1)
            << " tokens a text; model.tokenizer.dir: " << flags.folder << '\n';
}

}  // namespace

void add_make_tokenizer(CLI::App& data) {
  CLI::App* command =
      data.add_subcommand("make-tokenizer", "Train a SentencePiece tokenizer on the texts of manifests");
  auto flags = std::make_shared<TokenizerFlags>();
  command->add_option("DIR", flags->folder, "Folder to write: tokenizer.model, tokenizer.vocab, vocab.txt")
      ->required();
  command->add_option("MANIFEST", flags->inputs, "Manifests, or .txt files with a text in every line")
      ->required();
  command->add_option("--vocab-size", flags->plan.vocabulary, "Number of tokens")
      ->capture_default_str()
      ->check(CLI::Range(4, 1 << 20));
  command->add_option("--type", flags->plan.kind, "Kind of tokenizer")
      ->capture_default_str()
      ->check(CLI::IsMember({"bpe", "unigram", "char", "word"}));
  command
      ->add_option("--character-coverage", flags->plan.character_coverage,
                   "Share of the characters that get a token; 0.9995 for languages with thousands of them")
      ->capture_default_str()
      ->check(CLI::Range(0.5, 1.0));
  command->add_flag("--byte-fallback", flags->plan.byte_fallback,
                    "Characters without a token become bytes (256 of the tokens)");
  command->add_option("--symbols", flags->plan.symbols, "Texts that are one token each, such as <|ms|>")
      ->delimiter(',');
  command->add_option("--text-field", flags->text_field, "Field of the manifests with the text")
      ->capture_default_str();
  command->add_flag("--skip-bad", flags->skip_bad, "Skip lines that are not a manifest entry");
  command->add_flag("--force", flags->force, "Replace a tokenizer that is there");
  command->callback([flags] { make_tokenizer(*flags); });
}

}  // namespace octavo::cli
