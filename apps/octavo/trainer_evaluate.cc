// Implements `octavo evaluate`: transcribes a manifest's recordings and counts the word errors.
// SPDX-License-Identifier: MIT

#include "apps/octavo/evaluate_report.h"
#include "apps/octavo/trainer.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "train/base/terminal_text.h"
#include "train/console/signals.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/recognition/recognizer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <utility>

namespace octavo::cli {
namespace {

constexpr double kGpuBatchSeconds = 1200, kOtherBatchSeconds = 120;  // stated in --help, too

// Opens the manifests without limits on clip length, so that every clip is evaluated.
octavo_train::Manifest open_manifests(const std::vector<std::string>& paths) {
  std::vector<octavo_train::ManifestSource> sources;
  for (const std::string& path : paths) sources.push_back({path});
  octavo_train::ManifestOptions options;
  options.min_duration = 0;
  options.max_duration = std::numeric_limits<double>::infinity();
  options.bad = octavo_train::BadClips::skip;
  return take(octavo_train::Manifest::open(sources, options));
}

octavo_train::ManifestScore evaluate(octavo_train::Recognizer& recognizer,
                                     const octavo_train::Manifest& manifest, const EvaluateRequest& request) {
  const bool cpu = recognizer.device_text().starts_with("cpu");
  octavo_train::ScoreOptions options;
  options.limit = request.limit;
  options.worst = static_cast<std::size_t>(request.worst);
  options.rate = recognizer.rate();
  options.batches.batch_seconds = request.batch_seconds.value_or(cpu ? kOtherBatchSeconds : kGpuBatchSeconds);
  options.batches.threads = request.threads;
  const std::int64_t clips = std::min(manifest.size(), request.limit.value_or(manifest.size()));
  Progress progress;
  const auto begin = std::chrono::steady_clock::now();
  const auto show = [&](std::int64_t done, const octavo_train::GroupScore& score) {
    if (!progress.due(std::chrono::seconds(1), std::chrono::seconds(5))) return;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    progress.say(fmt::format("{} of {} clips, WER {}%, {} times real time", grouped(done), grouped(clips),
                             fixed(100 * score.errors.rate(), 2), fixed(score.seconds / took.count(), 1)));
  };
  return octavo_train::score_manifest(manifest, [&](auto batch) { return recognizer.transcribe(batch); },
                                      options,
                                      {[] { return octavo_train::StopSignals::received() != 0; }, show});
}

void write_json(const EvaluateRequest& request, const octavo_train::ManifestScore& score) {
  nlohmann::ordered_json out = {{"model", request.model}, {"manifests", request.manifests}};
  if (!request.checkpoint.empty()) out["checkpoint"] = request.checkpoint;
  out.update(evaluation_json(score));
  using Handler = nlohmann::ordered_json::error_handler_t;
  check(octavo_train::write_text_file(request.json, out.dump(2, ' ', false, Handler::replace) + '\n'));
}

}  // namespace

void run_evaluate(const EvaluateRequest& request) {
  check_evaluate(request);
  const octavo_train::Manifest manifest = open_manifests(request.manifests);
  octavo_train::Recognizer recognizer = take(octavo_train::Recognizer::open(
      request.model, recognizer_options(request.device, request.dtype, request.checkpoint)));
  for (const std::string& line : recognizer.notes()) std::cerr << octavo_train::terminal_text(line) << '\n';
  const octavo_train::StopSignals signals(
      "\nstopping after this batch, with the errors so far; two more Ctrl-C end the process at once\n");
  const octavo_train::ManifestScore score = evaluate(recognizer, manifest, request);
  std::cout << evaluation_text(score) << std::flush;
  if (!request.json.empty()) write_json(request, score);
  if (const int signal = octavo_train::StopSignals::received(); score.clips_done < score.clips) {
    throw Failure(128 + signal, std::string("stopped by ") + octavo_train::signal_name(signal) + " after " +
                                    grouped(score.clips_done) + " of " + grouped(score.clips) +
                                    " clips, the longest first: the errors are those of these");
  }
  if (score.score.total().clips == 0)
    throw Failure(kExitFailure,
                  "no clip could be transcribed; the first: " + score.score.failed().front().reason);
}

}  // namespace octavo::cli
