// SPDX-License-Identifier: MIT
#include "apps/octavo/transcribe.h"

#include "apps/octavo/common/cli.h"
#include "apps/octavo/recognition_flags.h"
#include "train/tasks/speech/recognition/transcript_file.h"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <map>
#include <memory>

namespace octavo::cli {
namespace {

constexpr const char* kFooter = R"(For example:
  octavo transcribe runs/speech talk.mp3                         its text
  octavo transcribe runs/speech talk.mp3 --format srt > talk.srt
  octavo transcribe parakeet.nemo calls/*.wav --format json --output transcripts --checkpoint best

Recordings are WAV, FLAC, OGG or MP3, of any rate, length and number of channels. A longer one than --window
is heard in windows that overlap, so memory does not grow with it. Times are in steps of a frame of the
encoder, 80 ms. JSON has one line for each recording. A file that cannot be read is named, the others go on,
and the exit code is 1.)";

}  // namespace

void add_transcribe(CLI::App& app, const std::function<void(const TranscribeRequest&)>& action) {
  CLI::App* command = app.add_subcommand("transcribe", "Transcribe recordings with a speech model");
  auto request = std::make_shared<TranscribeRequest>();
  add_listening_model(*command, request->model);
  command->add_option("audio", request->audio, "Recordings: WAV, FLAC, OGG or MP3")
      ->type_name("FILE ...")
      ->required();
  const auto option = [&](const char* flag, auto& value, const char* type, const char* help) {
    return command->add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
  option("--format", request->format, "NAME", "Format of the transcripts")
      ->check(CLI::IsMember({"text", "json", "srt", "vtt"}));
  command
      ->add_option("--output", request->output,
                   "Folder for a file per recording, named after it; stdout if not given")
      ->type_name("FOLDER");
  command->add_flag("--force", request->force, "Replace transcripts that are there");
  add_listening_checkpoint(*command, request->checkpoint);
  option("--window", request->window, "S",
         "Seconds of a window; longer recordings are transcribed window by window")
      ->check(CLI::Range(1.0, 3600.0));
  option("--overlap", request->overlap, "S", "Seconds that a window shares with each of its neighbours")
      ->check(CLI::Range(0.0, 60.0));
  option("--batch-seconds", request->batch_seconds, "S",
         "Seconds of sound in a batch; 0: 1,200 on a GPU, 60 elsewhere")
      ->check(CLI::Range(0.0, 1e6));
  add_listening_machine(*command, request->threads, request->device, request->dtype);
  command->footer(kFooter);
  command->callback([=] { action(*request); });
}

std::vector<std::string> arguments_of(const TranscribeRequest& request) {
  std::vector<std::string> out = {"transcribe",
                                  "--format=" + request.format,
                                  "--window=" + exact(request.window),
                                  "--overlap=" + exact(request.overlap),
                                  "--batch-seconds=" + exact(request.batch_seconds),
                                  "--threads=" + std::to_string(request.threads),
                                  "--device=" + request.device,
                                  "--dtype=" + request.dtype};
  if (!request.output.empty()) out.push_back("--output=" + request.output);
  if (!request.checkpoint.empty()) out.push_back("--checkpoint=" + request.checkpoint);
  if (request.force) out.emplace_back("--force");
  out.emplace_back("--");
  out.push_back(request.model);
  out.insert(out.end(), request.audio.begin(), request.audio.end());
  return out;
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

}  // namespace octavo::cli
