// Transcribes many clips, or recordings in files. Threads read clips ahead, so that the device does not wait
// for files, and a batch contains clips of similar lengths. Batches depend only on the lengths of the clips,
// not on the threads, so two calls return the same results. Does not use LibTorch: recognition is a function
// argument, such as one that calls Recognizer::transcribe().
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/recognition/transcription.h"

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

class Tokenizer;

// A clip to transcribe. Any thread may read it, when its batch is near.
struct ClipInput {
  double seconds = 0;                                // approximate; used to form batches
  std::function<Result<std::vector<float>>()> read;  // mono samples at the recognizer's rate
};

struct BatchRecognitionOptions {
  double batch_seconds = 1200;     // limit of a batch with its padding; a longer clip is its own batch
  std::size_t batch_clips = 1024;  // limit of clips per batch
  int threads = 0;                 // threads that read clips; 0: see reading_threads()
};

// Returns `asked` if it is positive, else the number of hardware threads, at most 16.
unsigned reading_threads(int asked);

// Transcribes the clips of a batch. Returns one result per clip, in the same order.
using TranscribeBatch = std::function<std::vector<Transcription>(std::span<const std::span<const float>>)>;

// The recognition function of a model, with the format of its input and output.
struct RecognizerInfo {
  TranscribeBatch transcribe;
  const Tokenizer* tokenizer = nullptr;
  int rate = 16000;             // samples per second
  double frame_seconds = 0.08;  // of an encoder frame
};

// Divides clips into batches of similar lengths, the longest clips first. Returns the clip numbers of each
// batch.
std::vector<std::vector<std::size_t>> plan_batches(std::span<const double> seconds,
                                                   const BatchRecognitionOptions& options);

// Receives the clip's number, and its transcript or the reason why the clip could not be read.
using ClipDone = std::function<void(std::size_t, Result<Transcription>)>;

// Transcribes the clips and calls done() for each of them, on the calling thread, in the order of the
// batches. A clip that cannot be read is omitted from its batch. Throws what `transcribe` and `done` throw.
void transcribe_all(const TranscribeBatch& transcribe, std::span<const ClipInput> clips,
                    const BatchRecognitionOptions& options, const ClipDone& done);

struct TranscribeOptions {
  double window = 20;  // seconds; the maximum length of a window, without overlap
  double overlap = 2;  // seconds on both sides of a window that its neighbors share
  BatchRecognitionOptions batches = {};
};

struct FileTranscription {
  double seconds = 0;  // duration of the recording
  Transcription transcription;
};

struct TranscribeEvents {
  // Receives the file's number, and its transcript or an error. Called once per file, as soon as its result
  // is available.
  std::function<void(std::size_t, Result<FileTranscription>)> done;
  // Receives the seconds of audio transcribed so far and their total. Called after each window.
  std::function<void(double, double)> progress;
};

// Transcribes recordings in files. Threads open and read them. Long recordings are cut into overlapping
// windows, whose transcripts are merged. A bad file does not stop the others. Throws what the recognizer and
// the events throw.
void transcribe_files(const RecognizerInfo& recognizer, std::span<const std::string> paths,
                      const TranscribeOptions& options, const TranscribeEvents& events);

}  // namespace octavo_train
