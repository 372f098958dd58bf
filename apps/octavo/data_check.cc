// Implements `octavo data check`: decodes every clip of the manifests, prints a table of the findings, and
// writes an HTML page with histograms.
// SPDX-License-Identifier: MIT
#include "apps/octavo/recordings/survey.h"
#include "apps/octavo/subcommands.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "train/audio/audio.h"
#include "train/base/numbers.h"
#include "train/base/terminal_text.h"
#include "train/io/text_file.h"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

namespace octavo::cli {
namespace {

constexpr std::size_t kShown = 3;  // findings printed per kind; the page has more

struct CheckFlags {
  std::vector<std::string> manifests;
  std::string tokenizer, output;
  recordings::SurveyOptions plan;
};

std::string page_path(const CheckFlags& flags) {
  if (!flags.output.empty()) return flags.output;
  const std::filesystem::path first(flags.manifests.front());
  return (first.parent_path() / (first.stem().string() + ".check.html")).string();
}

void print(const recordings::Survey& survey) {
  bool any = false;
  Table table({{"finding"}, {"clips", Table::Align::right}, {""}});
  for (std::size_t i = 0; i < recordings::kKinds; ++i) {
    const auto kind = static_cast<recordings::Kind>(i);
    const std::int64_t count = survey.of(kind).count;
    any = any || count > 0;
    if (count > 0)
      table.add({recordings::words_of(kind).name, grouped(count), recordings::words_of(kind).meaning});
  }
  std::cout << grouped(survey.decoded.clips) << " clips ("
            << octavo_train::duration_text(survey.decoded.seconds) << ") of "
            << grouped(survey.manifest.lines) << " lines were decoded\n";
  if (any) std::cout << table.text();
  for (std::size_t i = 0; i < recordings::kKinds; ++i) {
    const auto kind = static_cast<recordings::Kind>(i);
    if (!recordings::words_of(kind).serious) continue;
    const auto& first = survey.of(kind).first;
    for (std::size_t k = 0; k < std::min(kShown, first.size()); ++k)
      std::cout << octavo_train::terminal_text(first[k].place + ": " + first[k].reason) << '\n';
  }
}

void data_check(CheckFlags& flags) {
  if (!octavo_train::audio_built_in()) check(octavo_train::probe_audio(flags.manifests.front()).status());
  std::optional<octavo_train::Tokenizer> tokenizer;
  if (!flags.tokenizer.empty()) {
    tokenizer = take(octavo_train::Tokenizer::open(flags.tokenizer));
    flags.plan.tokenizer = &*tokenizer;
  }
  recordings::Survey survey;
  {
    Progress progress;
    const auto advance = [&](std::int64_t done, std::int64_t all) {
      if (done % std::max<std::int64_t>(1, all / 20) == 0)
        progress.say(grouped(done) + " of " + grouped(all) + " clips");
    };
    survey = take(recordings::survey_recordings(flags.manifests, flags.plan, advance));
  }
  print(survey);
  const std::string page = page_path(flags);
  std::string title = std::filesystem::path(flags.manifests.front()).filename().string();
  if (flags.manifests.size() > 1) title += " and " + std::to_string(flags.manifests.size() - 1) + " more";
  check(octavo_train::write_text_file(page, recordings::survey_page(title, survey)));
  std::cout << page << '\n';
  if (survey.serious() > 0)
    throw Failure(kExitFailure,
                  grouped(survey.serious()) +
                      " clips or lines must be fixed, removed, or skipped by data.bad_clips=skip");
}

}  // namespace

void add_data_check(CLI::App& data) {
  CLI::App* command = data.add_subcommand(
      "check",
      "Decode every clip of manifests; print what is wrong with them and write a page with histograms");
  auto flags = std::make_shared<CheckFlags>();
  command->add_option("MANIFEST", flags->manifests, "Manifests of recordings, one JSON object a line")
      ->required();
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "Find characters that this SentencePiece model does not have")
      ->type_name("FILE");
  command
      ->add_option("-o,--output", flags->output, "The page; train.check.html beside train.jsonl unless given")
      ->type_name("FILE");
  command
      ->add_option("--min-duration", flags->plan.options.min_duration,
                   "Seconds of the shortest clip to look at")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--max-duration", flags->plan.options.max_duration,
                   "Seconds of the longest clip to look at")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--jobs", flags->plan.threads, "Threads; as many as there are processors unless given")
      ->check(CLI::Range(0, 1024));
  command->footer("The exit code is 1 if something must be fixed.");
  command->callback([flags] { data_check(*flags); });
}

}  // namespace octavo::cli
