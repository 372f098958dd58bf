// Defines the command lines of `octavo transcribe` and `octavo evaluate`, and the checks that precede their
// work; see trainer_commands.h.
// SPDX-License-Identifier: MIT
#include "apps/octavo/trainer_commands.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "train/tasks/speech/recognition/transcription.h"

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>

namespace octavo::cli {
namespace {

constexpr const char* kTranscribeFooter = R"(For example:
  octavo transcribe runs/speech talk.mp3                         its text
  octavo transcribe runs/speech talk.mp3 --format srt > talk.srt
  octavo transcribe parakeet.nemo calls/*.wav --format json --output transcripts --checkpoint best

Recordings are WAV, FLAC, OGG or MP3, of any rate, length and number of channels. A longer one than --window
is transcribed in windows that overlap, so memory does not grow with it. Times are in steps of a frame of the
encoder, 80 ms. JSON has one line for each recording. A file that cannot be read is named, the others are
transcribed, and the exit code is 1.)";

constexpr const char* kEvaluateFooter = R"(For example:
  octavo evaluate runs/speech test.jsonl                       the word error rate, and the worst clips
  octavo evaluate runs/speech test.jsonl --checkpoint best --json test.json
  octavo evaluate parakeet.nemo test.jsonl --limit 200

Words are what blanks separate; case and punctuation count. Errors are substitutions, deletions and insertions,
summed over all clips and divided by the words of the manifest. Where the manifest has `lang` or `speaker`, there
is a table for each. A clip that cannot be read is named and skipped. Ctrl-C shows the
errors so far.)";

void add_speech_model(CLI::App& command, std::string& model) {
  command
      .add_option("model", model,
                  "Folder of a run or a checkpoint, a .nemo file, a folder of transformers, or the name of a "
                  "downloaded model of the hub")
      ->type_name("RUN")
      ->required();
}

void add_machine(CLI::App& command, int& threads, std::string& device, std::string& dtype) {
  const AddOption option{command};
  option("--threads", threads, "N", "Threads that read recordings; 0: one for each CPU, up to 16")
      ->check(CLI::Range(0, 1024));
  option("--device", device, "NAME", "Device: auto, cpu, cuda or cuda:1");
  option("--dtype", dtype, "NAME", "Compute type; auto: bfloat16 on a GPU, float32 elsewhere")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16", "float32"}));
}

}  // namespace

void add_transcribe(CLI::App& app, const std::function<void(const TranscribeRequest&)>& action) {
  CLI::App* command = app.add_subcommand("transcribe", "Transcribe recordings with a speech model");
  auto request = std::make_shared<TranscribeRequest>();
  add_speech_model(*command, request->model);
  command->add_option("audio", request->audio, "Recordings: WAV, FLAC, OGG or MP3")
      ->type_name("FILE ...")
      ->required();
  const AddOption option{*command};
  option("--format", request->format, "NAME", "Format of the transcripts")
      ->check(CLI::IsMember({"text", "json", "srt", "vtt"}));
  command
      ->add_option("--output", request->output,
                   "Folder for a file per recording, named after it; stdout if not given")
      ->type_name("FOLDER");
  command->add_flag("--force", request->force, "Replace transcripts that are there");
  add_checkpoint(*command, request->checkpoint);
  option("--window", request->window, "S",
         "Seconds of a window; longer recordings are transcribed window by window")
      ->check(CLI::Range(1.0, 3600.0));
  option("--overlap", request->overlap, "S", "Seconds that a window shares with each of its neighbours")
      ->check(CLI::Range(0.0, 60.0));
  option("--batch-seconds", request->batch_seconds, "S",
         "Seconds of sound in a batch; 0: 1,200 on a GPU, 60 elsewhere")
      ->check(CLI::Range(0.0, 1e6));
  add_machine(*command, request->threads, request->device, request->dtype);
  command->footer(kTranscribeFooter);
  command->callback([=] { action(*request); });
}

std::vector<std::string> output_paths(const TranscribeRequest& request) {
  if (request.output.empty()) return {};
  const auto format = octavo_train::parse_transcript_format(request.format);
  std::map<std::string, std::string> taken;
  std::vector<std::string> out;
  for (const std::string& audio : request.audio) {
    const std::string stem = std::filesystem::path(audio).stem().string();
    std::string path = request.output + '/' + stem + std::string(extension_of(*format));
    const auto [other, fresh] = taken.emplace(path, audio);
    if (!fresh)
      throw Failure(kExitUsage, other->second + " and " + audio + " would both be written to " + path +
                                    "; give them in two calls with two folders");
    std::error_code ignored;  // writing to the folder reports its errors later
    if (!request.force && std::filesystem::exists(path, ignored))
      throw Failure(kExitUsage, path + ": is there already; choose another folder, or --force replaces it");
    out.push_back(std::move(path));
  }
  return out;
}

void check_transcribe(const TranscribeRequest& request) {
  const bool subtitles = request.format == "srt" || request.format == "vtt";
  if (subtitles && request.output.empty() && request.audio.size() > 1)
    throw Failure(kExitUsage, "--format " + request.format + ": got " + std::to_string(request.audio.size()) +
                                  " recordings, but stdout holds the subtitles of one; give --output FOLDER");
  output_paths(request);
}

void add_evaluate(CLI::App& app, const std::function<void(const EvaluateRequest&)>& action) {
  CLI::App* command = app.add_subcommand("evaluate", "Compute the word error rate of a model on recordings");
  auto request = std::make_shared<EvaluateRequest>();
  add_speech_model(*command, request->model);
  command->add_option("manifests", request->manifests, "JSON lines with audio_filepath, duration and text")
      ->type_name("MANIFEST ...")
      ->required();
  add_checkpoint(*command, request->checkpoint);
  command->add_option("--json", request->json, "Write all results to this file as JSON, too")
      ->type_name("FILE");
  command->add_option("--limit", request->limit, "Evaluate only the first N clips of the manifest")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  const AddOption option{*command};
  option("--worst", request->worst, "N", "Number of clips to show: those with the most errors")
      ->check(CLI::Range(0, 100000));
  command
      ->add_option("--batch-seconds", request->batch_seconds,
                   "Seconds of sound in a batch; 1200 on a GPU and 120 elsewhere if not given")
      ->type_name("S")
      ->check(CLI::Range(1.0, 1e6));
  add_machine(*command, request->threads, request->device, request->dtype);
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
                                  " is not a folder that can be written to");
}

}  // namespace octavo::cli
