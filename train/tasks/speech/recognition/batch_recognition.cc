// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/batch_recognition.h"

#include "train/base/parallel_for.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>

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

void transcribe_all(const HearBatch& hear, std::span<const ClipInput> clips,
                    const BatchRecognitionOptions& options, const HeardClip& done) {
  std::vector<double> seconds;
  for (const ClipInput& clip : clips) seconds.push_back(clip.seconds);
  const auto batches = plan_batches(seconds, options);
  Readers readers(clips, batches, options.threads);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::vector<Result<Samples>> read = readers.take(i, batches[i]);
    std::vector<std::span<const float>> samples;
    for (const Result<Samples>& each : read)
      if (each.ok()) samples.emplace_back(*each);
    std::vector<Transcription> heard;
    if (!samples.empty()) heard = hear(samples);
    auto next = heard.begin();
    for (std::size_t k = 0; k < read.size(); ++k) {
      if (read[k].ok()) {
        done(batches[i][k], std::move(*next++));
      } else {
        done(batches[i][k], read[k].status());
      }
    }
  }
}

}  // namespace octavo_train
