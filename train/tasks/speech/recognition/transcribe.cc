// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/transcribe.h"

#include "train/audio/audio.h"
#include "train/base/parallel_for.h"
#include "train/base/status.h"
#include "train/tasks/speech/recognition/windows.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

// A recording and its transcript so far.
struct File {
  std::vector<RecognizedWindow> windows;
  std::size_t left = 0;  // windows that are not transcribed yet
  Transcription heard;   // result of a recording with one window
  double seconds = 0;
  Status bad;
};

struct Place {
  std::size_t file, window;
};

// Reads the headers of all recordings, with several threads: a header takes a moment, and there may be many.
std::vector<Result<AudioInfo>> probe_all(std::span<const std::string> paths, int threads) {
  std::vector<std::optional<Result<AudioInfo>>> found(paths.size());
  parallel_for(paths.size(), reading_threads(threads),
               [&](std::uint64_t i) { found[i].emplace(probe_audio(paths[i])); });
  std::vector<Result<AudioInfo>> out;
  out.reserve(found.size());
  for (auto& each : found) out.push_back(std::move(*each));
  return out;
}

class FileTranscriber {
 public:
  FileTranscriber(const RecognizerInfo& hearing, std::span<const std::string> paths,
                  const TranscribeOptions& options, const TranscribeEvents& events)
      : hearing_(hearing), paths_(paths), options_(options), events_(events), files_(paths.size()) {}

  void run() {
    plan();
    transcribe_all(hearing_.hear, clips_, options_.listening,
                   [this](std::size_t clip, Result<Transcription> heard) { take(clip, std::move(heard)); });
  }

 private:
  [[nodiscard]] std::int64_t frames(double seconds) const {
    return static_cast<std::int64_t>(std::ceil(seconds / hearing_.frame_seconds - 1e-6));
  }

  void plan() {
    const auto infos = probe_all(paths_, options_.listening.threads);
    const std::int64_t longest = std::max<std::int64_t>(frames(options_.window), 1);
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      if (!infos[i].ok()) {
        events_.done(i, infos[i].status());
        continue;
      }
      File& file = files_[i];
      file.seconds = infos[i]->seconds();
      total_ += file.seconds;
      const std::int64_t all = std::max<std::int64_t>(frames(file.seconds), 1);
      for (const RecognitionWindow& each : cut_windows(all, longest, frames(options_.overlap))) add(i, each);
      file.left = file.windows.size();
    }
  }

  void add(std::size_t number, const RecognitionWindow& window) {
    File& file = files_[number];
    AudioRequest request;
    request.path = paths_[number];
    request.rate = hearing_.rate;
    request.offset = static_cast<double>(window.first) * hearing_.frame_seconds;
    const double seconds = static_cast<double>(window.frames) * hearing_.frame_seconds;
    // The last window has no length: it ends where the file ends.
    if (request.offset + seconds < file.seconds) request.seconds = seconds;
    places_.push_back({number, file.windows.size()});
    clips_.push_back({request.seconds.value_or(file.seconds - request.offset),
                      [request = std::move(request)]() -> Result<std::vector<float>> {
                        ASSIGN_OR_RETURN(auto clip, read_audio(request));
                        return std::move(clip.samples);
                      }});
    file.windows.push_back({window, {}});
  }

  void take(std::size_t clip, Result<Transcription> heard) {
    const Place place = places_[clip];
    File& file = files_[place.file];
    if (heard.ok() && file.windows.size() == 1) {
      file.heard = std::move(*heard);
    } else if (heard.ok()) {
      file.windows[place.window].tokens = std::move(heard->tokens);
    } else if (file.bad.ok()) {
      file.bad = heard.status();
    }
    done_ += file.seconds / static_cast<double>(file.windows.size());
    if (--file.left == 0) finish(place.file);
    if (events_.progress) events_.progress(done_, total_);
  }

  void finish(std::size_t number) {
    File& file = files_[number];
    if (!file.bad.ok()) return events_.done(number, file.bad);
    HeardFile out{file.seconds, std::move(file.heard)};
    if (file.windows.size() > 1) {
      const Tokenizer& tokenizer = *hearing_.tokenizer;
      const auto begins = [&](std::int64_t token) { return begins_word(tokenizer, token); };
      out.heard = make_transcription(merge_windows(file.windows, begins), tokenizer, hearing_.frame_seconds);
    }
    file.windows.clear();
    // The last label may end after the end of the recording.
    for (TranscribedWord& word : out.heard.words) word.end = std::min(word.end, file.seconds);
    events_.done(number, std::move(out));
  }

  const RecognizerInfo& hearing_;
  std::span<const std::string> paths_;
  const TranscribeOptions& options_;
  const TranscribeEvents& events_;
  std::vector<File> files_;
  std::vector<ClipInput> clips_;
  std::vector<Place> places_;  // indexed by clip
  double done_ = 0, total_ = 0;
};

}  // namespace

void transcribe_files(const RecognizerInfo& hearing, std::span<const std::string> paths,
                      const TranscribeOptions& options, const TranscribeEvents& events) {
  FileTranscriber(hearing, paths, options, events).run();
}

}  // namespace octavo_train
