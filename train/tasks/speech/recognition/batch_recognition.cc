// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/batch_recognition.h"

#include "train/audio/audio.h"
#include "train/base/parallel_for.h"
#include "train/base/status.h"
#include "train/tasks/speech/recognition/windows.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using Samples = std::vector<float>;

constexpr std::size_t kAhead = 2;  // batches that are read while another one is transcribed
constexpr unsigned kMostThreads = 16;

Result<Samples> read_clip(const ClipInput& clip) {
  try {
    return clip.read();
  } catch (const std::exception& error) {
    return Status::failed(error.what());
  }
}

// Threads that read clips in the order of the batches, up to kAhead batches ahead.
class Readers {
 public:
  Readers(std::span<const ClipInput> clips, const std::vector<std::vector<std::size_t>>& batches, int threads)
      : clips_(clips), read_(clips.size()) {
    for (std::size_t i = 0; i < batches.size(); ++i)
      for (const std::size_t clip : batches[i]) order_.push_back({clip, i});
    const std::size_t wanted = reading_threads(threads);
    // If the system refuses to start threads, fewer threads read. Without any, take() reads.
    threads_ = start_threads(std::min(wanted, order_.size()), [this] { run(); }).threads;
  }

  ~Readers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    may_read_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Returns the clips of a batch after they have been read, and permits the threads to read the next batches.
  std::vector<Result<Samples>> take(std::size_t batch, const std::vector<std::size_t>& clips) {
    if (threads_.empty()) {
      for (const std::size_t clip : clips) read_[clip].emplace(read_clip(clips_[clip]));
    }
    std::unique_lock lock(mutex_);
    until_ = batch + kAhead;
    may_read_.notify_all();
    was_read_.wait(lock, [&] {
      return std::ranges::all_of(clips, [&](std::size_t clip) { return read_[clip].has_value(); });
    });
    std::vector<Result<Samples>> out;
    for (const std::size_t clip : clips) {
      out.push_back(std::move(*read_[clip]));
      read_[clip].reset();
    }
    return out;
  }

  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

 private:
  struct Turn {
    std::size_t clip, batch;
  };

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      may_read_.wait(lock, [&] { return stop_ || next_ == order_.size() || order_[next_].batch <= until_; });
      if (stop_ || next_ == order_.size()) return;
      const std::size_t clip = order_[next_++].clip;
      lock.unlock();
      Result<Samples> samples = read_clip(clips_[clip]);
      lock.lock();
      read_[clip].emplace(std::move(samples));
      was_read_.notify_one();
    }
  }

  std::span<const ClipInput> clips_;
  std::vector<Turn> order_;
  std::mutex mutex_;
  std::condition_variable may_read_, was_read_;
  std::vector<std::optional<Result<Samples>>> read_;  // indexed by clip
  std::size_t next_ = 0, until_ = kAhead;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// A recording and its transcript so far.
struct File {
  FileTranscription out;
  std::vector<RecognizedWindow> windows;
  std::size_t left = 0;  // windows that are not transcribed yet
  Status bad;
};

struct Place {
  std::size_t file, window;
};

class FileTranscriber {
 public:
  FileTranscriber(const RecognizerInfo& recognizer, std::span<const std::string> paths,
                  const TranscribeOptions& options, const TranscribeEvents& events)
      : recognizer_(recognizer), paths_(paths), options_(options), events_(events), files_(paths.size()) {}

  void run() {
    plan();
    transcribe_all(recognizer_.transcribe, clips_, options_.batches,
                   [this](std::size_t clip, Result<Transcription> result) { take(clip, std::move(result)); });
  }

 private:
  [[nodiscard]] std::int64_t frames(double seconds) const {
    return static_cast<std::int64_t>(std::ceil(seconds / recognizer_.frame_seconds - 1e-6));
  }

