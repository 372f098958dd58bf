// Implements `octavo transcribe`: transcribes files and writes or prints the transcripts.
// SPDX-License-Identifier: MIT
#include "apps/octavo/trainer.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "train/base/numbers.h"
#include "train/base/terminal_text.h"
#include "train/config/config.h"
#include "train/tasks/speech/recognition/batch_recognition.h"
#include "train/tasks/speech/recognition/recognizer.h"
#include "train/tasks/speech/recognition/transcription.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

namespace octavo::cli {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Writes transcripts to files, or prints them on stdout in the order of the recordings.
class Transcripts {
 public:
  explicit Transcripts(const TranscribeRequest& request)
      : request_(request),
        format_(*octavo_train::parse_transcript_format(request.format)),
        paths_(output_paths(request)) {
    if (request.output.empty()) return;
    std::error_code bad;
    std::filesystem::create_directories(request.output, bad);
    if (bad) throw Failure(kExitFailure, request.output + ": cannot be made: " + bad.message());
  }

  void add(std::size_t number, const octavo_train::FileTranscription& file) {
    const std::string& audio = request_.audio[number];
    std::string text = octavo_train::transcript_text(format_, audio, file.seconds, file.transcription);
    if (!paths_.empty()) return write(paths_[number], text);
    const bool named = request_.audio.size() > 1 && format_ == octavo_train::TranscriptFormat::text;
    waiting_[number] = named ? audio + ": " + text : text;
    print_ready();
  }
  void skip(std::size_t number) {
    waiting_[number] = "";
    if (paths_.empty()) print_ready();
  }

 private:
  // Writes the file atomically. It does not call fsync, which would take longer than transcribing the
  // recording, and the recording can be transcribed again.
  static void write(const std::string& path, const std::string& text) {
    const std::string partial = path + ".partial";
    std::error_code bad;
    if (std::ofstream file(partial, std::ios::binary); !(file << text).flush())
      throw Failure(kExitFailure, path + ": cannot be written: " + std::strerror(errno));
    std::filesystem::rename(partial, path, bad);
    if (bad) throw Failure(kExitFailure, path + ": cannot be written: " + bad.message());
  }

  void print_ready() {
    for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; ++next_) {
      std::cout << first->second << std::flush;
      first = waiting_.erase(first);
    }
  }

  const TranscribeRequest& request_;
  octavo_train::TranscriptFormat format_;
  std::vector<std::string> paths_;
  std::map<std::size_t, std::string> waiting_;
  std::size_t next_ = 0;
};

std::string rate_text(double seconds, double took) {
  using octavo_train::significant;
  return fmt::format("{} s of sound in {} s, {} times real time", significant(seconds, 4),
                     significant(took, 3), significant(seconds / took, 4));
}

}  // namespace

octavo_train::RecognizerOptions recognizer_options(const std::string& device, const std::string& dtype,
                                                   const std::string& checkpoint) {
  const auto training = [](const std::string& flag, const std::string& key, const std::string& value) {
    const std::string words[] = {"training." + key + '=' + value};
    return take(octavo_train::parse("", flag, words), flag).settings.training;
  };
  octavo_train::RecognizerOptions out;
  out.checkpoint = checkpoint;
  out.device = training("--device", "device", device).device;
  if (dtype != "auto") out.dtype = training("--dtype", "compute_dtype", dtype).compute_dtype;
  return out;
}

void run_bench_transcribe(const TranscribeBenchRequest& request) {
  bench_transcribe(request, recognizer_options(request.device, request.dtype));
}

void run_transcribe(const TranscribeRequest& request) {
  check_transcribe(request);
  octavo_train::Recognizer recognizer = take(octavo_train::Recognizer::open(
      request.model, recognizer_options(request.device, request.dtype, request.checkpoint)));
  for (const std::string& line : recognizer.notes()) std::cerr << octavo_train::terminal_text(line) << '\n';
  Transcripts transcripts(request);
  octavo_train::TranscribeOptions options{.window = request.window, .overlap = request.overlap};
  options.batches.batch_seconds =
      request.batch_seconds > 0 ? request.batch_seconds : recognizer.batch_seconds();
  options.batches.threads = request.threads;
  std::size_t bad = 0;
  double transcribed = 0;
  Clock::time_point begin = Clock::now(), shown = begin;
  {
    Progress progress;
    const octavo_train::TranscribeEvents events{
        [&](std::size_t number, Result<octavo_train::FileTranscription> file) {
          if (file.ok()) {
            transcribed += file->seconds;
            transcripts.add(number, *file);
          } else {
            ++bad;
            progress.note("octavo: " + file.status().message());
            transcripts.skip(number);
          }
        },
        [&](double done, double total) {
          if (since(shown) < 1) return;
          shown = Clock::now();
          progress.say(octavo_train::significant(100 * done / total, 3) + "% of " +
                       octavo_train::significant(total, 4) + " s, " +
                       octavo_train::significant(done / since(begin), 4) + " times real time");
        }};
    octavo_train::transcribe_files(recognizer.info(), request.audio, options, events);
    progress.note(recognizer.device_text() + ": " + rate_text(transcribed, since(begin)));
  }
  if (bad > 0)
    throw Failure(kExitFailure,
                  fmt::format("{} of {} recordings could not be transcribed", bad, request.audio.size()));
}

}  // namespace octavo::cli
