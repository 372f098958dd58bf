// SPDX-License-Identifier: MIT
#include "apps/octavo/evaluate.h"

#include "apps/octavo/common/cli.h"
#include "apps/octavo/recognition_flags.h"

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>

namespace octavo::cli {
namespace {

constexpr const char* kEvaluateFooter = R"(For example:
  octavo evaluate runs/speech test.jsonl                       the word error rate, and the worst clips
  octavo evaluate runs/speech test.jsonl --checkpoint best --json test.json
  octavo evaluate parakeet.nemo test.jsonl --limit 200

Words are what blanks separate; case and punctuation count. Errors are substitutions, deletions and insertions,
summed over all clips and divided by the words of the manifest. Where the manifest has `lang` or `speaker`, there
is a table for each. A clip that cannot be read is named and counted, and the others go on. Ctrl-C shows the
errors so far.)";

}  // namespace

void add_evaluate(CLI::App& app, const std::function<void(const EvaluateRequest&)>& action) {
  CLI::App* command = app.add_subcommand("evaluate", "Compute the word error rate of a model on recordings");
  auto request = std::make_shared<EvaluateRequest>();
  add_listening_model(*command, request->model);
  command->add_option("manifests", request->manifests, "JSON lines with audio_filepath, duration and text")
      ->type_name("MANIFEST ...")
      ->required();
  add_listening_checkpoint(*command, request->checkpoint);
  command->add_option("--json", request->json, "Write all results to this file as JSON, too")
      ->type_name("FILE");
  command->add_option("--limit", request->limit, "Evaluate only the first N clips of the manifest")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  const auto option = [&](const char* flag, auto& value, const char* type, const char* help) {
    return command->add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
  option("--worst", request->worst, "N", "Number of clips to show: those with the most errors")
      ->check(CLI::Range(0, 100000));
  command
      ->add_option("--batch-seconds", request->batch_seconds,
                   "Seconds of sound in a batch; 1200 on a GPU and 120 elsewhere if not given")
      ->type_name("S")
      ->check(CLI::Range(1.0, 1e6));
  add_listening_machine(*command, request->threads, request->device, request->dtype);
  command->footer(kEvaluateFooter);
  command->callback([=] { action(*request); });
}

void check_evaluate(const EvaluateRequest& request) {
  for (const std::string& path : request.manifests) {
    if (access(path.c_str(), R_OK) != 0)
      throw Failure(kExitFailure, path + ": cannot be read: " + std::strerror(errno));
  }
  if (request.json.empty()) return;
  const std::string folder = std::filesystem::path(request.json).parent_path().string();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0)
    throw Failure(kExitUsage, "--json: got " + request.json + ", but " + (folder.empty() ? "." : folder) +
                                  " is no folder that can be written to");
}

}  // namespace octavo::cli