  void plan() {
    // Several threads read the headers: a header takes a moment, and there may be many.
    std::vector<Result<AudioInfo>> infos(paths_.size(), AudioInfo());
    parallel_for(paths_.size(), reading_threads(options_.batches.threads),
                 [&](std::uint64_t i) { infos[i] = probe_audio(paths_[i]); });
    const std::int64_t longest = std::max<std::int64_t>(frames(options_.window), 1);
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      if (!infos[i].ok()) {
        events_.done(i, infos[i].status());
        continue;
      }
      File& file = files_[i];
      file.out.seconds = infos[i]->seconds();
      total_ += file.out.seconds;
      const std::int64_t all = std::max<std::int64_t>(frames(file.out.seconds), 1);
      for (const RecognitionWindow& each : cut_windows(all, longest, frames(options_.overlap))) add(i, each);
      file.left = file.windows.size();
    }
  }

  void add(std::size_t number, const RecognitionWindow& window) {
    File& file = files_[number];
    AudioRequest request;
    request.path = paths_[number];
    request.rate = recognizer_.rate;
    request.offset = static_cast<double>(window.first) * recognizer_.frame_seconds;
    const double seconds = static_cast<double>(window.frames) * recognizer_.frame_seconds;
    // The last window has no length: it ends where the file ends.
    if (request.offset + seconds < file.out.seconds) request.seconds = seconds;
    places_.push_back({number, file.windows.size()});
    clips_.push_back({request.seconds.value_or(file.out.seconds - request.offset),
                      [request = std::move(request)]() -> Result<std::vector<float>> {
                        ASSIGN_OR_RETURN(auto clip, read_audio(request));
                        return std::move(clip.samples);
                      }});
    file.windows.push_back({window, {}});
  }

  void take(std::size_t clip, Result<Transcription> result) {
    const Place place = places_[clip];
    File& file = files_[place.file];
    if (result.ok() && file.windows.size() == 1) {
      file.out.transcription = std::move(*result);
    } else if (result.ok()) {
      file.windows[place.window].tokens = std::move(result->tokens);
    } else if (file.bad.ok()) {
      file.bad = result.status();
    }
    done_ += file.out.seconds / static_cast<double>(file.windows.size());
    if (--file.left == 0) finish(place.file);
    if (events_.progress) events_.progress(done_, total_);
  }

  void finish(std::size_t number) {
    File& file = files_[number];
    if (!file.bad.ok()) return events_.done(number, file.bad);
    Transcription& transcription = file.out.transcription;
    if (file.windows.size() > 1) {
      const Tokenizer& tokenizer = *recognizer_.tokenizer;
      const auto begins = [&](std::int64_t token) { return begins_word(tokenizer, token); };
      transcription =
          make_transcription(merge_windows(file.windows, begins), tokenizer, recognizer_.frame_seconds);
    }
    file.windows.clear();
    // The last label may end after the end of the recording.
    for (TranscribedWord& word : transcription.words) word.end = std::min(word.end, file.out.seconds);
    events_.done(number, std::move(file.out));
  }

  const RecognizerInfo& recognizer_;
  std::span<const std::string> paths_;
  const TranscribeOptions& options_;
  const TranscribeEvents& events_;
  std::vector<File> files_;
  std::vector<ClipInput> clips_;
  std::vector<Place> places_;  // indexed by clip
  double done_ = 0, total_ = 0;
};

}  // namespace

unsigned reading_threads(int asked) {
  return asked > 0 ? static_cast<unsigned>(asked)
                   : std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads);
}

std::vector<std::vector<std::size_t>> plan_batches(std::span<const double> seconds,
                                                   const BatchRecognitionOptions& options) {
  std::vector<std::size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return seconds[a] > seconds[b]; });
  std::vector<std::vector<std::size_t>> out;
  for (const std::size_t clip : order) {
    const auto fits = [&](const std::vector<std::size_t>& batch) {
      return batch.size() < options.batch_clips &&
             static_cast<double>(batch.size() + 1) * seconds[batch.front()] <= options.batch_seconds;
    };
    if (out.empty() || !fits(out.back())) out.emplace_back();
    out.back().push_back(clip);
  }
  return out;
}

void transcribe_all(const TranscribeBatch& transcribe, std::span<const ClipInput> clips,
                    const BatchRecognitionOptions& options, const ClipDone& done) {
  std::vector<double> seconds;
  for (const ClipInput& clip : clips) seconds.push_back(clip.seconds);
  const auto batches = plan_batches(seconds, options);
  Readers readers(clips, batches, options.threads);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::vector<Result<Samples>> read = readers.take(i, batches[i]);
    std::vector<std::span<const float>> samples;
    for (const Result<Samples>& each : read)
      if (each.ok()) samples.emplace_back(*each);
    std::vector<Transcription> results;
    if (!samples.empty()) results = transcribe(samples);
    auto next = results.begin();
    for (std::size_t k = 0; k < read.size(); ++k) {
      if (read[k].ok()) {
        done(batches[i][k], std::move(*next++));
      } else {
        done(batches[i][k], read[k].status());
      }
    }
  }
}

void transcribe_files(const RecognizerInfo& recognizer, std::span<const std::string> paths,
                      const TranscribeOptions& options, const TranscribeEvents& events) {
  FileTranscriber(recognizer, paths, options, events).run();
}

}  // namespace octavo_train
